"""Layers of residuals, and the stack of them that is an encoder or a decoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bathy.core.attention import CrossAttention, SelfAttention, Turn
from bathy.core.cache import Cache, KeyValues
from bathy.core.config import Architecture
from bathy.core.feed_forward import FeedForward
from bathy.core.initial import find_initialisation
from bathy.core.norms import find_norm
from bathy.core.residual import Branch, Place, Residual


class Layer(nn.Module):
    """Self-attention, cross-attention in a decoder that has an encoder, and feed-forward: each a residual."""

    self_attention: Residual
    cross_attention: Residual
    ffn: Residual

    def __init__(self, config: Architecture, stack: str, number: int) -> None:
        super().__init__()
        scheme, branches = config.scheme(stack), _branches(config, stack)
        shared: dict[str, nn.Module] = {}
        for offset, f in enumerate(branches):
            here = place(config, stack, number, (number - 1) * len(branches) + offset + 1, len(branches), shared)
            if scheme.by_depth and find_initialisation(config.init).by_depth:
                f.scale_(out=here.sites**-0.5, fc2=here.sites**-0.5)
            self.add_module(f.kind, scheme.build(f, here))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        turn: Turn | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        own: KeyValues | None = None,
        kept: KeyValues | None = None,
    ) -> Tensor:
        """The layer's output; `turn` are rotary angles, `own` and `kept` the caches of self- and cross-attention."""
        x = self.self_attention(x, mask, own, turn)
        if memory is not None:
            x = self.cross_attention(x, memory, memory_mask, kept)
        return self.ffn(x)


def _branches(config: Architecture, stack: str) -> list[Branch]:
    """The branches of one layer, in order."""
    attentions: list[Branch] = [SelfAttention(config, causal=stack == "decoder")]
    if stack == "decoder" and len(config.stacks) == 2:
        attentions.append(CrossAttention(config))
    return [*attentions, FeedForward(config)]


def place(
    config: Architecture, stack: str, layer: int = 1, index: int = 1, per_layer: int = 2, shared: dict[str, Any] | None = None
) -> Place:
    """Where a residual stands in the model of this config."""
    layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
    return Place(
        scheme=config.scheme_name(stack),
        stack=stack,
        layer=layer,
        index=index,
        sites=layers * per_layer,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        width=config.width,
        init=config.init,
        base_width=config.base_width,
        base_layers=config.base_layers,
        make_norm=partial(find_norm(config.norm), bias=config.biases),
        learn_first=config.learn_first_omega,
        shared={} if shared is None else shared,
    )


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with what its scheme puts before and after them."""

    def __init__(self, config: Architecture, name: str) -> None:
        super().__init__()
        scheme, here = config.scheme(name), place(config, name)
        self.first, self.final = scheme.first(here), scheme.final(here)
        self.layers = nn.ModuleList(Layer(config, name, number + 1) for number in range(here.layers))
        self.checkpointing = False

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        turn: Turn | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The stack's output. With `checkpointing`, activations inside layers are computed again in the backward pass."""
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, mask, turn, memory, memory_mask, use_reentrant=False)
            elif cache is not None:
                x = layer(x, mask, turn, memory, memory_mask, cache.own[i], cache.memory[i])
            else:
                x = layer(x, mask, turn, memory, memory_mask)
        return self.final(x)
