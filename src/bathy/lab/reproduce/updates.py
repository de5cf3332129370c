"""Figures 5 and 11: gradients are unbalanced among attention's matrices, an adaptive optimiser's updates are not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor

from bathy.clinic import plots
from bathy.clinic.exams import snapshot, updates
from bathy.clinic.exams.gradients import gradients
from bathy.clinic.probe import examined
from bathy.clinic.readings import Reading, groups, select
from bathy.errors import require
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, over_seeds, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import Spec
from bathy.lab.runs import Run

SUBJECT = Spec("pre_ln_12", "pre_ln", 12)
"""The paper looks at a 12-layer Pre-LN model."""
ATTENTION = ("q", "k", "v", "out")
RATES = ("0.01", "0.1", "1.0")
"""Learning rates among which SGD has its choice."""


def measure_5(lab: Lab) -> Measured:
    """Spread of gradients and updates over all attention matrices; SGD against RAdam."""
    found = measure_11(lab)
    runs = sgd_runs(lab)
    trained = lab.train_all(runs)
    improvement = {spec.name: trained.by_seed(f"{spec.name}.improvement") for spec in runs}
    whole = set.intersection(*(set(per_seed) for per_seed in improvement.values()))
    best = {seed: max(own[seed] for name, own in improvement.items() if name != "radam") for seed in sorted(whole)}
    wanted = {f"{spec.name}.{name}" for spec in runs for name in ("loss", "improvement")}
    found.numbers |= {name: value for name, value in trained.numbers.items() if name in wanted} | {"sgd.improvement": best}
    return found


def sgd_runs(lab: Lab) -> list[Spec]:
    """A 6-layer Post-LN model by RAdam, and by SGD at several rates."""
    short = lab.short_changes()
    runs = [Spec("radam", "post_ln", 6, short, folder="sgd_radam")]
    return runs + [
        Spec(f"sgd_{i}", "post_ln", 6, (*short, "optim.name=sgd", f"optim.lr={rate}"), folder=f"sgd_{rate}")
        for i, rate in enumerate(RATES)
    ]


def measure_11(lab: Lab) -> Measured:
    """‖∇W‖ at each kept checkpoint and ‖W' − W‖ to the next one."""
    rows: list[Reading] = []
    for seed in lab.seed_list:
        rows += lab.readings(SUBJECT, seed, "updates", partial(_examine_run, lab.batch(), seed))
    return Measured(numbers(rows), rows)


def _examine_run(batch: tuple[Tensor, Tensor], seed: int, run: Run) -> list[Reading]:
    """Norms of attention's matrices, of their gradients at a checkpoint and of their change to the next."""
    rows: list[Reading] = []
    for (step, model), (_, later) in pairwise(run.checkpoints()):
        label = {"model": SUBJECT.name, "step": step}
        with examined(model, batch, label=label) as subject:
            rows += gradients(subject)
            before = snapshot(subject.sites)
        with examined(later, batch, label=label) as subject:
            rows += updates(subject, before)
    kept = ("weight_gradient", "weight_update")
    return [replace(row, seed=seed) for row in rows if row.quantity in kept and row.role in ATTENTION]


def numbers(rows: Sequence[Reading]) -> dict[str, Value]:
    """Spread over all attention matrices, and the geometric mean by matrix in self-attentions, relative to the largest."""
    result: dict[str, dict[str, float]] = {}
    names = {"weight_gradient": "gradient", "weight_update": "update"}
    for (quantity, seed), own in groups([row for row in rows if row.role in ATTENTION], "quantity", "seed"):
        logs = [[math.log10(row.value) for row in at] for _, at in groups(own, "step")]
        spread = statistics.fmean(statistics.pstdev(values) for values in logs)
        result.setdefault(f"{names[quantity]}.spread", {})[str(seed)] = spread
        mean = {role: _geometric(select(own, role=role, kind="self_attention")) for role in ATTENTION}
        for role, value in mean.items():
            result.setdefault(f"{names[quantity]}.{role}", {})[str(seed)] = value / max(mean.values())
    return dict(result)


def _geometric(rows: Sequence[Reading]) -> float:
    return math.exp(statistics.fmean(math.log(row.value) for row in rows))


def table(numbers: Mapping[str, Value]) -> Table:
    """Gradient and update, by matrix (geometric means relative to the largest) and in spread."""
    columns = ["", *(f"self-attention {role}" for role in ATTENTION), "spread over attention matrices, log10"]
    rows = [
        [what, *(shown(numbers, f"{what}.{role}") for role in ATTENTION), shown(numbers, f"{what}.spread")]
        for what in ("gradient", "update")
    ]
    return Table(columns, rows)


def table_5(numbers: Mapping[str, Value]) -> Table:
    """The spreads, and the loss reductions of the optimisers."""
    rows = [[what, shown(numbers, f"{what}.spread"), "–"] for what in ("gradient", "update")]
    trained = {"radam": "RAdam"} | {f"sgd_{i}": f"SGD, rate {rate}" for i, rate in enumerate(RATES)}
    rows += [[label, "–", shown(numbers, f"{name}.improvement")] for name, label in trained.items()]
    return Table(["", "spread over attention matrices, log10", "improvement over guessing (nats)"], rows)


def draw_5(measured: Measured) -> Any:
    """How many of attention's matrices have which norm, relative to the largest of the same network at the same update."""
    alt: Any = require("altair", "clinic")

    rows = []
    own = [row for row in measured.readings if row.role in ATTENTION and row.value > 0]
    for (quantity, _, _), at in groups(own, "quantity", "step", "seed"):
        largest = max(row.value for row in at)
        what = "gradient" if quantity == "weight_gradient" else "update"
        rows += [{"what": what, "below": math.log10(largest / row.value)} for row in at]
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(opacity=0.7)
    bars = chart.encode(
        x=alt.X("below:Q", bin=alt.Bin(step=0.1), title="orders of magnitude below the largest norm"),
        y=alt.Y("count()", stack=None, title="matrices, all checkpoints"),
        color=alt.Color("what:N", title=None),
    )
    return bars.properties(width=420, height=240)


def draw_11(measured: Measured) -> Any:
    """Relative norms of self-attention's matrices, layer by layer, at the last checkpoint that has a next one."""
    kept = [row for row in measured.readings if row.role in ATTENTION and row.kind == "self_attention"]
    return plots.updates(over_seeds(kept))


FIGURE_5 = Item(
    "figure-5",
    "Figure 5: unbalanced gradients, balanced updates",
    "In a 12-layer Pre-LN model the gradients of attention's matrices differ widely, the updates do not. SGD, which cannot "
    "balance them, fails where RAdam trains.",
    {"tiny": Needs("toy corpus", 0.1, 1.0), "small": Needs("Multi30k", 1.5, 1.5), "paper": Needs("WMT'14 En-De", 60.0, 32.0)},
    measure_5,
    table_5,
    draw_5,
)
FIGURE_11 = Item(
    "figure-11",
    "Figure 11: gradients and updates of self-attention",
    "W^Q and W^K, inside the softmax, have the smallest gradients; updates are of one size.",
    {"tiny": Needs("toy corpus", 0.05, 1.0), "small": Needs("Multi30k", 1.0, 1.5), "paper": Needs("WMT'14 En-De", 48.0, 32.0)},
    measure_11,
    table,
    draw_11,
)
