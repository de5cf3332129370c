"""Figure 3: the gradient at every sub-layer of 18-layer models at the start, Theorem 1 and Remark 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bathy.clinic import plots
from bathy.clinic.examination import study
from bathy.clinic.exams.gradients import gradients
from bathy.clinic.laws import theorem_1
from bathy.clinic.readings import Reading, groups, select
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, over_seeds, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import both

MODELS = ("post_ln", "pre_ln", "admin", "hybrid")
LAYERS = (18, 18)


def measure(lab: Lab) -> Measured:
    """Gradients of half as many models of each kind as the scale draws, at least 8."""
    seeds, batch = range(max(8, lab.scale.draws // 2)), lab.batch()
    found = Measured()
    for name in MODELS:
        found.readings += study(lambda seed, name=name: lab.model(both(name), LAYERS, seed), batch, seeds, [gradients], name)  # type: ignore[misc]
    found.readings = [row for row in found.readings if row.quantity in ("gradient", "gradient_variance")]
    found.numbers = {"seeds": float(len(seeds)), **numbers(found.readings)}
    return found


def numbers(readings: Sequence[Reading]) -> dict[str, Value]:
    """Model.stack: gradient at the first sub-layer over that at the last; Theorem 1's ratios; where the decoder's drop lies."""
    result: dict[str, Value] = {}
    for (model, stack), rows in groups(select(readings, "gradient"), "model", "stack"):
        result[f"{model}.{stack}"] = math.exp(statistics.fmean(first_to_last(own) for _, own in groups(rows, "seed")))
    for law in theorem_1(readings):
        result[f"{law.model}.{law.stack}_ratio"] = law.mean
        result[f"{law.model}.{law.stack}_holds"] = law.holds
    for model in ("post_ln", "admin"):
        rows = select(readings, "gradient", model=model, stack="decoder")
        if rows:
            shares = [across_cross_attention(own) for _, own in groups(rows, "seed")]
            result[f"{model}.share_across_cross_attention"] = statistics.fmean(shares)
    return result


def first_to_last(rows: Sequence[Reading]) -> float:
    """ln of ‖∂L/∂x_1‖ / ‖∂L/∂x_n‖ in one stack of one model."""
    down = {row.index: row.value for row in rows}
    return math.log(down[1] / down[max(down)])


def across_cross_attention(rows: Sequence[Reading]) -> float:
    """Share of the fall of ln ‖∂L/∂x_i‖ from the last sub-layer to the first that lies across cross-attentions."""
    down = {row.index: math.log(row.value) for row in rows}
    attentions = [row.index for row in rows if row.kind == "cross_attention" and row.index > 1]
    return sum(down[i] - down[i - 1] for i in attentions) / (down[max(down)] - down[1])


def table(numbers: Mapping[str, Value]) -> Table:
    """One row a model."""
    said = {"post_ln": "decoder only", "pre_ln": "none", "hybrid": "none", "admin": "decoder only"}
    rows = []
    for model in MODELS:
        names = [f"{model}.{part}" for part in ("encoder", "decoder", "encoder_ratio", "encoder_holds", "decoder_ratio")]
        rows.append([f"`{model}`", *(shown(numbers, name) for name in names), said[model]])
    columns = ["18L-18L", "encoder, first / last", "decoder, first / last", "encoder Var ratio a step", "holds at"]
    return Table([*columns, "decoder Var ratio a step", "paper: vanishing"], rows)


def draw(measured: Measured) -> Any:
    """Relative gradient norms, log scale, models side by side."""
    return plots.gradients(over_seeds(select(measured.readings, "gradient")))


FIGURE_3 = Item(
    "figure-3",
    "Figure 3: gradients at the start",
    "The gradient at every sub-layer's output, relative to the largest of its network: only Post-LN decoders vanish, and "
    "the drop lies across cross-attention. Geometric means over seeds.",
    {"tiny": Needs("toy corpus", 0.03, 1.0), "small": Needs("Multi30k", 0.05, 1.5), "paper": Needs("WMT'14 En-De", 0.5, 12.0)},
    measure,
    table,
    draw,
)
