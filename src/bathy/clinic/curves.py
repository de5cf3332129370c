"""Metrics of runs over their updates, one panel per metric and one line per run: for the demo, the post-mortem and `watch`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bathy.clinic.plots import by_model, faceted

MOST_POINTS = 400
"""Points of a line at most; of more, the lowest and the highest of each stretch, so that a spike stays."""
Row = Mapping[str, Any]


def curves(runs: Mapping[str, Sequence[Row]], panels: Mapping[str, str], title: str = "", height: int = 180) -> Any:
    """A chart of the runs' rows; `panels` is metric to heading. Nothing where no row has any of them."""
    rows = [
        {"panel": label, "model": name, "update": step, "value": value}
        for key, label in panels.items()
        for name, own in runs.items()
        for step, value in thinned([(row["step"], row[key]) for row in own if _is_number(row.get(key)) and "step" in row])
    ]
    return faceted(rows, title, lambda alt: alt.Chart().mark_line(point=len(rows) < 100).encode(
        x=alt.X("update:Q"), y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        tooltip=["model:N", "update:Q", "value:Q"], **by_model(alt),
    ), height=height)  # fmt: skip


def thinned(points: Sequence[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """The points, or the extremes of evenly long stretches of them."""
    if len(points) <= most:
        return list(points)
    width = math.ceil(2 * len(points) / most)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), width):
        stretch = points[start : start + width]
        kept += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
