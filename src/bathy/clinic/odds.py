"""From readings to the probability that training fails: a logistic in a few readings, fitted on runs (`bathy bench predict`).

    p = 1 / (1 + exp(−(b + Σ_i w_i f_i)))

odds.json has the coefficients; lab/bench/predict/grid.jsonl the readings and outcomes that they were fitted on.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from bathy.clinic.rehearsal import Point

LEAST = 1e-12
"""Token variance that stands for none, and for a loss that is not finite."""
WEAK, MOST = 0.3, 1e4
"""Σβ² below which less makes no difference, and what stands for one that is not finite."""
WILD = 2.0
"""Mean change of log10 of the gradient's norm that stands for more, and for one that is not finite."""
LONGEST = 100
"""Warm-up updates beyond which a longer warm-up counts no more: the runs of the grid had none."""
BROKEN = 0.999
"""Probability of failing where a rehearsal becomes non-finite."""
Features = dict[str, float]


def features(points: Sequence[Point], updates: int, warmup: float) -> Features:
    """What a forecast rests on: what so many updates at the peak rate do to the tokens and to the gradient, and the warm-up.

    tokens: log10 of the token variance at the last site of a stack relative to that at its input, the median of the updates,
    the lowest of the stacks (without sites, of the output relative to its start); amplification: log10 of the largest Σβ² of
    a stack; gradient: by how much log10 of the gradient's norm changes from one update to the next, the mean of the updates;
    warmup: log10(1 + warm-up updates), at most that of LONGEST; broken: 1 where the loss became non-finite, else 0.
    """
    finite = len(points) > updates and all(math.isfinite(point.loss) for point in points[: updates + 1])
    seen = points[: updates + 1] if finite else []
    return {
        "tokens": _tokens(seen) if finite else math.log10(LEAST),
        "amplification": math.log10(max((_amplification(point) for point in seen[1:]), default=MOST)),
        "gradient": _unsteady([point.gradient for point in seen[:-1]]) if finite else WILD,
        "warmup": math.log10(1 + min(warmup, LONGEST)),
        "broken": float(not finite),
    }


def _within(value: float, least: float, most: float, none: float) -> float:
    """The value kept between two limits; `none` where it is not a number."""
    return none if math.isnan(value) else min(most, max(least, value))


def _tokens(points: Sequence[Point]) -> float:
    """How far the tokens come together: 0 for not at all, −1 for a tenth of their variance; of the worst stack."""
    shares: dict[str, list[float]] = {}
    for point in points[1:]:
        for stack, (now, given) in _variances(point, points[0]).items():
            ratio = _within(now, LEAST, 1.0, LEAST) / _within(given, LEAST, 1.0, 1.0)
            shares.setdefault(stack, []).append(min(0.0, math.log10(ratio)))
    return min(map(statistics.median, shares.values()), default=0.0)


def _variances(point: Point, start: Point) -> dict[str, tuple[float, float]]:
    """Token variance at the last site and at the input of every stack; without sites, of the output now and at the start."""
    own = {stack: (last, given) for stack, (_, last, _, given) in point.stacks.items()}
    if not own and point.output is not None and start.output is not None:
        own = {"output": (point.output, start.output)}
    return own


def _amplification(point: Point) -> float:
    """The largest Σβ² of all stacks; 1 where no branch can be watched."""
    return max((_within(values[0], WEAK, MOST, MOST) for values in point.stacks.values()), default=1.0)


def _unsteady(norms: Sequence[float | None]) -> float:
    """Mean |log10 ‖g_k‖ − log10 ‖g_{k−1}‖|: a gradient that shrinks steadily has little, one that jumps has much."""
    logs = [math.log10(_within(norm, LEAST, math.inf, math.inf)) for norm in norms if norm is not None]
    return _within(statistics.fmean(abs(b - a) for a, b in pairwise(logs)), 0.0, WILD, WILD) if len(logs) > 1 else 0.0


@dataclass(frozen=True)
class Odds:
    """A fitted logistic."""

    updates: int
    weights: Mapping[str, float]
    bias: float

    def failure(self, found: Features) -> float:
        """The probability that training fails; near 1 where the rehearsal itself became non-finite."""
        if found.get("broken"):
            return BROKEN
        score = self.bias + sum(weight * found[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


@cache
def fitted(look: str) -> Odds:
    """The logistic of one kind of look, as shipped."""
    values = json.loads((Path(__file__).parent / "odds.json").read_text(encoding="utf-8"))[look]
    return Odds(values["updates"], values["weights"], values["bias"])
