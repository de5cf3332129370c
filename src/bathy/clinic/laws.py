"""The paper's laws, checked on rows: output change against depth and Σβ² (Theorem 2), gradients down a stack (Theorem 1)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bathy.clinic.exams.stability import SATURATED
from bathy.clinic.measures import Fit, fit, log_log_slope
from bathy.clinic.readings import Reading, groups, mean_over, select


@dataclass(frozen=True)
class Growth:
    """How one model's output change grows with depth N."""

    model: str
    stack: str
    step: int
    quantity: str
    depths: list[int]
    changes: list[float]
    """Mean over seeds at each depth."""
    beta2: list[float]
    """Σ_{i≤N} β²_ii at each depth, measured as branch shares."""
    c: float
    """Var[x_0] / variance that a layer's branches add: what log(N + c) starts from."""
    linear: Fit
    """Change against N."""
    log: Fit
    """Change against log(N + c)."""
    plain_log: Fit
    """Change against log N."""
    slope: float
    """Exponent of change ∝ N^p."""

    @property
    def saturated(self) -> bool:
        """Whether the deepest change is too large for the theorem: perturb less."""
        return self.changes[-1] > SATURATED


def growths(readings: Sequence[Reading], quantity: str = "output_change") -> list[Growth]:
    """The growth of every model, stack and step that was read at three depths or more."""
    result = []
    for (model, stack, step), rows in groups(select(readings, quantity), "model", "stack", "step"):
        change = mean_over(rows, "layer")
        depths = sorted(depth for (depth,) in change)
        here = select(readings, model=model, stack=stack, step=step)
        shares = mean_over(select(here, "branch_share"), "layer", "index")
        if len(depths) < 3 or not shares:
            continue
        beta2 = list(accumulate(sum(share for (layer, _), share in shares.items() if layer == depth) for depth in depths))
        changes = [change[depth,] for depth in depths]
        result.append(_growth((model, stack, step, quantity), depths, changes, beta2, offset(here)))
    return result


def _growth(where: tuple[str, str, int, str], depths: list[int], changes: list[float], beta2: list[float], c: float) -> Growth:
    linear, log, plain = (fit(x, changes) for x in (depths, [math.log(n + c) for n in depths], [math.log(n) for n in depths]))
    return Growth(*where, depths, changes, beta2, c, linear, log, plain, log_log_slope(depths, changes))


def offset(readings: Sequence[Reading]) -> float:
    """c = Var[x_0] / variance added per layer, from the profile of one stack; not fitted."""
    branches = mean_over(select(readings, "branch_variance"), "layer", "index")
    first = mean_over(select(readings, "input_variance", index=1), "index")
    layers = len({layer for layer, _ in branches})
    added = sum(branches.values()) / layers
    return first[1,] / added if added else math.inf


@dataclass(frozen=True)
class Regression:
    """Theorem 2: change ≈ C · Σβ²_ii, one C for all models together, and each model's own."""

    c: float
    r2: float
    own: dict[str, float]


def theorem_2(found: Sequence[Growth]) -> Regression:
    """Regress the output change on the measured Σβ²_ii, through the origin."""
    x, y = [b for growth in found for b in growth.beta2], [d for growth in found for d in growth.changes]
    together = fit(x, y, through_origin=True)
    steps = len({growth.step for growth in found}) > 1
    own = {
        f"{growth.model} update {growth.step}" if steps else growth.model: fit(growth.beta2, growth.changes, True).slope
        for growth in found
    }
    return Regression(together.slope, together.r2, own)


@dataclass(frozen=True)
class Backward:
    """Theorem 1 and Remark 1 in one stack: whether Var[Δx_{i-1}] ≥ Var[Δx_i] going down."""

    model: str
    stack: str
    step: int
    seeds: int
    ratios: list[float]
    """Geometric mean over seeds of Var[Δx_{i-1}] / Var[Δx_i], for i = 1, 2, …"""
    errors: list[float]
    """Standard error of the logarithm of each; NaN for one seed."""
    kinds: list[str]

    @property
    def holds(self) -> float:
        """Share of sub-layers where the inequality holds, within two standard errors."""
        margins = [0.0 if math.isnan(error) else 2 * error for error in self.errors]
        return sum(math.log(ratio) + margin >= 0 for ratio, margin in zip(self.ratios, margins, strict=True)) / len(self.ratios)

    @property
    def mean(self) -> float:
        """Geometric mean over all sub-layers."""
        return math.exp(statistics.fmean(math.log(ratio) for ratio in self.ratios))


def theorem_1(readings: Sequence[Reading]) -> list[Backward]:
    """The gradient's way down every stack, over the seeds in the rows."""
    result = []
    for (model, stack, step), rows in groups(select(readings, "gradient_variance"), "model", "stack", "step"):
        logs: dict[int, list[float]] = {}
        kinds = {row.index: row.kind for row in rows}
        for _, own in groups(rows, "seed"):
            down = {row.index: row.value for row in own}
            for index in sorted(kinds)[1:]:
                if down[index] > 0 and down[index - 1] > 0:
                    logs.setdefault(index, []).append(math.log(down[index - 1] / down[index]))
        if logs:
            ratios, errors = [math.exp(statistics.fmean(v)) for v in logs.values()], [_error(v) for v in logs.values()]
            seeds = len({row.seed for row in rows})
            result.append(Backward(model, stack, step, seeds, ratios, errors, [kinds[i] for i in logs]))
    return result


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
