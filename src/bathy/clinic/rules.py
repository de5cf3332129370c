"""The rules: each looks at the rows of one model and gives a finding with its evidence, or nothing.

They see no scheme, no class and no number of layers. docs/findings.md has the reasoning behind every rule and threshold, and
the confusion matrix of all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bathy.clinic.exams.stability import DELTA
from bathy.clinic.findings import Evidence, Finding
from bathy.clinic.readings import Reading, groups, mean_over, select

AMPLIFICATION = 6.0
"""Σβ²_ii of a stack at the start: Post-LN reaches it at about 9 layers, Pre-LN and Admin at no depth in use."""
CHANGE = 2.0e-3 / DELTA**2
"""Output change over δ² (at width 128) that such a stack shows at least, while its weights are untrained."""
VANISHING = 0.1
"""First over last gradient of a stack: below it, a gradient vanishes (the encoder and Pre-LN stay above 0.3)."""
ACROSS = 0.6
"""Share of the drop that must sit across encoder-attention."""
GROWN = 1.8
"""Growth of Σβ² over the run's first reading; healthy runs stay below 1.6."""
STRONG = 4.0
"""Σβ² below which growth is harmless."""
UPDATE = 4e-3
"""Mean ‖ΔW‖/‖W‖ of one update that is too large where Σβ² grows as well; healthy runs stay below 3e-3 at width 64."""
GROWING = 1.3
"""Growth of Σβ² that counts as growing there."""
LARGE_UPDATE = 1e-2
"""Mean ‖ΔW‖/‖W‖ of one update that is too large by itself."""
GAP = 0.02
"""Source gap over what the loss has fallen by: below it, the target alone explains the loss."""
FALLEN = 0.4
"""Nats by which a loss must be below that of a uniform guess to have fallen."""
COLLAPSED = 0.1
"""Token variance of the encoder's output below which its tokens are all alike."""
SILENT = 1e-4
"""Branch share below which a branch contributes nothing."""
SILENT_EVERYWHERE = """Every branch is silent, as is right at the start of schemes that begin at zero, such as ReZero, FixUp \
and LayerScale: examine again after some hundred updates."""
SILENT_SOME = """Look at their scale factors and output matrices; use a scheme whose branches keep their share, such as Admin, \
or fewer layers."""
NEAR_LIMIT = 0.25
"""Share of the largest representable number above which the next update may overflow."""
HALF = 65504.0
"""The largest float16."""
UNDERFLOW = 0.3
"""Share of exact zeros in a matrix gradient."""


def at_last(rows: Sequence[Reading], quantity: str) -> list[Reading]:
    """The rows of a quantity at the last step that has it."""
    own = select(rows, quantity)
    last = max((row.step for row in own), default=0)
    return [row for row in own if row.step == last]


def at_first(rows: Sequence[Reading], quantity: str) -> list[Reading]:
    """The rows of a quantity at the first step that has it."""
    own = select(rows, quantity)
    first = min((row.step for row in own), default=0)
    return [row for row in own if row.step == first]


def amplified(rows: Sequence[Reading]) -> dict[str, float]:
    """Σ_i β²_ii by stack, from branch shares of one step."""
    return {stack: sum(share for _, share in part) for stack, part in _by_stack(mean_over(rows, "stack", "index")).items()}


