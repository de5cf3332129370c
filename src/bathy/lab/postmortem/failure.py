"""What went wrong in a run, and since when, as its metrics tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, pstdev
from typing import Any

RISE, GOOD = 0.5, 0.25
"""Nats above the lowest median so far that count as a rise, and within which a row was still good."""
SPIKE = 1.0
"""Nats above it that count where the loss comes back by itself."""
NOISE = 3.0
"""How many times the losses' own deviation a rise must be at least; twice as many where it comes back."""
LEARNED = 0.3
"""Nats below the first losses from which on there is something to lose."""
IMPROVEMENT = 0.1
"""Nats below guessing that count as no improvement, and by which a loss that still falls does so."""
WIDE = 9
"""Rows that a median is taken over."""
HORIZON = 100
"""Updates after a rise that are replayed, at least."""
Rows = Sequence[dict[str, Any]]


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


def find_failure(rows: Rows, chance: float) -> Failure | None:
    """The failure that the rows of metrics.jsonl show, or none; `chance` is the loss of guessing."""
    last = max((row["step"] for row in rows), default=0)
    stopped = next((str(row["stopped"]) for row in reversed(rows) if "stopped" in row), "")
    overflow, rise = _overflow(rows, stopped), _rise(rows, last)
    if overflow:  # numbers that grew beyond their format may have begun to grow long before
        return replace(overflow, onset=min(overflow.onset, rise.onset)) if rise else overflow
    if rise:
        return rise
    end = final_loss(rows)
    if math.isfinite(chance) and end > chance - IMPROVEMENT and not _falls(rows):
        return Failure("guessing", 0, last, f"the loss, {end:.2f} nats, is that of guessing ({chance:.2f})")
    return Failure("task", 0, last, stopped) if stopped else None


def losses(rows: Rows) -> list[tuple[int, float]]:
    """(update, loss) of every row that has one; a loss that was not finite is infinite."""
    return [(row["step"], math.inf if row["nll"] is None else row["nll"]) for row in rows if "nll" in row]


def final_loss(rows: Rows) -> float:
    """The median of the last fifth of the losses; not a number where there are none."""
    curve = losses(rows)
    return median(value for _, value in curve[-max(_width(curve), len(curve) // 5) :]) if curve else math.nan


def _falls(rows: Rows) -> bool:
    """Whether the loss was still falling in the last fifth: too short a run, not a failed one."""
    values = [value for _, value in losses(rows)]
    fifth = len(values) // 5
    return fifth > 0 and mean(values[-2 * fifth : -fifth]) - mean(values[-fifth:]) > IMPROVEMENT


def _rise(rows: Rows, last: int) -> Failure | None:
    """A loss that left its lowest, for good or for a while; one that had learned nothing yet has nothing to lose."""
    curve = losses(rows)
    if not curve:
        return None
    middles, lag, noise = _medians(curve), _width(curve) // 2, NOISE * _noise(curve)
    lowest, onset, learned = math.inf, 0, middles[0][1] - LEARNED
    lasting, passing, end = max(RISE, noise), max(SPIKE, 2 * noise), middles[-1][1]
    for i, (step, value) in enumerate(middles):
        stays = end > lowest + lasting
        if value > lowest + (lasting if stays else passing) and (stays or lowest < learned):
            back = next((at for at, later in middles[i:] if later <= lowest + GOOD), None)
            peak = max(later for at, later in middles[i:] if back is None or at <= back)
            ending = f" and was back at update {back}" if back else ""
            why = f"the loss rose from {lowest:.2f} to {peak:.2f} nats after update {onset}{ending}"
            return Failure("rise", onset, min(last, step + max(HORIZON, 2 * (step - onset))), why)
        lowest = min(lowest, value)
        if value <= lowest + GOOD:
            onset = middles[max(0, i - lag)][0] if i >= lag else 0
    return None


def _noise(curve: Sequence[tuple[int, float]]) -> float:
    """Deviation of single losses from the median of their neighbours; half of them lie within 0.67 of it."""
    off = [abs(value - middle) for (_, value), (_, middle) in zip(curve, _medians(curve), strict=True)]
    return 1.48 * median(each for each in off if math.isfinite(each)) if any(map(math.isfinite, off)) else 0.0


def _overflow(rows: Rows, stopped: str) -> Failure | None:
    """Updates skipped one after the other until the run ended."""
    if "times in a row" not in stopped:
        return None
    steps = [row["step"] for row in rows if "overflow" in row]
    first = steps[-1] if steps else 0
    for step in reversed(steps):
        if step < first - 1:
            break
        first = step
    return Failure("overflow", max(0, first - 1), max(row["step"] for row in rows), stopped)


def _width(curve: Sequence[Any]) -> int:
    return max(1, min(WIDE, len(curve) // 5))


def _medians(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The curve smoothed over a few rows: one row alone never counts."""
    width = _width(curve)
    return [(curve[i][0], median(value for _, value in curve[max(0, i - width + 1) : i + 1])) for i in range(len(curve))]


def jump(rows: Rows, start: int, end: int) -> tuple[int, float]:
    """The update between `start` and `end` whose loss stands out most from those before it, in their deviations."""
    curve = [(row["step"], row["nll"]) for row in rows if "nll" in row and row["nll"] is not None]
    best = (0, 0.0)
    for step, value in curve:
        before = [loss for at, loss in curve if step - 40 <= at < step]
        if start < step <= end and len(before) >= 5:
            best = max(best, (step, (value - mean(before)) / max(pstdev(before), 0.02)), key=lambda one: one[1])
    return best
