"""The largest rate that trains, as a forecast tells it and as the grid's runs measured it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bathy.clinic.search import logit, monotone
from bathy.lab.bench.predict.cases import Case


@dataclass(frozen=True)
class Rate:
    """One design: the rate that is told, its interval, the largest rate that trained and the smallest above it that failed."""

    told: float
    low: float
    high: float
    trained: float
    failed: float

    @property
    def right(self) -> bool:
        """Within a factor of 2 of the middle of the measured bracket; where nothing failed or trained, on the right side."""
        if math.isinf(self.failed):
            return self.told >= self.trained / 2
        if not self.trained:
            return self.told <= 2 * self.failed
        middle = math.sqrt(self.trained * self.failed)
        return middle / 2 <= self.told <= 2 * middle

    @property
    def covered(self) -> bool:
        """Whether the interval meets the measured bracket."""
        return self.low <= self.failed and self.high >= self.trained


def largest_rates(cases: Sequence[Case], chances: Sequence[float]) -> list[Rate]:
    """Every design that has runs on several rates, by the probability of failing at each of them."""
    found, designs = [], dict[str, list[tuple[Case, float]]]()
    for case, chance in zip(cases, chances, strict=True):
        designs.setdefault(case.design, []).append((case, chance))
    for own in designs.values():
        own.sort(key=lambda pair: pair[0].lr)
        trained = max((case.lr for case, _ in own if not case.fails), default=0.0)
        failed = min((case.lr for case, _ in own if case.fails and case.lr > trained), default=math.inf)
        points = list(monotone({case.lr: chance for case, chance in own}).items())
        if len(own) > 1:
            found.append(Rate(crossing(points), crossing(points, 0.1), crossing(points, 0.9), trained, failed))
    return found


def crossing(points: Sequence[tuple[float, float]], level: float = 0.5) -> float:
    """The first rate at which the probability passes a level, on straight lines in log rate and log odds; 0 or ∞ where none."""
    for (low, before), (high, after) in pairwise(points):
        if before <= level < after:
            share = (logit(level) - logit(before)) / (logit(after) - logit(before))
            return low * (high / low) ** share
    return points[0][0] if points[0][1] > level else points[-1][0] * math.sqrt(10)
