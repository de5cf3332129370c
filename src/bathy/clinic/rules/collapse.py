"""Rules on models that stop seeing their input: tokens that become alike, a dead encoder, attention that saturates."""

from __future__ import annotations

from collections.abc import Sequence

from bathy.clinic.findings import Evidence, Finding
from bathy.clinic.readings import Reading, groups, select
from bathy.clinic.rules.rows import at_last, steps_of

ALIKE = 1e-5
"""Token variance below which the tokens of a batch have become one."""
SAME = (
    ("output_token_variance", "variance over inputs / mean square of the output", 1e-6),
    ("information", "nats by which the output depends on the input", 1e-5),
)
"""The same for what the model returns; its information counts in training only, for some models start with tiny logits."""
KEPT = 1e-2
"""Share of the token variance at a stack's input below which the stack, not the batch, made its tokens alike."""
SETTLED = 16
"""Update from which two samples in a row count; earlier, tokens may come close and part again."""
GAP = 0.02
"""Source gap over loss reduction: below it, the target alone explains the loss."""
REDUCED = 0.4
"""Nats by which a loss must be below that of a uniform guess to have been reduced."""
IGNORED = 0.01
"""Dependence of the loss on the source, relative to the target, below which the decoder ignores the source."""
HEARD = 160
"""Update from which two samples in a row below it count: every decoder learns the frequencies of the target first."""
DEAD = 0.1
"""Token variance of the encoder's output below which its tokens are all alike, where the decoder does not use it."""
LOGIT = 50.0
"""Largest |logit| of a head beyond which its softmax passes no gradient."""
ONE_KEY = 0.05
"""Entropy of such a head relative to uniform attention."""


def collapse(rows: Sequence[Reading]) -> Finding | None:
    """Tokens that leave a stack all alike, in any model: at once in an examination, in two samples in a row while training."""
    wanted = _deciding(rows, "token_variance")
    for (stack,), own in groups([row for row in rows if row.quantity == "token_variance"], "stack"):
        lowest = [min(found, key=lambda row: row.value) for at in wanted if (found := select(own, step=at))]
        entry = [row.value for row in at_last(rows, "input_token_variance") if row.stack == stack]
        if not lowest or len(lowest) < len(wanted) or not all(row.value < ALIKE for row in lowest):
            continue
        if not entry or lowest[-1].value < KEPT * entry[0]:
            return _collapsed(stack, lowest[-1], entry, own, _steadier(rows, stack))
    return _same_output(rows)


def _deciding(rows: Sequence[Reading], quantity: str) -> list[int]:
    """The steps that decide: the only one, else the last two if both are settled; else none."""
    steps = steps_of(rows, quantity)
    return steps if len(steps) == 1 else steps[-2:] if len(steps) > 1 and steps[-2] >= SETTLED else []


def _collapsed(stack: str, least: Reading, entry: list[float], own: Sequence[Reading], steadier: str) -> Finding:
    """The finding: where the variance is lowest, what it was at the input, and across which site it fell most."""
    down = sorted(select(own, step=least.step), key=lambda row: row.index)
    before = [entry[0] if entry else down[0].value, *(row.value for row in down)]
    drops = [(then / max(now.value, 1e-30), now) for then, now in zip(before, down, strict=False)]
    factor, where = max(drops, key=lambda drop: drop[0])
    evidence = [Evidence("token variance", least.value, f"below {ALIKE:g} all tokens are one", least.site)]
    if entry:
        evidence.append(Evidence("token variance of its input", entry[0], "what the stack was given", stack))
    evidence.append(Evidence("largest drop of token variance", factor, "the factor across one sub-layer", where.site))
    return Finding(
        "collapse", "serious", f"all tokens leave the {stack} alike", tuple(evidence),
        "The stack no longer passes on its input, so the model can only learn averages: the loss settles at what guessing by "
        "frequency gives.",
        f"Restart with {steadier}. A collapsed stack gets almost no gradient to recover with.",
        site=where.site,
    )  # fmt: skip


def _steadier(rows: Sequence[Reading], stack: str) -> str:
    """What keeps a stack from collapsing; Admin is no way out for one that has its ω already."""
    has_omega = any(row.value != 1 for row in at_last(rows, "omega") if row.stack == stack)
    other = "Pre-LN (Admin's ω is there, and did not suffice)" if has_omega else "Admin (scheme 'admin', or bathy.stabilise_)"
    return f"a lower learning rate, a longer warm-up, or {other}"


