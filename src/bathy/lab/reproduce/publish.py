"""Results in the documentation: copied from their folders, and shown on a page whose text follows from the copies."""

from __future__ import annotations

import math
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bathy.files import write_text
from bathy.lab.claims.predicate import Checked
from bathy.lab.reproduce import PLACES, find_item
from bathy.lab.reproduce.folder import MARK, judged, page, read_numbers
from bathy.lab.reproduce.item import Table
from bathy.lab.reproduce.reasons import reason
from bathy.lab.reproduce.scale import SCALES

SMALL = ("numbers.json", "verdicts.json", "figure.svg")
"""What is copied besides the configs; readings stay behind."""
RUNS = ("outcome.json", "bleu_*.json", "*.hyp", "*.readings.jsonl")
"""What is copied of a run, so that it need not be trained again where only that is asked for, nor translate again."""
LARGEST = 800_000
"""Bytes of a file that is copied at most: a figure with thousands of marks stays behind."""
MOST_CHECKS = 3
"""Predicates of a claim that the summary shows at most."""
SUMMARY = re.compile(r"(<!-- summary -->\n).*?(<!-- end of summary -->)", re.S)
BLOCK = re.compile(r"(<!-- result: (\S+) -->\n).*?(<!-- end of result -->)", re.S)


def publish(results: Path, items: Iterable[str], document: Path) -> None:
    """Copy the items' results into a folder beside the page, named like it, and bring the page up to date."""
    for name in items:
        source, target = results / name, document.with_suffix("") / results.name / name
        read_numbers(source)
        target.mkdir(parents=True, exist_ok=True)
        for file in SMALL:
            if (source / file).exists() and (source / file).stat().st_size <= LARGEST:
                shutil.copyfile(source / file, target / file)
        shutil.rmtree(target / "configs", ignore_errors=True)
        shutil.copytree(source / "configs", target / "configs")
        for config in (target / "configs").glob("*.toml"):
            _keep(results / "runs" / config.stem, kept_runs(document, results.name) / config.stem)
        _place(document, f"{results.name}/{name}", find_item(name).title)
    write_text(document, refreshed(document))


def kept_runs(document: Path, scale: str) -> Path:
    """The folder beside a page that holds what came out of each run."""
    return document.with_suffix("") / scale / "runs"


def _keep(run: Path, target: Path) -> None:
    for file in (found for pattern in RUNS for found in run.glob(pattern)):
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / file.name)


def _place(document: Path, place: str, title: str) -> None:
    """Give a result that is not on the page a heading and a block at its end."""
    text = document.read_text(encoding="utf-8")
    if f"<!-- result: {place} -->" not in text:
        write_text(document, f"{text.rstrip()}\n\n## {title}\n\n<!-- result: {place} -->\n<!-- end of result -->\n")


def refreshed(document: Path) -> str:
    """The page with every block between its marks made anew from the result folder that the mark names."""
    text = document.read_text(encoding="utf-8")

    def block(match: re.Match[str]) -> str:
        place = match[2]
        folder = document.with_suffix("") / place
        figure = f"{document.stem}/{place}/figure.svg"
        return f"{match[1]}\n{page(find_item(folder.name), folder, figure)}\n\n{match[3]}"

    text = BLOCK.sub(block, text)
    return SUMMARY.sub(lambda match: f"{match[1]}\n{summary(document)}\n\n{match[2]}", text)


def summary(document: Path) -> str:
    """The claims of every result on the page: verdict, by how much each holds, how many seeds say so, why one does not."""
    rows, answers = [], Counter[str]()
    for folder in sorted((path.parent for path in document.with_suffix("").glob("*/*/numbers.json")), key=_order):
        for verdict in judged(folder.name, read_numbers(folder)[0]):
            answers[verdict.answer] += 1
            seeds = f"{verdict.seeds} of {verdict.claim.seeds}" if verdict.seeds < verdict.claim.seeds else str(verdict.seeds)
            place = f"{verdict.claim.place}; [`{folder.name}`](#{anchor(find_item(folder.name).title)})"
            rows.append(
                [
                    f"{verdict.claim.says} ({place})",
                    f"{MARK[verdict.answer]} {verdict.answer}",
                    _effect(verdict.deciding),
                    seeds,
                    folder.parent.name,
                    reason(verdict.claim.id) if verdict.answer == "not reproduced" else "",
                ]
            )
    heads = ["claim", "verdict", "margin by which it holds (negative: does not)", "seeds", "scale", "why it differs"]
    counts = ", ".join(f"{answers[answer]} {answer}" for answer in MARK)
    return f"{sum(answers.values())} claims: {counts}.\n\n{Table(heads, rows).markdown()}"


def _effect(checks: Sequence[Checked]) -> str:
    """Up to three predicates with their margins; of more, the one that is nearest to failing, or fails by most."""
    nearest = min(checks, key=lambda check: statistics.fmean(check.margins) if check.margins else -math.inf)
    shown = checks if len(checks) <= MOST_CHECKS else [nearest]
    more = f"; and {len(checks) - len(shown)} more" if len(shown) < len(checks) else ""
    return "; ".join(f"`{check.predicate}`: {check.margin}" for check in shown) + more


def _order(folder: Path) -> tuple[int, int, str]:
    """Smaller scales first, and a scale's items as `--list` has them; what is in neither comes last."""
    return _place_in(SCALES, folder.parent.name), _place_in(PLACES, folder.name), str(folder)


def _place_in(table: Iterable[str], name: str) -> int:
    known = list(table)
    return known.index(name) if name in known else len(known)


def anchor(title: str) -> str:
    """The address of a heading within its page, as MkDocs makes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-")
