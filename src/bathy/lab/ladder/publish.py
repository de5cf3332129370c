"""A ladder in the documentation: its small files beside a page, and a block on the page that follows from them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bathy.files import read_json, write_text
from bathy.lab.ladder.charts import CHARTS, caption
from bathy.lab.ladder.gather import OUTCOME
from bathy.lab.ladder.page import COLUMNS, MOVED, cells, moved_cells, summary
from bathy.lab.ladder.results import read_rungs, read_transfers
from bathy.lab.reproduce.item import Table

BLOCK = re.compile(r"(<!-- ladder: (\S+) -->\n).*?(<!-- end of ladder -->)", re.S)


def kept(document: Path, out: Path) -> Path:
    """The folder beside the page that keeps a ladder: its table, its pictures and what came out of each run."""
    return document.with_suffix("") / out.name


def publish(out: Path, document: Path) -> None:
    """Copy the ladder's small files beside the page and bring the page up to date."""
    target = kept(document, out)
    for file in [out / "ladder.csv", out / "ladder.json", *(path for name in CHARTS if (path := out / f"{name}.svg").exists())]:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / file.name)
    for outcome in out.glob(f"*/{OUTCOME}"):
        run = target / "runs" / outcome.parent.name
        run.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(outcome, run / OUTCOME)
    text = document.read_text(encoding="utf-8") if document.exists() else "# The depth ladder\n"
    mark = f"<!-- ladder: {out.name} -->"
    if mark not in text:
        write_text(document, f"{text.rstrip()}\n\n{mark}\n<!-- end of ladder -->\n")
    write_text(document, refreshed(document))


def refreshed(document: Path) -> str:
    """The page with every block between its marks made anew from the folder that the mark names."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_block(document, match[2])}\n\n{match[3]}"

    return BLOCK.sub(block, document.read_text(encoding="utf-8"))


def _block(document: Path, ladder: str) -> str:
    """Summary, tables and pictures of a ladder."""
    place, folder = f"{document.stem}/{ladder}", document.with_suffix("") / ladder
    found = read_json(folder / "ladder.json")
    rungs, moved = read_rungs(found["rungs"]), read_transfers(found["transfer"])
    told = summary(rungs)
    rule = f"A run trains if its validation loss is at most {found['trains'] * found['chance']:.2f} nats"
    parts = [
        f"{told.what} {told.todo}".strip(),
        f"{rule} ({100 * found['trains']:.0f} % of {found['chance']:.2f}). Runs: {len(found['runs'])}, "
        f"{sum(rung.hours for rung in rungs):.1f} core-hours. [Every run]({place}/ladder.csv).",
        Table(COLUMNS, [cells(rung) for rung in rungs]).markdown(),
        Table(MOVED, [moved_cells(one) for one in moved]).markdown(),
        *(f"![{caption(name)}]({place}/{name}.svg)" for name in CHARTS if (folder / f"{name}.svg").exists()),
        f"`{found['origin']['command']}`",
    ]
    return "\n\n".join(parts)