def _same_output(rows: Sequence[Reading]) -> Finding | None:
    """The model returns the same for every input."""
    evidence = [
        Evidence(what, own[-1].value, f"the limit is {limit:g}")
        for quantity, what, limit in SAME
        for own in [[row for row in select(rows, quantity) if row.step in _deciding(rows, quantity)]]
        if own and all(row.value < limit for row in own) and (quantity != "information" or own[-1].step)
    ]
    if not evidence:
        return None
    return Finding(
        "collapse", "serious", "the model returns the same for every input", tuple(evidence),
        "What the model returns does not depend on what it was given.",
        "Look at the last norm and the output matrix first. If the stacks are not collapsed, one of these passes nothing on.",
    )  # fmt: skip


def dead_encoder(rows: Sequence[Reading]) -> Finding | None:
    """A loss that has fallen although the decoder does not use the source."""
    last = {name: at_last(rows, name) for name in ("source_gap", "uniform_loss", "memory_variance", "loss")}
    if not all(last.values()):
        return None
    gap, uniform, loss = (last[name][0].value for name in ("source_gap", "uniform_loss", "loss"))
    reduction, memory = uniform - loss, min(row.value for row in last["memory_variance"])
    if reduction < REDUCED or gap / reduction > GAP:
        return None
    evidence = (
        Evidence("loss reduction below a uniform guess", reduction, f"the loss has been reduced when above {REDUCED}"),
        Evidence("source gap / loss reduction", gap / reduction, f"a decoder that uses the source has more than {GAP}"),
        Evidence("token variance of the encoder's output", memory, f"its tokens are all alike below {DEAD}"),
    )
    if memory > DEAD:
        return Finding(
            "source_unused", "note", "the decoder does not use the source yet", evidence,
            "A wrong source costs it nothing, although the encoder still tells its tokens apart: usual in the first updates.",
            "Continue training and examine again. If the gap stays at 0, look at the encoder's depth and scheme.",
        )  # fmt: skip
    return Finding(
        "dead_encoder", "serious", "the encoder is dead while the loss falls", evidence,
        "All tokens leave the encoder alike, so the decoder has become a language model of the target.",
        f"Restart with {_steadier(rows, 'encoder')}. A collapsed encoder gets no gradient to recover with.",
        site="encoder",
    )  # fmt: skip


def source_ignored(rows: Sequence[Reading]) -> Finding | None:
    """A decoder that learns the target alone: its loss hardly depends on the source, in two samples in a row."""
    read = {row.step: row.value for row in select(rows, "source_influence")}
    last = sorted(read)[-2:]
    if len(last) < 2 or last[0] < HEARD or not all(read[step] < IGNORED for step in last):
        return None
    return Finding(
        "source_ignored", "warning", "the decoder ignores the source",
        (Evidence("dependence of the loss on the source / on the target", read[last[1]], f"the limit is {IGNORED:g}"),),
        "What the encoder passes on, and what cross-attention makes of it, hardly changes the loss: the decoder is becoming a "
        "language model of the target, while its loss falls.",
        "Lower the learning rate or lengthen the warm-up. Examine the model (bathy.examine): a source gap of 0 confirms it.",
        site="cross-attention",
    )  # fmt: skip


def attention_logits(rows: Sequence[Reading]) -> Finding | None:
    """Heads whose logits are so large that each query attends to one key and the softmax passes no gradient."""
    entropy = {(row.site, row.role): row.value for row in at_last(rows, "head_entropy")}
    large = [row for row in at_last(rows, "head_logit") if row.value > LOGIT]
    stuck = [row for row in large if entropy.get((row.site, row.role), 1.0) < ONE_KEY]
    if not stuck:
        return None
    worst = max(stuck, key=lambda row: row.value)
    where = f"{worst.site} {worst.role}"
    return Finding(
        "attention_logits", "warning", f"attention has saturated at {where}",
        (
            Evidence("largest |logit|", worst.value, f"the limit is {LOGIT:g}", where),
            Evidence("relative entropy of attention", entropy[worst.site, worst.role], f"one key below {ONE_KEY}", where),
            Evidence("number of such heads", float(len(stuck)), f"of {len(entropy)}"),
        ),
        "The queries and keys of this head have grown until the softmax picks one key, so no gradient reaches them.",
        "Normalise queries and keys (QK-norm), or lower the learning rate. Weight decay on the query and key "
        "matrices also limits them.",
        site=worst.site,
    )  # fmt: skip
