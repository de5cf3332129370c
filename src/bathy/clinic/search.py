"""The largest learning rate that trains: where failing becomes more likely than not, in as few rehearsals as may be."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FACTOR = 10.0
"""How far apart rates are tried until one trains and one fails."""
FINE = 1.8
"""Ratio of a failing to a training rate at which the search ends."""
LOWEST, HIGHEST = 1e-7, 10.0
"""Rates within which the search stays."""
Failure = Callable[[float], float]
"""From a rate to the probability of failing."""


@dataclass(frozen=True)
class Limit:
    """The largest rate, with the rates at which the probability of failing is 0.1 and 0.9."""

    rate: float
    low: float
    high: float
    open_above: bool = False
    """Whether it is at least this: no rate that fails was found."""
    open_below: bool = False
    """Whether it is below this: no rate that trains was found."""


def largest_rate(lr: float, failure: Failure, most: int) -> Limit:
    """Steps of FACTOR from `lr` until both sides are known, then bisection; `failure` is asked for at most so many rates."""
    trains, fails = (None, lr) if failure(lr) > 0.5 else (lr, None)
    tried = 1
    while tried < most and (trains is None or fails is None):
        rate = fails / FACTOR if trains is None and fails is not None else (trains or lr) * FACTOR
        rate = min(HIGHEST, max(LOWEST, rate))  # a rate far outside is followed by the nearest within
        if (trains is not None and rate <= trains) or (fails is not None and rate >= fails):
            break
        tried += 1
        trains, fails = (trains, rate) if failure(rate) > 0.5 else (rate, fails)
    while tried < most and trains is not None and fails is not None and fails / trains > FINE:
        rate = _between(trains, fails, failure)
        tried += 1
        trains, fails = (trains, rate) if failure(rate) > 0.5 else (rate, fails)
    if trains is None or fails is None:
        edge = lr if trains is fails else fails if trains is None else trains
        assert edge is not None
        return Limit(edge, edge, edge, open_above=fails is None, open_below=trains is None)
    middle, low, high = (crossing(trains, fails, failure, level) for level in (0.5, 0.1, 0.9))
    return Limit(middle, min(low, middle), max(high, middle))


def _between(trains: float, fails: float, failure: Failure) -> float:
    """The next rate to try: where the line through both sides crosses a half, but not too near to either side."""
    share = math.log(crossing(trains, fails, failure, 0.5) / trains) / math.log(fails / trains)
    return trains * (fails / trains) ** min(0.7, max(0.3, share))


def crossing(trains: float, fails: float, failure: Failure, level: float) -> float:
    """The rate at which the probability reaches a level, by a straight line in log rate and log odds through both sides."""
    low, high = (logit(failure(rate)) for rate in (trains, fails))
    share = (logit(level) - low) / (high - low) if high > low else 0.5
    return trains * (fails / trains) ** max(-1.0, min(2.0, share))


def monotone(chances: Mapping[float, float]) -> dict[float, float]:
    """The probabilities by rate, made to rise with it: where they fall, neighbours share their mean log odds."""
    blocks: list[list[float]] = []  # log odds of neighbouring rates that are told the same
    for rate in sorted(chances):
        blocks.append([logit(chances[rate])])
        while len(blocks) > 1 and statistics.fmean(blocks[-2]) > statistics.fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    told = [1 / (1 + math.exp(-statistics.fmean(block))) for block in blocks for _ in block]
    return dict(zip(sorted(chances), told, strict=True))


def logit(p: float) -> float:
    """The log odds of a probability, kept finite."""
    p = min(1 - 1e-9, max(1e-9, p))
    return math.log(p / (1 - p))
