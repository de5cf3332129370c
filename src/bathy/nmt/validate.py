"""Validation: NLL and perplexity of held-out pairs, and whether the decoder uses its source."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bathy.nmt.batches import Batch
from bathy.nmt.objective import Objective
from bathy.nmt.world import World


@dataclass(frozen=True)
class Validation:
    """What a validation gave."""

    loss: float
    """NLL in nats for each target token, EOS counted, not smoothed."""
    source_gap: float
    """NLL with the sources rolled by one sentence within the batch, minus NLL: near 0, the decoder ignores its source."""

    @property
    def ppl(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))


def validate(objective: Objective, batches: Iterable[Batch], world: World) -> Validation:
    """NLL and source gap over the batches of all ranks, dropout off."""
    mode = objective.training
    objective.eval()
    loss = rolled = tokens = paired = 0.0
    with torch.no_grad():
        for batch in (batch.to(world.device) for batch in batches):
            right = _nll(objective, batch, batch.source)
            loss, tokens = loss + right, tokens + batch.target_tokens
            if len(batch.source) > 1:
                rolled += _nll(objective, batch, batch.source.roll(1, 0)) - right
                paired += batch.target_tokens
    objective.train(mode)
    loss, rolled, tokens, paired = world.sum(loss, rolled, tokens, paired)
    return Validation(loss / max(tokens, 1), rolled / max(paired, 1))


def _nll(objective: Objective, batch: Batch, source: Tensor) -> float:
    return float(objective(source, batch.target_in, batch.target_out)[1])
