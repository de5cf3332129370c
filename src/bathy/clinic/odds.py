"""From readings to the probability that training fails: a logistic in a few readings, fitted on runs (`bathy bench predict`).

    p = 1 / (1 + exp(−(b + Σ_i w_i f_i)))

odds.json has the coefficients; lab/bench/predict/grid.jsonl the readings and outcomes that they were fitted on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bathy.clinic.rehearsal import Point

LEAST = 1e-12
"""Token variance that stands for none, and for a loss that is not finite."""
MOST = 1e4
"""Σβ² that stands for one that is not finite."""
LONGEST = 100
"""Warm-up updates beyond which a longer warm-up counts no more: the runs of the grid had none."""
BROKEN = 0.999
"""Probability of failing where a rehearsal becomes non-finite."""
Features = dict[str, float]


def features(points: Sequence[Point], updates: int, warmup: float) -> Features:
    """What a forecast rests on: the worst that so many updates at the peak rate show, and the warm-up.

    tokens: log10 of the lowest token variance at the last site of a stack (without sites, of the output); amplification: log10
    of the largest Σβ² of a stack; warmup: log10(1 + warm-up updates), at most that of LONGEST; broken: 1 where the loss became
    non-finite, else 0.
    """
    finite = len(points) > updates and all(math.isfinite(point.loss) for point in points[: updates + 1])
    seen = points[1 : updates + 1] if finite else []
    return {
        "tokens": math.log10(min((_within(_token_variance(point), LEAST, 1.0, LEAST) for point in seen), default=LEAST)),
        "amplification": math.log10(max((_within(_amplification(point), 1e-3, MOST, MOST) for point in seen), default=MOST)),
        "warmup": math.log10(1 + min(warmup, LONGEST)),
        "broken": float(not finite),
    }


def _within(value: float, least: float, most: float, none: float) -> float:
    """The value kept between two limits; `none` where it is not a number."""
    return none if math.isnan(value) else min(most, max(least, value))


def _token_variance(point: Point) -> float:
    """Token variance at the last site, the lowest of all stacks; else that of the output."""
    own = [values[1] for values in point.stacks.values()]
    return min(own) if own else 1.0 if point.output is None else point.output


def _amplification(point: Point) -> float:
    """The largest Σβ² of all stacks; 1 where no branch can be watched."""
    return max((values[0] for values in point.stacks.values()), default=1.0)


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