def _by_stack(shares: dict[tuple[str, int], float]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for (stack, index), share in shares.items():
        found.setdefault(stack, []).append((index, share))
    return found


def amplification(rows: Sequence[Reading]) -> Finding | None:
    """Σβ²_ii so large that updates are amplified (Theorem 2), at the start, or where the output still moves as much."""
    shares = at_last(rows, "branch_share")
    if not shares:
        return None
    change = mean_over(at_last(rows, "output_change"), "stack", "layer")
    sums = amplified(at_first(rows, "branch_share") if not change else shares)
    stack, total = max(sums.items(), key=lambda item: item[1])
    evidence = [Evidence("Σβ² over the sub-layers", total, f"stable stacks stay below {AMPLIFICATION:g}", stack)]
    if change:
        depth = max(layer for name, layer in change if name == stack)
        moved = change[stack, depth] / DELTA**2
        if moved >= CHANGE:
            reference = f"stable stacks stay below {CHANGE:.0f}"
            evidence.append(Evidence("output change / δ²", moved, reference, f"{stack} layer {depth}"))
        elif shares[0].step > 0:
            return None  # training has calmed it; before training Σβ² alone decides
    elif min(row.step for row in shares) > 1:
        return None  # β² may grow in training: only the start, or a measured change, counts
    if not total > AMPLIFICATION:
        return None
    return Finding(
        "amplification", "serious", f"the {stack} amplifies every update", tuple(evidence),
        "Each sub-layer hands on a large share of its own branch, so small changes of the weights add up over the depth.",
        "Start it as Admin: bathy.stabilise_(model, batch), or scheme 'admin'. Pre-LN is stable too. A longer warm-up and a "
        "smaller learning rate help a little; fewer layers help.",
    )  # fmt: skip


def vanishing(rows: Sequence[Reading]) -> Finding | None:
    """A gradient that shrinks on its way down a stack, with the drop across encoder-attention."""
    for (stack,), own in groups([row for row in at_last(rows, "gradient") if row.index], "stack"):
        down = {row.index: row for row in own}
        first, last = down[min(down)], down[max(down)]
        if not last.value > 0 or not first.value / last.value < VANISHING:
            continue
        drops = [
            (row.kind, math.log(row.value / down[row.index - 1].value))
            for row in own
            if row.index - 1 in down and row.value > 0 and down[row.index - 1].value > 0
        ]
        total, across = sum(drop for _, drop in drops), sum(drop for kind, drop in drops if kind == "encoder_attention")
        if total <= 0 or across / total < ACROSS:
            continue
        return Finding(
            "vanishing", "note", f"the gradient vanishes across the {stack}'s encoder-attention",
            (
                Evidence("first / last gradient", first.value / last.value, f"vanishing below {VANISHING}", stack),
                Evidence("share of the drop across encoder-attention", across / total, f"at least {ACROSS}", stack),
            ),
            "Its norm divides by the sum's deviation, while what comes back through the softmax does not make up for it.",
            "By itself it does not stop training: an adaptive optimiser evens out the updates, plain SGD does not. Use Adam or "
            "RAdam; a Pre-LN decoder or Admin's ω removes it.",
        )  # fmt: skip
    return None


def dead_encoder(rows: Sequence[Reading]) -> Finding | None:
    """A loss that has fallen although the decoder does not use the source."""
    last = {name: at_last(rows, name) for name in ("source_gap", "uniform_loss", "memory_variance", "loss")}
    if not all(last.values()):
        return None
    gap, uniform, loss = (last[name][0].value for name in ("source_gap", "uniform_loss", "loss"))
    fallen, memory = uniform - loss, min(row.value for row in last["memory_variance"])
    if fallen < FALLEN or gap / fallen > GAP:
        return None
    evidence = (
        Evidence("loss below a uniform guess", fallen, f"it has fallen when above {FALLEN}"),
        Evidence("source gap / that fall", gap / fallen, f"a decoder that reads the source has more than {GAP}"),
        Evidence("token variance of the encoder's output", memory, f"its tokens are all alike below {COLLAPSED}"),
    )
    if memory > COLLAPSED:
        return Finding(
            "source_unused", "note", "the decoder does not use the source yet", evidence,
            "A wrong source costs it nothing, though the encoder still tells its tokens apart: usual in the first updates.",
            "Train on and look again; if the gap stays at 0, look at the encoder's depth and scheme.",
        )  # fmt: skip
    return Finding(
        "dead_encoder", "serious", "the encoder is dead while the loss falls", evidence,
        "All tokens leave the encoder alike, so the decoder has become a language model of the target.",
        "Stabilise the encoder (scheme 'admin', or pre_ln), lower the learning rate or lengthen the warm-up, and start again: "
        "a collapsed encoder gets no gradient to come back with.",
    )  # fmt: skip


def overflow(rows: Sequence[Reading]) -> Finding | None:
    """Numbers that half precision cannot hold, or nearly not, and the first site where they stand."""
    limits = {row.site: row.value for row in at_last(rows, "limit")}
    broken = [row for row in at_last(rows, "nonfinite") if row.value > 0]
    half = [row for row in broken if limits.get(row.site) == HALF]
    near = [row for row in at_last(rows, "peak") if limits.get(row.site) == HALF and row.value > NEAR_LIMIT * HALF]
    where = next(iter(half or near), None)
    if where is None:
        return None
    evidence = [Evidence("entries that are not finite", row.value, "there should be none", row.site) for row in half[:1]]
    evidence += [Evidence("largest |entry|", row.value, f"float16 ends at {HALF:.0f}", row.site) for row in near[:1]]
    state = "overflows" if half else "is nearly full"
    return Finding(
        "overflow", "serious" if half else "warning", f"float16 {state} at {where.site}", tuple(evidence),
        "The sum of shortcut and branch outgrows the range of float16.",
        "Use bfloat16, or keep this sub-layer in float32. Admin folded at the start has larger activations: fold it later.",
    )  # fmt: skip


def underflow(rows: Sequence[Reading]) -> Finding | None:
    """Gradients that are exactly zero where half precision is in use."""
    limits = {row.site: row.value for row in at_last(rows, "limit")}
    zeros = [row for row in at_last(rows, "gradient_zeros") if limits.get(row.site) == HALF]
    lost = [row for row in zeros if row.value > UNDERFLOW]
    if not zeros or len(lost) < 0.2 * len(zeros):
        return None
    worst = max(lost, key=lambda row: row.value)
    return Finding(
        "underflow", "serious", f"float16 loses the gradients, most at {worst.site}",
        (
            Evidence("share of exact zeros in ∇W", worst.value, f"above {UNDERFLOW} is lost", f"{worst.site} {worst.role}"),
            Evidence("share of the matrices with such gradients", len(lost) / len(zeros), "a few are usual, a fifth is not"),
        ),
        "The gradients are smaller than float16's smallest number, so that part of the model does not learn.",
        "Raise the loss scale (dynamic scaling does it by itself), or use bfloat16.",
    )  # fmt: skip


def relative_updates(rows: Sequence[Reading]) -> dict[int, float]:
    """Mean ‖ΔW‖/‖W‖ over all matrices, by step."""
    weights = {(row.step, row.site, row.role): row.value for row in select(rows, "weight")}
    ratios: dict[int, list[float]] = {}
    for row in select(rows, "weight_update"):
        size = weights.get((row.step, row.site, row.role), 0.0)
        if size > 0:
            ratios.setdefault(row.step, []).append(row.value / size)
    return {step: statistics.fmean(values) for step, values in sorted(ratios.items())}


def growth(rows: Sequence[Reading]) -> dict[str, tuple[float, float]]:
    """Σβ² of each stack at the first and at the last step that was read; nothing where there is one step only."""
    shares = select(rows, "branch_share")
    start, now = amplified(at_first(shares, "branch_share")), amplified(at_last(shares, "branch_share"))
    return {stack: (start[stack], now[stack]) for stack in now if start.get(stack) and start != now}


def learning_rate(rows: Sequence[Reading]) -> Finding | None:
    """Updates too large for the model: branch shares that grow, weights that move too far, a loss that is gone."""
    evidence = []
    grown = growth(rows)
    for stack, (start, now) in grown.items():
        if now > STRONG and now / start > GROWN:
            reference = f"it began at {start:.3g}; healthy runs grow less than {GROWN:g} times"
            evidence.append(Evidence("Σβ² over the sub-layers", now, reference, stack))
    moved = list(relative_updates(rows).values())[-3:]
    limit = UPDATE if any(now / start > GROWING for start, now in grown.values()) else LARGE_UPDATE
    if len(moved) == 3 and min(moved) > limit:
        evidence.append(Evidence("mean ‖ΔW‖/‖W‖ of an update", moved[-1], f"above {limit:g} three samples running"))
    losses = [row for row in select(rows, "loss") if row.step]
    gone = bool(losses) and not math.isfinite(losses[-1].value)
    if gone and not any(row.value == HALF for row in at_last(rows, "limit")):
        evidence.append(Evidence("loss", losses[-1].value, "it should be a number"))
    if not evidence:
        return None
    return Finding(
        "learning_rate", "serious" if gone else "warning", "the learning rate is too high for this model", tuple(evidence),
        "Each update moves the weights, and with them the branches, further than the model can follow.",
        "Lower the learning rate two to ten times or lengthen the warm-up, and go back to a checkpoint from before.",
    )  # fmt: skip


def silent(rows: Sequence[Reading]) -> Finding | None:
    """Branches that add nothing to the stream."""
    shares = at_last(rows, "branch_share")
    quiet = [row for row in shares if row.value < SILENT]
    if not quiet or len(quiet) < 0.05 * len(shares):
        return None
    everywhere = len(quiet) == len(shares)
    names = ", ".join(dict.fromkeys(row.site for row in quiet[:3])) + (", …" if len(quiet) > 3 else "")
    least = min(quiet, key=lambda row: row.value)
    return Finding(
        "silent", "note" if everywhere else "warning", f"{len(quiet)} of {len(shares)} branches contribute nothing",
        (
            Evidence("smallest branch share", least.value, f"below {SILENT:g} nothing is added", least.site),
            Evidence("silent branches", float(len(quiet)), f"of {len(shares)}", names),
        ),
        "These branches add next to nothing to the stream, so their layers hand on what they get, as if they were not there.",
        SILENT_EVERYWHERE if everywhere else SILENT_SOME,
    )  # fmt: skip


def healthy(rows: Sequence[Reading]) -> Finding | None:
    """What was looked at and found in order; nothing where there was nothing to look at."""
    shares = at_last(rows, "branch_share")
    if not shares:
        return None
    sums = amplified(shares)
    evidence = [
        Evidence("Σβ² over the sub-layers", total, f"limit at the start {AMPLIFICATION:g}", stack)
        for stack, total in sums.items()
    ]
    for (stack,), own in groups([row for row in at_last(rows, "gradient") if row.index], "stack"):
        if own[-1].value > 0:
            evidence.append(
                Evidence("first / last gradient", own[0].value / own[-1].value, f"vanishing below {VANISHING}", stack)
            )
    return Finding(
        "healthy", "healthy", "nothing is wrong that readings can show", tuple(evidence),
        "Branches, gradients and numbers stay within what trains.", "Train.",
    )  # fmt: skip
