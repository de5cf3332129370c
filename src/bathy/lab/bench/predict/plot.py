"""The calibration plot: of the runs that were told a probability, how many failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bathy.errors import require

if TYPE_CHECKING:
    import altair


def calibration_plot(looks: dict[str, Any]) -> altair.Chart:
    """One panel for each look: share that failed over the probability told, a point for each tenth, larger for more runs."""
    alt = require("altair", "clinic")
    rows = [
        {"look": look, "judged on": part, "told": told, "failed": failed, "runs": runs}
        for look, judged in looks.items()
        for part, found in judged.items()
        if part in ("family left out", "held out")
        for told, failed, runs in found["calibration"]
    ]
    square = alt.Scale(domain=[0, 1])
    points = alt.Chart().mark_circle(opacity=0.8).encode(
        x=alt.X("told:Q", scale=square, title="probability of failing that was told"),
        y=alt.Y("failed:Q", scale=square, title="share that failed"),
        size=alt.Size("runs:Q", scale=alt.Scale(range=[20, 500])),
        color=alt.Color("judged on:N", scale=alt.Scale(range=["#3b7dd8", "#d1495b"])),
    )  # fmt: skip
    line = alt.Chart().mark_rule(strokeDash=[4, 4], color="#8a8f98").encode(
        x=alt.datum(0), y=alt.datum(0), x2=alt.datum(1), y2=alt.datum(1)
    )  # fmt: skip
    panels = alt.layer(line, points, data=alt.Data(values=rows)).properties(width=260, height=260)
    return panels.facet(alt.Facet("look:N", title=None), columns=2)
