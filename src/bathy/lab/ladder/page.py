"""The ladder's page: what carries which depth, as a summary, pictures and a table, with the rows as CSV and JSON beside it."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict

from bathy.clinic import plots
from bathy.files import origin, replacing, write_json, write_text
from bathy.lab.ladder.charts import caption, draw_all
from bathy.lab.ladder.gather import flat_rows
from bathy.lab.ladder.ladder import Ladder
from bathy.lab.ladder.results import FAILED, TRAINS, Moved, Rung, rungs, transfers
from bathy.lab.reproduce.folder import plain
from bathy.pages import Summary, render_page
from bathy.tasks import make_task, read_config

COLUMNS = (
    "scheme", "layers", "best loss", "± over seeds", "seeds", "best rate", "largest rate that trains", "trained", "core-hours",
)  # fmt: skip
MOVED = ("scheme", "layers", "best rate", "factor", "loss given up with the shallow one's rate")


def report(ladder: Ladder, storage: str = "") -> list[Rung]:
    """Write ladder.csv, ladder.json, the pictures and report.html into the ladder's folder; returns its rungs."""
    rows = flat_rows(ladder, storage)
    config = read_config(ladder.config, ladder.settings)
    chance = make_task(config).chance()
    found = rungs(rows, chance)
    with replacing(ladder.out / "ladder.csv") as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    moved = transfers(found, rows, chance)
    told = [asdict(one) | ({"lost": FAILED} if math.isinf(one.lost) else {}) for one in moved]
    facts = {"chance": chance, "trains": TRAINS, "transfer": told, "rungs": [asdict(rung) for rung in found]}
    write_json(
        ladder.out / "ladder.json", plain(facts | {"runs": rows, "origin": origin(config=config.model_dump(mode="json"))})
    )
    charts = draw_all(found, rows, chance)
    for name, chart in charts.items():
        plots.save(chart, ladder.out / f"{name}.svg")
    page = render_page(
        "bathy.lab.ladder", "report.html", charts, rungs=found, chance=chance, trains=TRAINS,
        figures={name: caption(name) for name in charts}, deepest=max((rung.layers for rung in found), default=0),
        origin=origin(), summary=summary(found), columns=COLUMNS, table=[cells(rung) for rung in found],
        moved_columns=MOVED, moved=[moved_cells(one) for one in moved],
    )  # fmt: skip
    write_text(ladder.out / "report.html", page)
    return found


def summary(found: Sequence[Rung]) -> Summary:
    """What carries the greatest depth, where the others end, and which scheme to take."""
    reached = {scheme: max((rung.layers for rung in found if rung.scheme == scheme and rung.largest_rate), default=0)
               for scheme in dict.fromkeys(rung.scheme for rung in found)}  # fmt: skip
    if not any(reached.values()):
        return Summary("serious" if found else "note", "No run of this ladder trains." if found else "No run has ended yet.")
    deepest = max(reached.values())
    carries = [scheme for scheme, layers in reached.items() if layers == deepest]
    ends = [f"{scheme} ends at {layers or 'no'} layers" for scheme, layers in reached.items() if layers < deepest]
    top = {rung.scheme: rung for rung in found if rung.layers == deepest and rung.scheme in carries}
    best = min(top.values(), key=lambda rung: rung.loss)
    verb = "train" if len(carries) > 1 else "trains"
    what = "; ".join([f"{', '.join(carries)} {verb} at {deepest} layers", *ends]) + "."
    todo = f"At {deepest} layers take {best.scheme} with a rate of {best.best_rate:g}: its loss is the lowest, {best.loss:.3f}."
    return Summary("note", what, todo=todo, badge="what carries which depth")


def cells(rung: Rung) -> list[str]:
    """A rung as a row of the table."""
    none = "–"
    return [
        rung.scheme, str(rung.layers), f"{rung.loss:.3f}" if rung.seeds else none,
        f"{rung.deviation:.3f}" if rung.seeds > 1 else none, str(rung.seeds), f"{rung.best_rate:g}" if rung.seeds else none,
        f"{rung.largest_rate:g}" if rung.largest_rate else "none", f"{rung.trained} of {rung.runs}", f"{rung.hours:.2f}",
    ]  # fmt: skip


def moved_cells(one: Moved) -> list[str]:
    """How far a scheme's best rate moves, as a row of the table."""
    lost = "not run" if math.isnan(one.lost) else f"{one.lost:.3f}" if math.isfinite(one.lost) else "does not train"
    rates = [f"{rate:g}" for rate in (one.shallow_rate, one.deep_rate)]
    return [one.scheme, f"{one.shallow} → {one.deep}", " → ".join(rates), f"{one.factor:.3g}", lost]
