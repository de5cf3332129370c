"""Learning rates of a run as its log has them, and what a replay makes of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bathy.lab.postmortem.failure import Rows
from bathy.train.recovery import Recovery
from bathy.train.schedule import learning_rate


def rate_of(config: Any, rows: Rows) -> Callable[[int], float]:
    """The rate of every update: the schedule's, times what the log says was done to it (a rate changed by hand)."""
    logged = [(row["step"], row["lr"]) for row in rows if row.get("lr") is not None]
    steps = [step for step, _ in logged]
    factors = [rate / usual if (usual := learning_rate(config, step)) > 0 else 1.0 for step, rate in logged]

    def rate(step: int) -> float:
        place = bisect_left(steps, step)
        factor = factors[place] if place < len(factors) and factors[place] > 0 else 1.0
        return learning_rate(config, step) * (factor if abs(math.log(factor)) > 0.02 else 1.0)

    return rate


def segments(config: Any, wanted: Callable[[int], float], start: int, end: int) -> list[Recovery]:
    """Wanted rates as recoveries: one for each stretch of updates with the same factor on the schedule; none if all are 1."""
    found: list[tuple[int, float]] = []
    for step in range(start + 1, end + 1):
        usual = learning_rate(config, step)
        factor = round(wanted(step) / usual, 6) if usual > 0 else 1.0
        if not found or factor != found[-1][1]:
            found.append((step - 1, factor))
    if all(factor == 1.0 for _, factor in found):
        return []
    ends = [first for first, _ in found[1:]] + [10 * end]
    return [Recovery(end, "", first, "rate", factor=f, until=last) for (first, f), last in zip(found, ends, strict=True)]


def join(known: list[Recovery], rates: list[Recovery]) -> list[Recovery]:
    """The run's own recoveries followed by rates; what is skipped where both begin stays skipped."""
    if known and rates and known[-1].start == rates[0].start:
        first = known[-1]
        rates = [replace(rates[0], skip=first.skip, at=first.at, ceiling=first.ceiling, settings=first.settings), *rates[1:]]
    return known + rates
