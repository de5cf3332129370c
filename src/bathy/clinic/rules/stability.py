"""Rules on how strongly a stack reacts to its updates: amplification, the learning rate, spikes, vanishing gradients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bathy.clinic.exams.stability import DELTA
from bathy.clinic.findings import Evidence, Finding
from bathy.clinic.readings import Reading, groups, mean_over, select
from bathy.clinic.rules.precision import HALF
from bathy.clinic.rules.rows import amplified, at_first, at_last, broken_at_start, relative_updates, steps_of

AMPLIFICATION = 6.0
"""Σβ²_ii of a stack at the start: Post-LN reaches it at about 9 layers, Pre-LN and Admin at no depth in use."""
AMPLIFIED = 0.01
"""Σβ² times the mean ‖ΔW‖/‖W‖ of an update, from which such a stack fails: at lower rates it trains, whatever its depth."""
CHANGE = 2.0e-3 / DELTA**2
"""Output change over δ² (at width 128) that such a stack shows at least, while its weights are untrained."""
STEP_CHANGE = 0.7
"""Output change of one step at the given rate, of at most 2, above which the step replaces what the stack computes."""
VANISHING = 0.1
"""First over last gradient of a stack: below it, a gradient vanishes (the encoder and Pre-LN stay above 0.3)."""
ACROSS = 0.6
"""Share of the drop that must be across cross-attention."""
RECENT = 4
"""Samples within which Σβ² must grow: in healthy runs of Post-LN it grows, too, but slowly."""
GROWN = 1.5
"""Growth of Σβ² within them."""
STRONG = 5.0
"""Σβ² below which growth is harmless."""
EARLY = 8
"""Update from which Σβ² is compared: the first updates of an adaptive optimiser are large in any run."""
REPLACED = 0.3
"""Mean ‖ΔW‖/‖W‖ of one update that replaces the weights within a few updates, whatever the optimiser."""
LEAP = 4.0
"""Mean ‖ΔW‖/‖W‖ of a single update after which nothing of the weights before it is left, whatever scale they started with."""
EXCESS = 3.0
"""‖ΔW‖ over what the optimiser makes of such a rate on such matrices: Adam moves no entry by much more than the rate."""
SPIKE = 6.0
"""Standard deviations above the recent losses that make a spike."""
JUMP = 0.3
"""Nats above the recent losses that make a spike, or above the lowest ones that make a rise."""
RISEN = 7.0
"""Standard errors by which the median of the latest 16 losses must exceed the lowest such median."""


def amplification(rows: Sequence[Reading]) -> Finding | None:
    """Σβ²_ii so large that updates are amplified (Theorem 2), at the start, or where the output still moves as much.

    While training, updates must be large enough to be amplified: Post-LN of any depth trains at a rate that is low enough.
    """
    shares, start = at_last(rows, "branch_share"), at_first(rows, "branch_share")
    if not shares:
        return None
    change = mean_over(at_last(rows, "output_change"), "stack", "layer")
    stack, total = max(amplified(shares if change else start).items(), key=lambda item: item[1])
    evidence = [Evidence("Σβ² over the sub-layers", total, f"stable stacks stay below {AMPLIFICATION:g}", stack)]
    if change:
        depth = max(layer for name, layer in change if name == stack)
        moved = change[stack, depth] / DELTA**2
        if moved >= CHANGE:
            reference = f"stable stacks stay below {CHANGE:.0f}"
            evidence.append(Evidence("output change / δ²", moved, reference, f"{stack} layer {depth}"))
        elif shares[0].step > 0:
            return None  # training has reduced it; before training Σβ² alone decides
    elif min(row.step for row in start) > 1:
        return None  # β² may grow in training: only the start, or a measured change, counts
    elif updates := relative_updates(rows):
        moved = total * max((size for at, size in updates.items() if at >= EARLY), default=0.0)
        if moved < AMPLIFIED:
            return None
        evidence.append(Evidence("Σβ² · ‖ΔW‖/‖W‖ of an update", moved, f"from {AMPLIFIED:g} on it counts", stack))
    if not total > AMPLIFICATION:
        return None
    return Finding(
        "amplification", "serious", f"the {stack} amplifies every update", tuple(evidence),
        "Each sub-layer passes on a large share of its own branch, so small changes of the weights add up over the depth.",
        "Initialise it with Admin: bathy.stabilise_(model, batch), or scheme 'admin'. Pre-LN is stable too. "
        "A longer warm-up and a "
        "smaller learning rate help a little; fewer layers help.",
        site=stack,
    )  # fmt: skip


def step(rows: Sequence[Reading]) -> Finding | None:
    """One step of Adam at the given learning rate that changes most of what the model computes."""
    changes = at_last(rows, "step_change")
    rate = at_last(rows, "step_lr")
    if not changes or not rate or broken_at_start(rows):
        return None
    deepest = {stack: max(own, key=lambda row: row.layer) for (stack,), own in groups(changes, "stack")}
    worst = max(deepest.values(), key=lambda row: math.inf if math.isnan(row.value) else row.value)
    if worst.value < STEP_CHANGE:
        return None
    where = f"{worst.stack} layer {worst.layer}"
    return Finding(
        "step", "warning" if math.isfinite(worst.value) else "serious",
        f"one update at learning rate {rate[0].value:g} changes most of what the model computes",
        (
            Evidence("output change of one Adam step", worst.value, f"of at most 2; the limit is {STEP_CHANGE}", where),
            Evidence("learning rate", rate[0].value, "the rate that was asked about"),
        ),
        "The gradient is taken at weights that the update leaves far behind, so the step need not reduce the loss.",
        "Lower the learning rate until this change is small, or use a warm-up that reaches it gradually. "
        "Several rates tried one after the other show the largest that trains.",
        site=where,
    )  # fmt: skip


def growth(rows: Sequence[Reading]) -> dict[str, tuple[float, float]]:
    """Σβ² of each stack: the lowest of the last samples, and the latest; nothing where there is one sample only."""
    last = steps_of(rows, "branch_share")[-RECENT:]
    *before, now = [amplified(select(rows, "branch_share", step=step)) for step in last] or [{}]
    known = {stack: [sums[stack] for sums in before if stack in sums] for stack in now}
    return {stack: (min(sums), now[stack]) for stack, sums in known.items() if sums}


def learning_rate(rows: Sequence[Reading]) -> Finding | None:
    """Updates too large for the model: branch shares that grow, weights that are replaced, a loss that is not finite."""
    evidence = []
    late = max(steps_of(rows, "branch_share"), default=0) >= EARLY
    for stack, (start, now) in growth(rows).items():
        if late and now > STRONG and now > GROWN * start:
            reference = f"it was {start:.3g} a few samples ago; healthy runs grow by less than a factor of {GROWN:g} in so few"
            evidence.append(Evidence("Σβ² over the sub-layers", now, reference, stack))
    evidence += _too_large(rows)
    losses = [row for row in select(rows, "loss") if row.step]
    gone = bool(losses) and not math.isfinite(losses[-1].value) and not broken_at_start(rows)
    if gone and not any(row.value == HALF for row in at_last(rows, "limit")):
        evidence.append(Evidence("loss", losses[-1].value, "it should be finite"))
    if not evidence:
        return None
    return Finding(
        "learning_rate", "serious" if gone else "warning", "the learning rate is too high for this model", tuple(evidence),
        "Each update moves the weights, and with them the branches, further than the model can follow.",
        "Divide the learning rate by two to ten and resume from an earlier checkpoint. A longer warm-up "
        "helps where the failure "
        "comes early.",
        site=evidence[0].where,
    )  # fmt: skip


def _too_large(rows: Sequence[Reading]) -> list[Evidence]:
    """Updates that replace the weights, or that are larger than this optimiser makes them at this rate on these matrices."""
    sizes = relative_updates(rows)
    moved = {at: size for at, size in sizes.items() if at >= EARLY}
    last = list(moved.values())[-3:]
    usual = {row.step: row.value for row in select(rows, "usual_update")}
    what = "mean ‖ΔW‖/‖W‖ of an update"
    if sizes and sizes[max(sizes)] > LEAP:
        return [Evidence(what, sizes[max(sizes)], f"above {LEAP:g} one update leaves nothing of the weights before it")]
    if len(last) == 3 and min(last) > REPLACED:
        return [Evidence(what, last[-1], f"above {REPLACED:g} in three samples in a row")]
    if last and last[-1] > EXCESS * usual.get(max(moved), math.inf):
        return [Evidence(what, last[-1], f"at this rate this optimiser makes it about {usual[max(moved)]:.2g} here")]
    return []


def spike(rows: Sequence[Reading]) -> Finding | None:
    """A loss far above the losses just before it, with what moved first."""
    peaks, usual, spread = (at_last(rows, name) for name in ("loss_peak", "loss_mean", "loss_deviation"))
    if not (peaks and usual and spread):
        return None
    limit = usual[0].value + max(SPIKE * spread[0].value, JUMP)
    if not peaks[0].value > limit:
        return None
    evidence = [Evidence("loss", peaks[0].value, f"the updates before it had {usual[0].value:.3g} ± {spread[0].value:.2g}")]
    first = moved_first(rows)
    evidence += [] if first is None else [first]
    return Finding(
        "spike", "warning", "the loss has spiked", tuple(evidence),
        "A single update, or a single batch, threw the model off." + (f" {first.what} moved first." if first else ""),
        "Look at the batch of that update. If spikes repeat: clip gradients at their usual norm, lower β2 "
        "towards 0.95, or lower the "
        "learning rate.",
        site="" if first is None else first.where,
    )  # fmt: skip


def rise(rows: Sequence[Reading]) -> Finding | None:
    """A loss that has gone up and stays there: its level is far above the lowest so far."""
    now, lowest, error = (at_last(rows, name) for name in ("loss_level", "lowest_level", "level_error"))
    if not (now and lowest and error) or not now[0].value > lowest[0].value + max(RISEN * error[0].value, JUMP):
        return None
    first = moved_first(rows)
    usual = f"its lowest so far was {lowest[0].value:.3g} ± {error[0].value:.2g}"
    return Finding(
        "rise", "serious", "the loss has risen again",
        (Evidence("median of the latest losses", now[0].value, usual), *([first] if first else [])),
        "The model is losing what it had learned: at this rate its updates undo more than they gain.",
        "Go back to a checkpoint from before the rise and lower the learning rate. Of a run of bathy's, `bathy postmortem` "
        "finds the cause.",
        site="" if first is None else first.where,
    )  # fmt: skip


FURTHEST = 700.0
"""|log| of a factor that is still a number."""
WATCHED = {"branch_share": "branch share", "token_variance": "token variance", "gradient": "gradient", "update": "update size"}


def moved_first(rows: Sequence[Reading]) -> Evidence | None:
    """The reading that left its usual range earliest, and furthest among those of that sample; range: a factor of two."""
    series: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.quantity in WATCHED and 0 < row.value < math.inf:
            series.setdefault((row.quantity, row.site), {})[row.step] = row.value
    left: list[tuple[int, float, str, str, float]] = []
    for (quantity, site), values in series.items():
        steps = sorted(values)
        for at, now in enumerate(steps[2:], 2):
            usual = statistics.median(values[then] for then in steps[1:at])
            distance = min(FURTHEST, abs(math.log(values[now]) - math.log(usual)))
            if distance > math.log(2):
                left.append((now, -distance, quantity, site, values[now]))
                break
    if not left:
        return None
    when, distance, quantity, site, value = min(left)
    return Evidence(
        WATCHED[quantity], value, f"at update {when} it left its range by a factor of {math.exp(-distance):.2g}", site
    )


def vanishing(rows: Sequence[Reading]) -> Finding | None:
    """A gradient that shrinks on its way down a stack, with the drop across cross-attention."""
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
        total, across = sum(drop for _, drop in drops), sum(drop for kind, drop in drops if kind == "cross_attention")
        if total <= 0 or across / total < ACROSS:
            continue
        return Finding(
            "vanishing", "note", f"the gradient vanishes across the {stack}'s cross-attention",
            (
                Evidence("first / last gradient", first.value / last.value, f"vanishing below {VANISHING}", stack),
                Evidence("share of the drop across cross-attention", across / total, f"at least {ACROSS}", stack),
            ),
            "The norm divides by the standard deviation of the sum, and the gradient through the softmax does "
            "not make up for it.",
            "Use Adam or RAdam: an adaptive optimiser evens out the updates, plain SGD does not. By itself this does not stop "
            "training; a Pre-LN decoder or Admin's ω removes it.",
            site=stack,
        )  # fmt: skip
    return None
