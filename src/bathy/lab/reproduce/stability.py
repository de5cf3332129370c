"""Figure 4: how far the encoder's output moves when the weights do, by depth; Theorem 2 and its constant C."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bathy.clinic import plots
from bathy.clinic.examination import study
from bathy.clinic.exams.activations import activations
from bathy.clinic.exams.stability import random_change, step_change
from bathy.clinic.laws import Growth, growths, theorem_2
from bathy.clinic.measures import fit
from bathy.clinic.probe import Subject, examined
from bathy.clinic.readings import Reading, mean_over, select
from bathy.console import track
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import THREE, both
from bathy.sites.batch import Batch

KEPT = ("output_change", "step_change", "branch_share", "branch_variance", "input_variance")
STEP_SEEDS = 3
"""Fresh models of every depth for the step of Adam."""


def measure(lab: Lab) -> Measured:
    """Random perturbations of the deepest encoder, whose prefixes are all depths; one step of Adam of a fresh model a depth."""
    source, seeds = lab.batch()[0], range(lab.scale.draws)
    rows: list[Reading] = []
    for name in THREE:
        build = lambda seed, name=name: lab.model(both(name), (lab.scale.deepest, 0), seed)  # noqa: E731
        rows += study(build, source, seeds, [activations, random_change], name)
        rows += steps(lab, name)
    rows = [row for row in rows if row.quantity in KEPT]
    return Measured({"seeds": float(len(seeds)), "seeds.adam": float(STEP_SEEDS), **numbers(rows)}, rows)


def constant(model: nn.Module, batch: Batch) -> float:
    """Theorem 2's C = output change / Σβ²_ii of the whole encoder under random perturbation."""
    with examined(model, batch) as subject:
        rows = [*activations(subject), *random_change(subject, draws=4)]
    change = select(rows, "output_change", stack="encoder")
    deepest = [row.value for row in change if row.layer == max(row.layer for row in change)]
    return statistics.fmean(deepest) / sum(row.value for row in select(rows, "branch_share", stack="encoder"))


def steps(lab: Lab, name: str) -> list[Reading]:
    """The change of an N-layer encoder's output by one step of Adam, N-layer decoder and loss on top."""
    rows: list[Reading] = []

    def one_step(subject: Subject) -> list[Reading]:
        return step_change(subject, lab.scale.step)

    for depth in track(lab.scale.depths, f"steps of {name}"):
        build = lambda seed, d=depth: lab.model(both(name), (d, d), seed)  # noqa: E731
        found = study(build, lab.batch(), range(STEP_SEEDS), [one_step], name)
        rows += select(found, "step_change", stack="encoder", layer=depth)
    return rows


def numbers(rows: Sequence[Reading]) -> dict[str, Value]:
    """Fits of the change against depth, by scheme; Theorem 2's regression."""
    result: dict[str, Value] = {}
    found = growths(select(rows, stack="encoder"))
    for growth in found:
        result |= {f"{growth.model}.{name}": value for name, value in _fits(growth).items()}
        result |= {f"{growth.model}.{name}": value for name, value in _adam(rows, growth).items()}
    law = theorem_2(found)
    own = {f"theorem_2.c_{model}": c for model, c in law.own.items()}
    return result | own | {"theorem_2.r2": law.r2, "theorem_2.c_ratio": max(law.own.values()) / min(law.own.values())}


def _fits(growth: Growth) -> dict[str, float]:
    last = {"r2_linear": growth.linear.r2, "r2_log": growth.log.r2, "r2_plain_log": growth.plain_log.r2}
    return last | {"exponent": growth.slope, "c": growth.c, "deepest_change": growth.changes[-1]}


def _adam(rows: Sequence[Reading], growth: Growth) -> dict[str, float]:
    """R² of the step's change against N and against log(N + c), and its size at 18 layers."""
    change = mean_over(select(rows, "step_change", model=growth.model), "layer")
    depths = sorted(depth for (depth,) in change)
    values = [change[depth,] for depth in depths]
    linear, log = fit(depths, values), fit([math.log(n + growth.c) for n in depths], values)
    return {"adam_r2_linear": linear.r2, "adam_r2_log": log.r2, "adam_change_18": change[18,], "adam_deepest": values[-1]}


def table(numbers: Mapping[str, Value]) -> Table:
    """One row a scheme; the paper's R² beside ours."""
    names = ("r2_linear", "r2_log", "r2_plain_log", "exponent", "adam_r2_linear", "adam_r2_log", "adam_change_18")
    paper = {"post_ln": "0.99 linear; Adam 0.75", "pre_ln": "0.99 log; Adam 0.75", "admin": "as Pre-LN"}
    rows = [
        [f"`{s}`", *(shown(numbers, f"{s}.{n}") for n in names), shown(numbers, f"theorem_2.c_{s}"), paper[s]] for s in THREE
    ]
    columns = ["", "R² in N", "R² in log(N + c)", "R² in log N", "exponent of N", "Adam: R² in N", "Adam: R² in log(N + c)"]
    return Table([*columns, "Adam: change at 18", "C of Theorem 2", "paper: R²"], rows)


def draw(measured: Measured) -> Any:
    """Change against depth, random and Adam side by side."""
    return plots.output_change(measured.readings)


FIGURE_4 = Item(
    "figure-4",
    "Figure 4: output change and Theorem 2",
    "How much an encoder's output changes when its weights do, against its depth N: under random perturbation as O(N) for "
    "Post-LN and O(log N) for Pre-LN and Admin; under one step of Adam less clearly so.",
    {"tiny": Needs("toy corpus", 0.06, 1.0), "small": Needs("Multi30k", 0.15, 1.5), "paper": Needs("WMT'14 En-De", 2.0, 16.0)},
    measure,
    table,
    draw,
)
