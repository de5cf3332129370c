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
BROKEN = 0.999
"""Probability of failing where a rehearsal becomes non-finite."""
Features = dict[str, float]


def features(points: Sequence[Point], updates: int, warmup: float) -> Features:
    """What a forecast rests on, after that many updates at the peak rate.

    tokens: log10 of the token variance at the last site of a stack, the lowest of all stacks (without sites, of the output);
    lowest: the same over all sites; amplification: log10 Σβ², the largest of all stacks; growth: log10 of Σβ² over its first
    value; information: log10 of the nats by which the output depends on the input; rise: nats by which the loss is above its
    first; drift: log10 of how far the matrices have moved; gradient: log10 of the gradient's norm over its first;
    warmup: log10(1 + warm-up updates); broken: 1 where the loss became non-finite, else 0.
    """
    finite = len(points) > updates and all(math.isfinite(point.loss) for point in points[: updates + 1])
    start, now = points[0], points[min(updates, len(points) - 1)]
    before = points[max(0, min(updates, len(points)) - 1)]  # the last point is read without a backward pass
    last, lowest = _token_variances(now)
    found = {
        "tokens": math.log10(_clamped(last if finite else 0.0, LEAST)),
        "lowest": math.log10(_clamped(lowest if finite else 0.0, LEAST)),
        "amplification": math.log10(_clamped(_amplification(now) if finite else MOST, 1e-3)),
        "growth": math.log10(_clamped(_amplification(now) if finite else MOST, 1e-3) / _clamped(_amplification(start), 1e-3)),
        "information": math.log10(_clamped(_information(now) if finite else 0.0, 1e-9)),
        "rise": max(-5.0, min(5.0, now.loss - start.loss)) if finite else 5.0,
        "drift": math.log10(_clamped(now.drift if finite else MOST, 1e-9)),
        "gradient": math.log10(_clamped(before.gradient or 0.0, 1e-9) / _clamped(start.gradient or 0.0, 1e-9)),
        "warmup": math.log10(1 + warmup),
        "broken": float(not finite),
    }
    return {name: value if math.isfinite(value) else 0.0 for name, value in found.items()}


def _clamped(value: float, least: float) -> float:
    return min(MOST, max(least, value)) if math.isfinite(value) else least


def _token_variances(point: Point) -> tuple[float, float]:
    """Token variance at the last site and the lowest at any site, the lowest of all stacks; else that of the output."""
    if not point.stacks:
        output = 1.0 if point.output is None else point.output
        return output, output
    return min(values[1] for values in point.stacks.values()), min(values[2] for values in point.stacks.values())


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
