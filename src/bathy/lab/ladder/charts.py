"""The ladder's pictures: best loss, largest rate that trains, loss by rate, and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from bathy.clinic.plots import faceted
from bathy.errors import require
from bathy.lab.ladder.results import Row, Rung, trains
from bathy.pages import CATEGORIES

APART = 0.05
"""By how much of an octave the marks of two schemes at one depth stand apart, so that none hides another."""


def loss_chart(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> Any:
    """Best validation loss against depth, each scheme at its own best rate; bars are one standard deviation over seeds."""
    points = [asdict(rung) | {"y": rung.loss, "low": rung.loss - rung.deviation, "high": rung.loss + rung.deviation}
              for rung in found if math.isfinite(rung.loss)]  # fmt: skip
    alt = require("altair", "clinic")
    base, lines = _lines(alt, points, alt.Y("y:Q", scale=alt.Scale(zero=False), title="validation loss, nats"))
    return lines + base.mark_rule().encode(y="low:Q", y2="high:Q")


def rate_chart(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> Any:
    """Largest learning rate at which every seed trains, against depth; a cross at the bottom: none does.

    Schemes with the same rate are drawn a little apart."""
    rates = sorted({row["lr"] for row in rows})
    lowest = min(rates, default=1.0) / 2
    order = list(dict.fromkeys(rung.scheme for rung in found))
    points = [asdict(rung) | {"y": (rung.largest_rate or lowest) * 2 ** (2 * APART * order.index(rung.scheme)),
                              "trains": "trains" if rung.largest_rate else "none"} for rung in found]  # fmt: skip
    alt = require("altair", "clinic")
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=rates, format="~g"),
        title="learning rate",
    )
    shape = alt.Shape("trains:N", legend=None, scale=alt.Scale(domain=["trains", "none"], range=["circle", "cross"]))
    return _lines(alt, points, y, shape)[1]


def transfer_chart(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> Any:
    """Validation loss of the runs that train against their learning rate, a line for each depth.

    Where the lowest points stand above each other, the best rate transfers."""
    means: dict[tuple[str, int, float], list[float]] = {}
    for row in rows:
        if trains(row, chance):
            means.setdefault((row["scheme"], row["layers"], row["lr"]), []).append(row["loss"])
    points = [{"panel": scheme, "layers": layers, "lr": lr, "loss": sum(losses) / len(losses)}
              for (scheme, layers, lr), losses in means.items()]  # fmt: skip
    return faceted(points, "", _by_rate(sorted({row["lr"] for row in rows})), shared=True)


def _by_rate(rates: Sequence[float]) -> Callable[[Any], Any]:
    def draw(alt: Any) -> Any:
        scale = alt.Scale(type="log", nice=False, domain=[min(rates) / 1.2, max(rates) * 1.2])
        base = alt.Chart().encode(
            x=alt.X("lr:Q", scale=scale, axis=alt.Axis(values=rates, format="~g"), title="learning rate"),
            y=alt.Y("loss:Q", scale=alt.Scale(zero=False), title="validation loss, nats"),
            color=alt.Color("layers:O", title="layers", scale=alt.Scale(scheme="viridis")),
        )
        return base.mark_line() + base.mark_point(filled=True, size=40).encode(tooltip=["layers:O", "lr:Q", "loss:Q"])

    return draw


def cost_chart(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> Any:
    """Minutes of one core for a run's updates, mean over its runs, against depth."""
    points = [asdict(rung) | {"y": 60 * rung.hours / rung.runs} for rung in found if rung.hours]
    alt = require("altair", "clinic")
    return _lines(alt, points, alt.Y("y:Q", scale=alt.Scale(type="log", nice=False, padding=12), title="minutes per run"))[1]


CHARTS = {"loss": loss_chart, "largest_rate": rate_chart, "transfer": transfer_chart, "cost": cost_chart}


def draw_all(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> dict[str, Any]:
    """Every picture for which there is something to draw."""
    drawn = {name: draw(found, rows, chance) for name, draw in CHARTS.items()} if found else {}
    return {name: chart for name, chart in drawn.items() if chart is not None}


def caption(name: str) -> str:
    """What a picture shows."""
    return " ".join((CHARTS[name].__doc__ or "").split())


def _lines(alt: Any, points: list[dict[str, Any]], y: Any, shape: Any = None) -> tuple[Any, Any]:
    """What is common to the marks, and a line with points for each scheme, against depth; depths of schemes a little apart."""
    order = list(dict.fromkeys(point["scheme"] for point in points))
    depths = sorted({point["layers"] for point in points})
    shifted = [point | {"x": point["layers"] * 2 ** (APART * (order.index(point["scheme"]) - (len(order) - 1) / 2))}
               for point in points]  # fmt: skip
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    base = alt.Chart(alt.Data(values=shifted), width=360, height=240).encode(
        x=alt.X("x:Q", scale=scale, axis=alt.Axis(values=depths, format="d"), title="layers"),
        color=alt.Color("scheme:N", title=None, sort=order, scale=alt.Scale(range=list(CATEGORIES))),
    )
    dots = base.mark_point(filled=True, size=80).encode(y=y, tooltip=["scheme:N", "layers:Q", "loss:Q", "largest_rate:Q"])
    return base, base.mark_line().encode(y=y) + (dots if shape is None else dots.encode(shape=shape))
