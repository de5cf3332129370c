"""Figures 7 and 8: how much each sub-layer depends on every branch before it, at the start and after training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from bathy.admin.profile import PROFILE_TOKENS, profile
from bathy.clinic import plots
from bathy.clinic.examination import examine
from bathy.clinic.readings import Reading, groups, select
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, over_seeds, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import Spec, stack
from bathy.lab.reproduce.stability import constant
from bathy.lab.runs import Run

KEPT = ("beta", "output_variance")
STARTS = 3
"""Models drawn for the start, at least."""
FEW = 512
"""Tokens that are few for a profile."""


def measure_6(lab: Lab) -> Measured:
    """Figure 7: 6-layer Post-LN and Pre-LN."""
    return measure(lab, 6, ["post_ln", "pre_ln"])


def measure_18(lab: Lab) -> Measured:
    """Figure 8: 18-layer Admin and Pre-LN; Post-LN at the start only, for it does not train."""
    found = measure(lab, 18, ["admin", "pre_ln"], untrained=["post_ln"])
    found.numbers["admin.omega_difference"] = {str(seed): few_tokens(lab, seed) for seed in range(STARTS)}
    for spec in stack(("admin", "pre_ln"), 18):
        starts = {str(seed): constant(lab.fresh(spec, seed), lab.batch()) for seed in lab.seed_list}
        ends = {str(row.seed): row.value for row in select(found.readings, "c", model=f"{spec.scheme}, end")}
        found.numbers |= {f"{spec.scheme}.c_start": starts, f"{spec.scheme}.c_end": ends}
    return found


def few_tokens(lab: Lab, seed: int) -> float:
    """The largest relative difference of an ω between a profile of few tokens and one of a whole first batch."""
    model, batch = lab.fresh(Spec("admin_18", "admin", 18), seed), lab.batch(PROFILE_TOKENS, seed)
    return profile(model, batch, FEW).difference(profile(model, batch))


def measure(lab: Lab, layers: int, trained: Sequence[str], untrained: Sequence[str] = ()) -> Measured:
    """β and variances of fresh models, and of the runs' last checkpoints."""
    found, batch = Measured(), lab.batch()
    for spec in stack((*trained, *untrained), layers):
        scheme = spec.scheme
        for seed in {*lab.seed_list, *range(STARTS)}:
            found.readings += _examine(lab.fresh(spec, seed), batch, f"{scheme}, start", seed)
        for seed in lab.seed_list if scheme in trained else ():
            found.readings += lab.readings(spec, seed, "dependency", partial(_examine_run, batch, f"{scheme}, end", seed))
    found.numbers = numbers(found.readings)
    return found


def _examine_run(batch: Any, name: str, seed: int, run: Run) -> list[Reading]:
    """The readings of a run's last checkpoint, and Theorem 2's C of it."""
    model = run.model()
    return [*_examine(model, batch, name, seed), Reading("c", constant(model, batch), model=name, seed=seed)]


def _examine(model: Any, batch: Any, name: str, seed: int) -> list[Reading]:
    """Var[x_i] of both stacks, and the encoder's β_ij."""
    rows = examine(model, batch, exams=["activations", "dependency"], name=name).readings
    kept = [row for row in rows if row.quantity in KEPT and (row.quantity, row.stack) != ("beta", "decoder")]
    return [replace(row, seed=seed) for row in kept]


def numbers(readings: Sequence[Reading]) -> dict[str, Value]:
    """Scheme.own_start and so on, one value per seed."""
    result: dict[str, Value] = {}
    for (label, seed), rows in groups([row for row in readings if row.quantity in KEPT], "model", "seed"):
        scheme, _, when = label.partition(", ")
        values = {"own": own(rows), "lean": lean(rows), "growing": growing(rows)}
        for name, value in values.items():
            per_seed = result.setdefault(f"{scheme}.{name}_{when}", {})
            assert isinstance(per_seed, dict)
            per_seed[str(seed)] = value
    return result


def own(rows: Sequence[Reading]) -> float:
    """Mean of β_ii over the encoder's sub-layers."""
    return statistics.fmean(row.value for row in select(rows, "beta", stack="encoder") if row.j == row.index)


def lean(rows: Sequence[Reading]) -> float:
    """Mean over the encoder's sub-layers i ≥ 2 of β_ii over the mean of β_ij, j = 1 … i."""
    ratios = []
    for (index,), row in groups([r for r in select(rows, "beta", stack="encoder") if r.j >= 1 and r.index >= 2], "index"):
        ratios.append(next(r.value for r in row if r.j == index) / statistics.fmean(r.value for r in row))
    return statistics.fmean(ratios)


def growing(rows: Sequence[Reading]) -> float:
    """Share of steps from one sub-layer to the next, in both stacks, at which Var[x_i] grows."""
    steps: list[bool] = []
    for _, row in groups(select(rows, "output_variance"), "stack"):
        down = [r.value for r in sorted(row, key=lambda r: r.index)]
        steps += [b > a for a, b in pairwise(down)]
    return statistics.fmean(steps)


QUANTITIES = {"own": "mean β_ii", "lean": "β_ii / mean β_ij", "growing": "Var[x_i] grows at", "c": "C of Theorem 2"}


def table(numbers: Mapping[str, Value]) -> Table:
    """One row a scheme; start and end of every quantity that was measured."""
    schemes = list(dict.fromkeys(name.partition(".")[0] for name in numbers))
    kinds = [kind for kind in QUANTITIES if any(name.endswith(f".{kind}_start") for name in numbers)]
    names = [f"{kind}_{when}" for kind in kinds for when in ("start", "end")]
    rows = [[f"`{scheme}`", *(shown(numbers, f"{scheme}.{name}") for name in names)] for scheme in schemes]
    return Table(["", *(head for kind in kinds for head in (f"{QUANTITIES[kind]}: start", "end"))], rows)


def draw(measured: Measured) -> Any:
    """The matrices β_ij, start and end of each scheme side by side."""
    return plots.dependency(over_seeds(select(measured.readings, "beta", stack="encoder")))


FIGURE_7 = Item(
    "figure-7",
    "Figure 7: layer dependency of 6-layer models",
    "β_ij, the part of branch j in sub-layer i's output: at the start Pre-LN leans on all branches alike and Post-LN on "
    "its own; trained Pre-LN leans on its own branch more than at the start, less than Post-LN.",
    {"tiny": Needs("toy corpus", 0.03, 1.0), "small": Needs("Multi30k", 1.5, 1.5), "paper": Needs("WMT'14 En-De", 48.0, 16.0)},
    measure_6,
    table,
    draw,
)
FIGURE_8 = Item(
    "figure-8",
    "Figure 8: layer dependency of 18-layer models",
    "Admin begins with Pre-LN's light dependencies and ends with larger ones; Theorem 2's C becomes smaller meanwhile.",
    {"tiny": Needs("toy corpus", 0.08, 1.0), "small": Needs("Multi30k", 4.0, 2.0), "paper": Needs("WMT'14 En-De", 144.0, 32.0)},
    measure_18,
    table,
    draw,
)
