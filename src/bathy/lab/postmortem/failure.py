"""What went wrong in a run, and since when, as its metrics tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, pstdev
from typing import Any

RISE, GOOD = 0.5, 0.25
"""Nats above the lowest mean at the end that count as a rise, and within which a row was still good."""
IMPROVEMENT = 0.1
"""Nats below guessing that count as no improvement."""
WIDE = 10
"""Rows that a mean is taken over."""


@dataclass(frozen=True)
class Failure:
    """How a run failed."""

    kind: str
    """rise, guessing, overflow or task."""
    onset: int
    """Last update that was still good; 0: it never was."""
    found: int
    """Update at which it is plain."""
    why: str


def find_failure(rows: Sequence[dict[str, Any]], chance: float) -> Failure | None:
    """The failure that the rows of metrics.jsonl show, or none; `chance` is the loss of guessing."""
    last = max((row["step"] for row in rows), default=0)
    stopped = next((str(row["stopped"]) for row in reversed(rows) if "stopped" in row), "")
    overflow, rise = _overflow(rows, stopped), _rise(rows, last)
    if overflow:  # numbers that grew beyond their format may have begun to grow long before
        return replace(overflow, onset=min(overflow.onset, rise.onset)) if rise else overflow
    curve = _means(_losses(rows))
    if not rise and curve and math.isfinite(chance) and curve[-1][1] > chance - IMPROVEMENT:
        return Failure("guessing", 0, last, f"the loss, {curve[-1][1]:.2f} nats, is that of guessing ({chance:.2f})")
    return rise or (Failure("task", 0, last, stopped) if stopped else None)


def _losses(rows: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["step"], math.inf if row["nll"] is None else row["nll"]) for row in rows if "nll" in row]


def _rise(rows: Sequence[dict[str, Any]], last: int) -> Failure | None:
    """A loss that ends well above its lowest."""
    means = _means(_losses(rows))
    if not means:
        return None
    lowest, end = min(value for _, value in means), means[-1][1]
    if end <= lowest + RISE:
        return None
    onset = max((step for step, value in means if value <= lowest + GOOD), default=0)
    return Failure("rise", onset, last, f"the loss rose from {lowest:.2f} to {end:.2f} nats after update {onset}")


def _overflow(rows: Sequence[dict[str, Any]], stopped: str) -> Failure | None:
    """Updates skipped one after the other until the run ended."""
    if "times in a row" not in stopped:
        return None
    steps = [row["step"] for row in rows if "overflow" in row]
    first = steps[-1] if steps else 0
    for step in reversed(steps):
        if step < first - 1:
            break
        first = step
    return Failure("overflow", max(0, first - 1), max(steps, default=0), stopped)


def _means(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The curve smoothed over a few rows."""
    width = max(1, min(WIDE, len(curve) // 5))
    return [(curve[i][0], mean(value for _, value in curve[max(0, i - width + 1) : i + 1])) for i in range(len(curve))]


def jump(rows: Sequence[dict[str, Any]], start: int, end: int) -> tuple[int, float]:
    """The update between `start` and `end` whose loss stands out most from those before it, in their deviations.

    A corrupt batch shows in its own loss, before any weight has moved; a rate that is too high shows only afterwards.
    """
    curve = [(row["step"], row["nll"]) for row in rows if "nll" in row and row["nll"] is not None]
    best = (0, 0.0)
    for step, value in curve:
        before = [loss for at, loss in curve if step - 40 <= at < step]
        if start < step <= end and len(before) >= 5:
            best = max(best, (step, (value - mean(before)) / max(pstdev(before), 0.02)), key=lambda one: one[1])
    return best
