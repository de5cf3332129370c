"""Figures after the paper's: each a function from rows to an Altair chart, one panel for every model and stack.

`save(chart, path)` writes PNG, SVG, PDF or JSON as the name ends. docs/figures.md says how to read each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.clinic.laws import growths
from bathy.clinic.readings import Reading, groups, mean_over, select
from bathy.clinic.rules import at_last, relative_updates
from bathy.errors import ConfigError, require
from bathy.files import replacing
from bathy.pages import CATEGORIES

if TYPE_CHECKING:
    import altair

BLUE, RED, GREEN, PINK, OCHRE, GREY, VIOLET, _ = CATEGORIES
KINDS = {"input": GREY, "self_attention": BLUE, "cross_attention": RED, "ffn": GREEN, "unknown": OCHRE}
ROLES = {"q": BLUE, "k": PINK, "v": VIOLET, "out": RED, "fc1": GREEN, "fc2": OCHRE}
MOST_CELLS = 100
"""Sub-layers that a matrix of dependencies shows at most in each direction; of more, evenly spaced ones."""

Rows = list[dict[str, Any]]


def panel(model: str, stack: str, step: int = 0) -> str:
    """The heading of a panel."""
    return " · ".join(part for part in (model, stack, f"update {step}" if step else "") if part)


def gradients(readings: Sequence[Reading]) -> altair.Chart | None:
    """Figure 3: ‖∂L/∂x_i‖ of every sub-layer's output, relative to the largest in its network, log scale."""
    rows = []
    for (model, step), own in groups(_last_steps(readings, "gradient"), "model", "step"):
        largest = max((row.value for row in own), default=0.0)
        rows += [
            {
                "panel": panel(model, row.stack, step),
                "i": row.index,
                "kind": row.kind,
                "gradient": row.value / largest,
                "site": row.site,
            }
            for row in own
            if largest > 0 and row.value > 0
        ]
    return faceted(rows, "Gradient at each sub-layer", lambda alt: alt.Chart().mark_bar().encode(
        x=alt.X("i:O", title="sub-layer", axis=_ordinal(alt)),
        y=alt.Y("gradient:Q", scale=alt.Scale(type="log"), title="relative gradient norm"),
        y2=alt.datum(_floor(rows, "gradient")), color=_colour(alt, "kind", KINDS, rows),
        tooltip=["site:N", "kind:N", "gradient:Q"],
    ), shared=True)  # fmt: skip


def output_change(readings: Sequence[Reading]) -> altair.Chart | None:
    """Figure 4: output change against depth under random perturbation and one optimiser step, with the better of two fits."""
    rows: Rows = []
    for quantity, label in (("output_change", "random perturbation"), ("step_change", "one step of Adam")):
        for found in growths(readings, quantity):
            name = panel(found.model, found.stack, found.step)
            straight = found.linear.r2 >= found.log.r2
            fit = found.linear if straight else found.log
            law = f"{'linear in N' if straight else 'log(N + c)'}, R² {fit.r2:.3f}"
            for depth, change in zip(found.depths, found.changes, strict=True):
                at = fit.slope * (depth if straight else math.log(depth + found.c)) + fit.intercept
                row = {"panel": label, "N": depth, "model": name, "change": change, "law": law}
                rows.append(row | ({"fit": at} if at > 0 else {}))

    def draw(alt: Any) -> Any:
        base = alt.Chart().encode(
            x=alt.X("N:Q", title="layers", scale=alt.Scale(type="log", nice=False)), color=alt.Color("model:N", title=None)
        )
        points = base.mark_point(filled=True, size=30).encode(
            y=alt.Y("change:Q", scale=alt.Scale(type="log"), title="output change"),
            tooltip=["model:N", "N:Q", "change:Q", "law:N"],
        )
        return alt.layer(base.mark_line(opacity=0.6).encode(y="fit:Q"), points)  # fmt: skip

    return faceted(rows, "Output change against depth", draw)


