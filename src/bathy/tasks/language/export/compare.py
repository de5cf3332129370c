"""Whether another engine says what bathy says: logits, and greedy continuations or the best token at each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.tasks.language.sampling import Sampling, continued

TIE = 1e-3
"""Difference of two logits below which rounding may decide which token is the likelier."""
CONTINUED = 24
"""Tokens of a continuation."""


@dataclass(frozen=True)
class Comparison:
    """How both engines came out on the same text."""

    sequences: int
    identical: int
    """Sequences whose continuations, or best tokens, are the same."""
    ties: int
    """Others, where the two tokens that part them are equally likely."""
    different: int
    distance: float
    """Largest difference of logits."""


@torch.no_grad()
def compare(model: Transformer, theirs: Any, rows: Tensor, end: int) -> Comparison:
    """Both models on rows of token ids."""
    logits, other = model(rows), theirs(input_ids=rows).logits
    distance = float((logits - other).abs().max())
    if model.config.stacks == ["encoder"]:
        pairs = zip(logits.argmax(-1).tolist(), other.argmax(-1).tolist(), strict=True)
        outcome = [_part(a, b, one) for (a, b), one in zip(pairs, logits, strict=True)]
    else:
        outcome = _continuations(model, theirs, rows, end)
    return Comparison(len(rows), outcome.count("identical"), outcome.count("tie"), outcome.count("different"), distance)


def _continuations(model: Transformer, theirs: Any, rows: Tensor, end: int) -> list[str]:
    window = min(model.config.context or model.config.max_length, model.config.longest)
    prompts = rows[:, : max(1, window // 2)]
    length = max(1, min(CONTINUED, window - prompts.shape[1]))
    steps = list(continued(model, prompts.tolist(), Sampling(length=length, temperature=0), end))
    ours = [[token for token in row if token >= 0] for row in zip(*steps, strict=True)]
    found = theirs.generate(
        input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, do_sample=False, pad_token_id=end
    )
    outcome = []
    for prompt, mine, row in zip(prompts, ours, found[:, prompts.shape[1] :].tolist(), strict=True):
        other = row[: row.index(end)] if end in row else row
        logits = model(torch.cat([prompt, torch.tensor(mine, dtype=prompt.dtype)])[None])[0, len(prompt) - 1 :]
        outcome.append(_part([*mine, end][:length], [*other, end][:length], logits))
    return outcome


def _part(ours: Sequence[int], theirs: Sequence[int], logits: Tensor) -> str:
    """identical, tie or different: the latter by our logits at the first place where the two part."""
    parting = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if not parting:
        return "identical"
    a, b = logits[parting[0], [ours[parting[0]], theirs[parting[0]]]].tolist()
    return "tie" if abs(a - b) < TIE else "different"
