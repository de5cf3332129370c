"""Validation: NLL and perplexity of held-out pairs, whether the decoder uses its source, and BLEU on a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bathy.errors import require
from bathy.nmt.batches import Batch, Batches
from bathy.nmt.data import Split
from bathy.nmt.objective import Objective
from bathy.nmt.search import Decode, search
from bathy.nmt.text.codec import Codec
from bathy.nmt.world import World
from bathy.transformer import Transformer

SENTENCES = 64
"""Sentences translated at a time."""


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


def sample_bleu(model: Transformer, split: Split, sentences: int, device: torch.device) -> float:
    """sacreBLEU of greedy translations of the split's first `sentences`, detokenised on both sides."""
    bleu = require("sacrebleu", "nmt").BLEU()
    codec, mode, batches = Codec.load(split.folder), model.training, Batches([split], tokens=1)
    rows = np.arange(min(sentences, len(split)))
    hypotheses: list[Sequence[int]] = []
    references: list[Sequence[int]] = []
    model.eval()
    for batch in map(batches.gathered, np.array_split(rows, -(-len(rows) // SENTENCES))):
        found = search([model], batch.source.to(device), Decode(beam=1))
        hypotheses += [best[0].tokens for best in found]
        references += batch.target_out.tolist()
    model.train(mode)
    return float(bleu.corpus_score(codec.decode(hypotheses), [codec.decode(references)]).score)