def dependency(readings: Sequence[Reading]) -> altair.Chart | None:
    """Figures 7 and 8: β_ij, how much of sub-layer i's output comes from branch j (0 is the stack's input)."""
    rows: Rows = []
    for (model, stack, step), own in groups(select(readings, "beta"), "model", "stack", "step"):
        stride = math.ceil(max(row.index for row in own) / MOST_CELLS)
        rows += [
            {"panel": panel(model, stack, step), "i": row.index, "j": row.j, "beta": round(row.value, 4)}
            for row in own
            if row.index % stride == 0 and row.j % stride == 0 and math.isfinite(row.value)
        ]
    return faceted(rows, "Layer dependency β", lambda alt: alt.Chart().mark_rect(aria=False).encode(
        x=alt.X("j:O", title="branch j", axis=_ordinal(alt)), y=alt.Y("i:O", title="sub-layer i", axis=_ordinal(alt)),
        color=alt.Color("beta:Q", title="β", scale=alt.Scale(scheme="viridis", domain=[0, 1], clamp=True)),
        tooltip=["i:Q", "j:Q", "beta:Q"],
    ), height=300)  # fmt: skip


def updates(readings: Sequence[Reading]) -> altair.Chart | None:
    """Figure 11: ‖∇W‖ and ‖W_{t+1} − W_t‖ of every matrix, each relative to the largest of its model, by layer."""
    rows: Rows = []
    for quantity, label in (("weight_gradient", "gradient"), ("weight_update", "update")):
        for (model, step), own in groups(_last_steps(readings, quantity), "model", "step"):
            largest = max((row.value for row in own if math.isfinite(row.value)), default=0.0)
            rows += [
                {"panel": f"{label} · {panel(model, row.stack, step)}", "layer": row.layer, "role": row.role,
                 "norm": row.value / largest, "kind": row.kind, "site": row.site}
                for row in own if largest > 0 and row.value > 0
            ]  # fmt: skip
    return faceted(rows, "Gradient and update of each matrix", lambda alt: alt.Chart().mark_point(filled=True).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("norm:Q", scale=alt.Scale(type="log"), title="relative norm"),
        color=_colour(alt, "role", ROLES, rows), shape=alt.Shape("kind:N", title="sub-layer"),
        tooltip=["site:N", "role:N", "norm:Q"],
    ), shared=True)  # fmt: skip


def scales(readings: Sequence[Reading]) -> altair.Chart | None:
    """Branch share β²_ii and the variance of the stream, sub-layer by sub-layer."""
    rows: Rows = []
    for quantity, label in (("branch_share", "branch share β²"), ("output_variance", "Var[x]")):
        rows += [
            {"panel": f"{label} · {row.stack}", "model": panel(row.model, "", row.step)} | _cell(row)
            for row in _last_steps(readings, quantity)
            if row.value > 0
        ]
    return faceted(rows, "Branch share and scale of the stream", lambda alt: alt.Chart().mark_line(point=True).encode(
        x=alt.X("i:Q", title="sub-layer", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("value:Q", scale=alt.Scale(type="log"), title=None),
        tooltip=["model:N", "i:Q", "kind:N", "value:Q"], **by_model(alt),
    ))  # fmt: skip


def attention(readings: Sequence[Reading]) -> altair.Chart | None:
    """Entropy of the attention (1 looks everywhere, 0 at one key) and the largest logit, by layer."""
    rows: Rows = []
    for quantity, label in (("attention_entropy", "entropy"), ("largest_logit", "largest logit")):
        rows += [
            {"panel": f"{label} · {panel(row.model, row.stack, row.step)}"} | _cell(row)
            for row in _last_steps(readings, quantity)
        ]
    return faceted(rows, "Attention", lambda alt: alt.Chart().mark_line(point=True).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1)), y=alt.Y("value:Q", title=None),
        color=_colour(alt, "kind", KINDS, rows), tooltip=["layer:Q", "kind:N", "value:Q"],
    ))  # fmt: skip


