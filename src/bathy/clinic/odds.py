"""From readings to the probability that training fails: a logistic in a few readings, fitted on runs (`bathy bench predict`).

    p = 1 / (1 + exp(−(b + Σ_i w_i f_i)))

odds.json has the coefficients with what they were fitted on; docs/results/forecast.json the readings and outcomes themselves.
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
FEWEST = 4
"""Updates over which readings are averaged at least: single batches are noisy."""
LONGEST = 100
"""Warm-up updates beyond which a longer warm-up counts no more: the runs of the grid had none."""
BROKEN = 0.999
"""Probability of failing where a rehearsal becomes non-finite."""
Features = dict[str, float]


def features(points: Sequence[Point], updates: int, warmup: float) -> Features:
    """What a forecast rests on after that many updates at the peak rate: means over the last half of them, at least four.

    tokens: log10 of the token variance at the last site of a stack, the lowest of all stacks (without sites, of the output);
    amplification: log10 Σβ², the largest of all stacks; information: log10 of the nats by which the output depends on the
    input; warmup: log10(1 + warm-up updates), at most that of LONGEST; broken: 1 where the loss became non-finite, else 0.
    """
    finite = len(points) > updates and all(math.isfinite(point.loss) for point in points[: updates + 1])
    last = points[max(1, updates + 1 - max(FEWEST, updates // 2)) : updates + 1] if finite else []
    found = {
        "tokens": _mean_log([_token_variance(point) for point in last], LEAST, LEAST),
        "amplification": _mean_log([_amplification(point) for point in last], 1e-3, MOST),
        "information": _mean_log([_information(point) for point in last], 1e-9, 1e-9),
    }
    return found | {"warmup": math.log10(1 + min(warmup, LONGEST)), "broken": float(not finite)}


def _mean_log(values: Sequence[float], least: float, none: float) -> float:
    """Mean of log10, values kept between `least` and MOST; of no values, or of one that is not a number, that of `none`."""
    kept = [min(MOST, max(least, value)) if not math.isnan(value) else none for value in values]
    return math.fsum(map(math.log10, kept)) / len(kept) if kept else math.log10(none)


def _token_variance(point: Point) -> float:
    """Token variance at the last site, the lowest of all stacks; else that of the output."""
    own = [values[1] for values in point.stacks.values()]
    return min(own) if own else 1.0 if point.output is None else point.output


def _information(point: Point) -> float:
    """Nats by which the output depends on the input; token variance of the output where it is one number."""
    given = (value for value in (point.information, point.output) if value is not None)
    return next(given, 1.0)


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
