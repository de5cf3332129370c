"""The ladder's page: what carries which depth, as a summary, pictures and a table, with the rows as CSV and JSON beside it."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bathy.errors import require
from bathy.files import origin, replacing, write_json, write_text
from bathy.lab.ladder.ladder import Ladder
from bathy.lab.ladder.results import TRAINS, Row, Rung, rungs, transfer
from bathy.lab.sweep.results import rows as sweep_rows
from bathy.lab.sweep.study import connect
from bathy.pages import Summary, render_page
from bathy.tasks import make_task, read_config
from bathy.train.log import read_log


def flat_rows(ladder: Ladder, storage: str = "") -> list[Row]:
    """One row for each run of the ladder that has begun: its place, what became of it, and its CPU time."""
    sweep = ladder.sweep(storage)
    layers, scheme = list(sweep.grid.axes)[:2]
    return [
        {
            "scheme": row[scheme],
            "layers": int(row[layers]),
            "lr": float(row["optim.lr"]),
            "seed": int(row["train.seed"]),
            "state": row["state"],
            "loss": row["loss"],
            "why": row["why"],
            "seconds": _seconds(sweep.out / str(row["folder"])) if row["folder"] else 0.0,
        }
        for row in sweep_rows(connect(sweep), sweep.grid)
    ]


def _seconds(folder: Path) -> float:
    """Time of a run's updates: tokens over tokens per second, row by row."""
    rows = [row for row in read_log(folder / "metrics.jsonl") if row.get("tokens_per_second")]
    steps = [0, *(row["step"] for row in rows)]
    tokens = read_config(folder / "config.toml").train.tokens if (folder / "config.toml").exists() else 0
    return sum((b - a) * tokens / row["tokens_per_second"] for a, b, row in zip(steps, steps[1:], rows, strict=False))


def report(ladder: Ladder, storage: str = "") -> list[Rung]:
    """Write ladder.csv, ladder.json and report.html into the ladder's folder; returns its rungs."""
    rows = flat_rows(ladder, storage)
    config = read_config(ladder.config, ladder.settings)
    chance = make_task(config).chance()
    found = rungs(rows, chance)
    with replacing(ladder.out / "ladder.csv") as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    moved = {scheme: transfer(found, scheme) for scheme in ladder.schemes}
    facts = {"chance": chance, "trains": TRAINS, "transfer": moved, "rungs": [asdict(rung) for rung in found], "runs": rows}
    write_json(ladder.out / "ladder.json", _plain(facts | {"origin": origin(config=config.model_dump(mode="json"))}))
    charts = {name: draw(found) for name, draw in CHARTS.items()} if found else {}
    names = {name: (draw.__doc__ or "").strip() for name, draw in CHARTS.items()}
    page = render_page(
        "bathy.lab.ladder", "report.html", charts, rungs=found, chance=chance, trains=TRAINS, figures=names if found else {},
        deepest=max((rung.layers for rung in found), default=0), origin=origin(), summary=summary(found),
        table=[_cells(rung) for rung in found], moved=[(scheme, f"{factor:.3g}") for scheme, factor in moved.items()],
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


def _cells(rung: Rung) -> list[str]:
    """A rung as a row of the table."""
    none = "–"
    return [
        rung.scheme, str(rung.layers), f"{rung.loss:.3f}" if rung.seeds else none,
        f"{rung.deviation:.3f}" if rung.seeds > 1 else none, str(rung.seeds), f"{rung.best_rate:g}" if rung.seeds else none,
        f"{rung.largest_rate:g}" if rung.largest_rate else "none", f"{rung.trained} of {rung.runs}", f"{rung.hours:.2f}",
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    """The value with what JSON cannot hold (inf, nan) as null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def loss_chart(found: Sequence[Rung]) -> Any:
    """Best validation loss against depth, each scheme at its own best rate; bars are one standard deviation over seeds."""
    points = [asdict(rung) | {"low": rung.loss - rung.deviation, "high": rung.loss + rung.deviation}
              for rung in found if math.isfinite(rung.loss)]  # fmt: skip
    return _lines(points, "loss", "validation loss, nats", zero=False)


def rate_chart(found: Sequence[Rung]) -> Any:
    """Largest learning rate at which every seed trains, against depth."""
    return _lines([asdict(rung) for rung in found if rung.largest_rate], "largest_rate", "learning rate", log=True)


def best_rate_chart(found: Sequence[Rung]) -> Any:
    """Best learning rate against depth: a level line transfers from shallow to deep."""
    return _lines([asdict(rung) for rung in found if math.isfinite(rung.loss)], "best_rate", "learning rate", log=True)


CHARTS = {"loss": loss_chart, "largest_rate": rate_chart, "best_rate": best_rate_chart}


def _lines(points: list[dict[str, Any]], field: str, title: str, log: bool = False, zero: bool = True) -> Any:
    alt = require("altair", "clinic")
    scale = alt.Scale(type="log") if log else alt.Scale(zero=zero)
    base = alt.Chart(alt.Data(values=points), width=360, height=240).encode(
        x=alt.X("layers:Q", scale=alt.Scale(type="log", base=2), title="layers"),
        color=alt.Color("scheme:N", title=None),
        strokeDash=alt.StrokeDash("scheme:N", title=None),
    )
    y = alt.Y(f"{field}:Q", scale=scale, title=title)
    chart = base.mark_line().encode(y=y) + base.mark_point(filled=True, size=60).encode(
        y=y, tooltip=["scheme:N", "layers:Q", f"{field}:Q"]
    )
    return (
        chart + base.mark_rule().encode(y=alt.Y("low:Q", title=title), y2="high:Q") if points and "low" in points[0] else chart
    )