def history(readings: Sequence[Reading]) -> altair.Chart | None:
    """What a monitor saw over the updates: loss, Σβ² of each stack, mean relative update."""
    rows: Rows = []
    for (model,), own in groups(readings, "model"):
        if len({row.step for row in select(own, "branch_share")}) < 2:
            continue
        rows += [_point("loss", model, row.step, row.value) for row in select(own, "loss")]
        sums = mean_over(select(own, "branch_share"), "step", "stack", "index")
        for step, stack in dict.fromkeys((step, stack) for step, stack, _ in sums):
            total = sum(share for key, share in sums.items() if key[:2] == (step, stack))
            rows.append(_point(f"Σβ² · {stack}", model, step, total))
        rows += [_point("mean ‖ΔW‖/‖W‖", model, step, value) for step, value in relative_updates(own).items()]
    rows = [row for row in rows if math.isfinite(row["value"])]
    return faceted(rows, "Over the updates", lambda alt: alt.Chart().mark_line(point=True).encode(
        x=alt.X("update:Q"), y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        tooltip=["model:N", "update:Q", "value:Q"], **by_model(alt),
    ))  # fmt: skip


FIGURES: dict[str, Callable[[Sequence[Reading]], Any]] = {
    "gradients": gradients, "output_change": output_change, "dependency": dependency, "updates": updates,
    "scales": scales, "attention": attention, "history": history,
}  # fmt: skip
"""Figure name to its function, in the order of the report."""


def save(chart: altair.Chart, path: str | Path) -> None:
    """Write the chart as PNG, SVG, PDF or JSON, as the name ends."""
    path = Path(path)
    kind: Any = path.suffix.removeprefix(".")
    if kind not in ("png", "svg", "pdf", "json"):
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}; a figure is saved as .png, .svg, .pdf or .json")
    if kind == "svg":  # whose text is drawn with the reader's font, which may be wider than the one it was laid out with
        chart = chart.properties(padding={"left": 5, "top": 5, "bottom": 5, "right": 20})
    with replacing(path) as temporary:
        chart.save(str(temporary), format=kind, scale_factor=2 if kind == "png" else 1)


def faceted(rows: Rows, title: str, draw: Callable[[Any], Any], height: int = 180, shared: bool = False) -> Any:
    """A chart with one panel for each value of the rows' `panel`; `shared`: on one y scale. Nothing where there are no rows."""
    if not rows:
        return None
    alt = require("altair", "clinic")
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    rows = [row | {"order": panels.index(row["panel"])} for row in rows]  # a field: names have no place in Vega expressions
    order = alt.EncodingSortField("order", op="min")
    facet = alt.Facet("panel:N", title=None, sort=order, header=alt.Header(labelFontSize=12, labelLimit=300))
    chart = alt.layer(draw(alt), data=alt.Data(values=rows)).properties(width=300, height=height).facet(facet, columns=2)
    return chart.resolve_scale(x="independent", y="shared" if shared else "independent").properties(title=title)


def by_model(alt: Any) -> dict[str, Any]:
    """One line per model, told apart by colour and by dashes."""
    return {"color": alt.Color("model:N", title=None), "strokeDash": alt.StrokeDash("model:N", title=None)}


def _last_steps(readings: Sequence[Reading], quantity: str) -> list[Reading]:
    """Each model's rows of a quantity at its last step."""
    return [row for _, own in groups(select(readings, quantity), "model") for row in at_last(own, quantity)]


def _cell(row: Reading) -> dict[str, Any]:
    return {"i": row.index, "layer": row.layer, "kind": row.kind, "value": row.value}


def _point(label: str, model: str, step: int, value: float) -> dict[str, Any]:
    return {"panel": label, "model": model, "update": step, "value": value}


def _floor(rows: Rows, field: str) -> float:
    """A power of ten below all values, where bars on a log scale begin."""
    return 10.0 ** math.floor(math.log10(min((row[field] for row in rows), default=1.0)) - 1e-9)


def _colour(alt: Any, field: str, colours: dict[str, str], rows: Rows) -> Any:
    """The colours of the values that occur, in the table's order."""
    found = {row[field] for row in rows}
    own = {name: colour for name, colour in colours.items() if name in found}
    return alt.Color(f"{field}:N", title=None, scale=alt.Scale(domain=list(own), range=list(own.values())))


def _ordinal(alt: Any) -> Any:
    return alt.Axis(labelOverlap="greedy", labelAngle=0)
