"""Sampling: a model's continuations of prompts, token by token, with the key/value cache."""

# b sequence, t token, v vocabulary

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.errors import ConfigError
from bathy.settings import Seed, Settings


class Sampling(Settings, section="sample"):
    """How continuations are drawn."""

    changeable: ClassVar[bool] = True

    length: PositiveInt = 200
    """Tokens to add at most."""
    temperature: NonNegativeFloat = 0.8
    """Divides the logits: below 1 likelier tokens, above 1 more variety; 0 always takes the likeliest."""
    top_k: NonNegativeInt = 0
    """Choose among so many likeliest tokens only; 0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Choose among the fewest tokens that together have this probability (Holtzman et al., 2020); 1: all."""
    seed: Seed = 1
    """Same seed, same text; every sequence of a batch draws numbers of its own."""


@torch.inference_mode()
def continued(model: Transformer, prompts: Sequence[Sequence[int]], sampling: Sampling, end: int = -1) -> Iterator[list[int]]:
    """For each step the next token of every sequence; −1 where one has ended, or its longer prompt is still being read.

    Prompts may have unequal lengths: a longer one's tokens take the place of drawn ones. Where the model's context is full, it
    goes on with the newer half of it.
    """
    if model.config.stacks != ["decoder"]:
        raise ConfigError("only a causal model (decoder layers alone) continues text; this one has an encoder")
    if not all(map(len, prompts)):
        raise ConfigError("a prompt is empty; begin it with the end-of-document token")
    decoder = Steps(model, [list(prompt) for prompt in prompts])
    draws = [torch.Generator().manual_seed(sampling.seed + i) for i in range(len(prompts))]
    left = [sampling.length] * len(prompts)
    while any(left):
        chosen = choose(decoder.logits(), sampling, draws).tolist()
        step = [-1] * len(prompts)
        for i, token in enumerate(chosen):
            if decoder.append(i, token) and left[i]:
                left[i] = 0 if token == end else left[i] - 1
                step[i] = token if token != end else -1
        yield step


class Steps:
    """Sequences that grow by a token per step; what the model has read is kept in its cache."""

    def __init__(self, model: Transformer, prompts: list[list[int]]) -> None:
        self.model, self.prompts = model, prompts
        self.rows = [prompt[: min(map(len, prompts))] for prompt in prompts]
        self.window = min(model.config.context or model.config.max_length, model.config.longest)
        self.cache, self.read = model.cache(), 0

    def logits(self) -> Tensor:
        """Logits of every sequence's next token (b v)."""
        length = len(self.rows[0])
        if length - self.read > self.window or self.cache.length + length - self.read > self.window:
            self.cache, self.read = self.model.cache(), max(0, length - max(1, self.window // 2))
        device = self.model.output_weight.device
        tokens = torch.tensor([row[self.read :] for row in self.rows], device=device)
        self.read = length
        return self.model.logits(self.model.decode(tokens, cache=self.cache)[:, -1])

    def append(self, i: int, token: int) -> bool:
        """Add the token to sequence i, or the next of its prompt, if there is one left; whether it was the token."""
        row, prompt = self.rows[i], self.prompts[i]
        given = len(row) < len(prompt)
        row.append(prompt[len(row)] if given else token)
        return not given


def choose(logits_bv: Tensor, sampling: Sampling, draws: Sequence[torch.Generator]) -> Tensor:
    """A token for every row: the likeliest, or one drawn from the distribution that the settings leave."""
    if sampling.temperature == 0:
        return logits_bv.argmax(1)
    sorted_bv, tokens_bv = (logits_bv.float() / sampling.temperature).sort(dim=1, descending=True, stable=True)
    p_bv = sorted_bv.softmax(1).double()
    if sampling.top_k:
        p_bv[:, sampling.top_k :] = 0
    before_bv = p_bv.cumsum(1) - p_bv
    p_bv[before_bv >= sampling.top_p * p_bv.sum(1, keepdim=True)] = 0  # a token stays if those before it do not suffice
    u_b1 = torch.tensor([[torch.rand((), generator=draw, dtype=torch.float64)] for draw in draws], device=p_bv.device)
    bounds_bv = p_bv.cumsum(1)
    place_b1 = torch.searchsorted(bounds_bv, u_b1 * bounds_bv[:, -1:], right=True)
    return tokens_bv.gather(1, place_b1.clamp(max=p_bv.shape[1] - 1)).squeeze(1)
