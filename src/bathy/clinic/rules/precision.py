"""Rules on numbers that are not finite, and on what float16 can hold."""

from __future__ import annotations

from collections.abc import Sequence

from bathy.clinic.findings import Evidence, Finding
from bathy.clinic.readings import Reading
from bathy.clinic.rules.rows import at_last, broken_at_start

NEAR_LIMIT = 0.25
"""Share of the largest representable number above which the next update may overflow."""
HALF = 65504.0
"""The largest float16."""
UNDERFLOW = 0.3
"""Share of exact zeros in a matrix gradient."""


def overflow(rows: Sequence[Reading]) -> Finding | None:
    """Numbers too large for float16, or nearly so, and the first site where they occur."""
    limits = {row.site: row.value for row in at_last(rows, "limit")}
    broken = [row for row in at_last(rows, "nonfinite") if row.value > 0]
    half = [row for row in broken if limits.get(row.site) == HALF]
    near = [row for row in at_last(rows, "peak") if limits.get(row.site) == HALF and row.value > NEAR_LIMIT * HALF]
    where = next(iter(half or near), None)
    if where is None:
        return None
    evidence = [Evidence("number of non-finite entries", row.value, "there should be none", row.site) for row in half[:1]]
    evidence += [Evidence("largest |entry|", row.value, f"float16 ends at {HALF:.0f}", row.site) for row in near[:1]]
    state = "overflows" if half else "is close to overflowing"
    return Finding(
        "overflow", "serious" if half else "warning", f"float16 {state} at {where.site}", tuple(evidence),
        "The sum of shortcut and branch exceeds the range of float16.",
        "Use bfloat16, or keep this sub-layer in float32. Admin folded at the start has larger activations: "
        "fold it after training.",
        site=where.site,
    )  # fmt: skip


def not_finite(rows: Sequence[Reading]) -> Finding | None:
    """Entries that are not finite before anything was learned, in a format that could hold them; the first site with them."""
    limits = {row.site: row.value for row in at_last(rows, "limit")}
    broken = [row for row in broken_at_start(rows) if limits.get(row.site) != HALF]
    if not broken:
        return None
    return Finding(
        "not_finite", "serious", f"numbers are not finite before the first update, first at {broken[0].site}",
        (Evidence("number of non-finite entries", broken[0].value, "there should be none", broken[0].site),),
        "A weight of this sub-layer, or what enters it, is infinite or not a number; everything after it follows. "
        "No learning rate makes this better.",
        "Look for it: `torch.isfinite` over the parameters of this sub-layer and over the batch; make such weights anew.",
        site=broken[0].site,
    )  # fmt: skip


def underflow(rows: Sequence[Reading]) -> Finding | None:
    """Gradients that are exactly zero where float16 is in use."""
    limits = {row.site: row.value for row in at_last(rows, "limit")}
    zeros = [row for row in at_last(rows, "gradient_zeros") if limits.get(row.site) == HALF]
    lost = [row for row in zeros if row.value > UNDERFLOW]
    if not zeros or len(lost) < 0.2 * len(zeros):
        return None
    worst = max(lost, key=lambda row: row.value)
    return Finding(
        "underflow", "serious", f"gradients underflow in float16, most at {worst.site}",
        (
            Evidence("share of exact zeros in ∇W", worst.value, f"the limit is {UNDERFLOW}", f"{worst.site} {worst.role}"),
            Evidence("share of matrices with such gradients", len(lost) / len(zeros), "the limit is 0.2"),
        ),
        "The gradients are smaller than the smallest float16 number, so that part of the model does not learn.",
        "Raise the loss scale (dynamic loss scaling does this automatically), or use bfloat16.",
        site=worst.site,
    )  # fmt: skip
