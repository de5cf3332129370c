"""What a sweep found: a table, a file of rows, and a heat map like the paper's Figure 10."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy import console
from bathy.clinic import plots
from bathy.errors import MissingExtraError, require
from bathy.files import replacing
from bathy.lab.sweep.grid import Grid
from bathy.lab.sweep.study import Sweep, connect

if TYPE_CHECKING:
    from optuna import Study

Row = dict[str, Any]
STATES = {"COMPLETE": "trained", "PRUNED": "stopped", "RUNNING": "running", "WAITING": "waiting", "FAIL": "failed"}


def rows(study: Study, grid: Grid | None = None) -> list[Row]:
    """One row per point of the grid, or of the whole study: its values, its latest trial's state, and what the run gave."""
    latest: dict[tuple[str, ...], Row] = {}
    for trial in study.get_trials(deepcopy=False):
        point = trial.user_attrs.get("point")
        if point is None or "skipped" in trial.user_attrs:
            continue
        found = {key: trial.user_attrs.get(key) for key in ("loss", "ppl", "seconds", "why", "folder")}
        latest[tuple(point.values())] = {**point, "state": STATES[trial.state.name], **found}
    wanted = [*latest] if grid is None else [tuple(point.values()) for point in grid.points]
    return [latest[values] for values in wanted if values in latest]


def write(path: Path, found: Sequence[Row]) -> None:
    """The rows as CSV."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]) if found else [])
        writer.writeheader()
        writer.writerows(found)


def show(found: Sequence[Row], title: str) -> None:
    """Print the rows."""
    columns = [name for name in (found[0] if found else {}) if name != "why" or any(row["why"] for row in found)]
    cells = [["–" if row[name] is None else row[name] for name in columns] for row in found]
    console.out.print(console.table(title, columns, cells))


def chart(found: Sequence[Row], grid: Grid, measure: str = "ppl") -> Any:
    """The measure over the last two axes (x the last), a panel for each combination of the others.

    The better the lighter; a run that was stopped is a dark cell marked failed, as in Figure 10. A row's
    `mark` stands behind its value.
    """
    alt: Any = require("altair", "clinic")
    require("vl_convert", "clinic")
    *others, y, x = grid.axes if len(grid.axes) > 1 else ["", *grid.axes]
    drawn = [
        _cell(row, measure, [name for name in others if name], y, x) for row in found if row["state"] in ("trained", "stopped")
    ]
    order = {axis: list(grid.axes[axis]) for axis in (y, x) if axis}
    base = alt.Chart(alt.Data(values=drawn)).encode(
        x=alt.X("x:O", sort=order[x], title=_label(x), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:O", sort=order.get(y, [])[::-1], title=_label(y)),
    )
    colour = alt.Color("value:Q", title=measure, scale=alt.Scale(scheme="viridis", reverse=True))
    cells = base.transform_filter("isValid(datum.value)").mark_rect().encode(color=colour)
    cells += base.transform_filter("!isValid(datum.value)").mark_rect(color="#222222")
    middle = _middle([row["value"] for row in drawn if row["value"] is not None])
    dark = f"!isValid(datum.value) || datum.value > {middle}"
    text = base.mark_text(fontSize=12).encode(text="text:N", color=alt.condition(dark, alt.value("white"), alt.value("black")))
    size = {"width": 70 * len(order[x]), "height": 32 * max(1, len(order.get(y, [])))}
    layered = (cells + text).properties(**size)
    return layered.facet(column=alt.Column("panel:N", title=None, sort=[row["panel"] for row in drawn])) if others else layered


def report(sweep: Sweep) -> None:
    """Print the table; write it as results.csv, and the heat map as heat_map.png and .svg, into the sweep's folder."""
    found = rows(connect(sweep), sweep.grid)
    write(sweep.out / "results.csv", found)
    show(found, f"{sweep.name}: {sum(row['state'] == 'trained' for row in found)} of {len(sweep.grid.points)} trained")
    try:
        drawn = chart(found, sweep.grid)
    except MissingExtraError as error:
        console.err.print(f"no heat map: {error}", markup=False)
        return
    for kind in ("svg", "png"):
        plots.save(drawn, sweep.out / f"heat_map.{kind}")


def _cell(row: Row, measure: str, others: Sequence[str], y: str, x: str) -> Row:
    stopped, value = row["state"] == "stopped", row[measure]
    shown = None if stopped or value is None or not math.isfinite(value) else float(value)
    panel = ", ".join(str(row[name]) for name in others)
    text = "failed" if shown is None else f"{shown:.3g}{row.get('mark', '')}"
    place = {"x": row[x], "y": row[y] if y else "", "panel": panel}
    return place | {"value": shown, "state": row["state"], "text": text}


def _label(axis: str) -> str:
    return axis.split("+")[0].split(".")[-1] if axis else ""


def _middle(values: Sequence[float]) -> float:
    return (min(values) + max(values)) / 2 if values else 0.0
