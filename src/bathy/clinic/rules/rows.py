"""What rules ask of the rows: the first and the last step, sums over a stack, sizes of updates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bathy.clinic.readings import Reading, mean_over, select


def steps_of(rows: Sequence[Reading], quantity: str) -> list[int]:
    """The steps at which a quantity was read, in order."""
    return sorted({row.step for row in rows if row.quantity == quantity})


def at_last(rows: Sequence[Reading], quantity: str) -> list[Reading]:
    """The rows of a quantity at the last step that has it."""
    own = select(rows, quantity)
    last = max((row.step for row in own), default=0)
    return [row for row in own if row.step == last]


def broken_at_start(rows: Sequence[Reading]) -> list[Reading]:
    """Sites with entries that are not finite before the first update: no learning rate made them."""
    return [row for row in at_first(rows, "nonfinite") if row.value > 0 and row.step <= 1]


def at_first(rows: Sequence[Reading], quantity: str) -> list[Reading]:
    """The rows of a quantity at the first step that has it."""
    own = select(rows, quantity)
    first = min((row.step for row in own), default=0)
    return [row for row in own if row.step == first]


def amplified(rows: Sequence[Reading]) -> dict[str, float]:
    """Σ_i β²_ii by stack, from branch shares of one step."""
    sums: dict[str, float] = {}
    for (stack, _), share in mean_over(rows, "stack", "index").items():
        sums[stack] = sums.get(stack, 0.0) + share
    return sums


def relative_updates(rows: Sequence[Reading]) -> dict[int, float]:
    """Mean ‖ΔW‖/‖W‖ over the matrices of all branches, by step."""
    ratios: dict[int, list[float]] = {}
    for row, ratio in update_ratios(rows):
        if row.stack:
            ratios.setdefault(row.step, []).append(ratio)
    return {step: statistics.fmean(values) for step, values in sorted(ratios.items())}


def update_ratios(rows: Sequence[Reading]) -> list[tuple[Reading, float]]:
    """(row of an update, ‖ΔW‖/‖W‖) for every matrix that was followed."""
    weights = {(row.step, row.site, row.role): row.value for row in select(rows, "weight")}
    found = [(row, weights.get((row.step, row.site, row.role), 0.0)) for row in select(rows, "weight_update")]
    return [(row, row.value / size) for row, size in found if size > 0]
