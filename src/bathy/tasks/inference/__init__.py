"""Decoding step by step: what search and sampling ask of a model, as the model computes it or as fast as a CPU can.

    decoder = prepare(model)                     # once per model: weights packed, sub-layers flattened to plain calls
    steps = begin(decoder, source, beams)        # a batch is encoded
    logits = steps.step(tokens_sk)               # one token for every hypothesis
    steps.follow_(parents)                       # continue from these hypotheses
    steps.select_(rows)                          # keep these sentences

`begin` takes a Transformer as well and then goes through its modules. A prepared decoder computes the same numbers to rounding:
before it is used it is compared with the model on a few tokens, and a model it does not fit keeps its own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.tasks.inference.prepared import Prepared, PreparedSteps

__all__ = ["Prepared", "Steps", "begin", "prepare"]


class Steps(Protocol):
    """A batch that is decoded step by step: one hypothesis per sentence in the first step, then `beams`."""

    def step(self, tokens_sk: Tensor) -> Tensor:
        """Logits of each hypothesis' next token (s k v)."""

    def follow_(self, parents: Sequence[int]) -> None:
        """Let the next s·beams hypotheses continue from these of the last step, both counted over the whole batch."""

    def select_(self, rows: Sequence[int]) -> None:
        """Keep these sentences, in this order."""


def begin(model: Transformer | Prepared, source: Tensor, beams: int) -> Steps:
    """The batch, encoded, before its first step."""
    return PreparedSteps(model, source, beams) if isinstance(model, Prepared) else ModuleSteps(model, source, beams)


class ModuleSteps:
    """Steps through the model's own modules."""

    def __init__(self, model: Transformer, source: Tensor, beams: int) -> None:
        self.model, self.memory, self.cache = model, model.encode(source), model.cache(beams)
        self.beams, self.columns = beams, 1

    def step(self, tokens_sk: Tensor) -> Tensor:
        self.columns = tokens_sk.shape[1]
        features = self.model.decode(tokens_sk.expand(-1, self.beams), *self.memory, self.cache)
        return self.model.logits(features[:, : self.columns])

    def follow_(self, parents: Sequence[int]) -> None:
        within = torch.tensor(parents, device=self.memory[0].device).view(-1, self.beams)
        self.cache.follow_(within - torch.arange(len(within), device=within.device)[:, None] * self.columns)

    def select_(self, rows: Sequence[int]) -> None:
        chosen = torch.tensor(rows, device=self.memory[0].device)
        self.memory = self.memory[0][chosen], self.memory[1][chosen]
        self.cache.select_(chosen)


def prepare(model: Transformer) -> Transformer | Prepared:
    """The model ready to decode fast; the model itself on other devices and where the faster way does not give its numbers."""
    foreign = model.config.beyond("biases", "embedding_scale", "embedding_norm")
    if model.output_weight.device.type != "cpu" or len(model.config.stacks) != 2 or model.training or foreign:
        return model
    try:
        prepared = Prepared(model)
        return prepared if prepared.agrees() else model
    except (TypeError, AttributeError, RuntimeError):  # a part that Prepared does not know
        return model
