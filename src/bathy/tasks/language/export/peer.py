"""A Hugging Face class as a row: what it can hold, and where it keeps the weights that a bathy model has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bathy.core.schemes import SCHEMES
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ModelError, require

Weights = dict[str, Tensor]
UNFILLED = ("inv_freq", "position_ids", ".attn.masked_bias", ".attn.bias")
"""Endings of what a class makes by itself."""


@dataclass(frozen=True)
class Peer:
    """A class of transformers, and the names of its parts."""

    model: str
    """The class."""
    config: str
    """The class of its config."""
    settings: Callable[[TransformerConfig, int], dict[str, Any]]
    """What its config is made with; the number is the end-of-document token."""
    scheme: str
    """Whose residual sites it has."""
    needs: Mapping[str, tuple[object, ...]]
    """Setting to the values that it can hold."""
    outer: Mapping[str, str]
    """What lies outside the layers (input, positions, output, final) to its path."""
    layer: str
    """A layer's path, with its number as {}."""
    roles: Mapping[str, str]
    """A matrix, or a norm of q or k, to its path in a layer; matrices under one path are one, row below row."""
    norms: tuple[str, str]
    """Paths in a layer of the norms of attention and feed-forward."""
    stack: str = "decoder"
    grouped: bool = False
    """Whether it has grouped heads of keys and values."""
    transposed: bool = False
    """Whether a matrix is stored as inputs × outputs."""
    offset: int = 0
    """Rows of the table of positions that come before the first position."""
    extra: Callable[[Transformer], Weights] = field(default=lambda model: {})
    """Weights that no other class has."""
    auto: str = "AutoModelForCausalLM"
    """What loads it from disk."""

    def misfits(self, config: TransformerConfig) -> list[str]:
        """The settings that the class cannot hold, by name."""
        stack = self.stack
        if config.stacks != [stack]:
            return [f"a stack of {' and '.join(config.stacks)} layers (it has {stack} layers only)"]
        found: dict[str, object] = {}
        if config.scheme(stack).build is not SCHEMES[self.scheme].build:
            found[f"{stack}_scheme"] = config.scheme_name(stack)
        found |= {name: getattr(config, name) for name, values in self.needs.items() if getattr(config, name) not in values}
        if not self.grouped and config.kv_heads not in (0, config.heads):
            found["kv_heads"] = config.kv_heads
        return [f"model.{name} = {value!r}" for name, value in found.items()]

    def check(self, config: TransformerConfig) -> None:
        """An error that names what the class cannot hold."""
        if reasons := self.misfits(config):
            raise ModelError(f"{self.model} cannot hold {', '.join(reasons)}; export --to bathy holds every model")

    def build(self, model: Transformer, end: int) -> Any:
        """The class with the model's weights; `end` is the end-of-document token."""
        transformers: Any = require("transformers", "export")
        inside, outside, tied = embeddings(model, self.stack)
        settings = {**self.settings(model.config, end), "tie_word_embeddings": tied}
        peer = getattr(transformers, self.model)(getattr(transformers, self.config)(**settings))
        weights = {f"{self.outer['input']}.weight": inside, f"{self.outer['output']}.weight": outside}
        return filled(peer, weights | self._around(model) | dict(self._layers(model)) | self.extra(model))

    def _around(self, model: Transformer) -> Weights:
        """The table of positions as far as the model knows them, and the last norm, where there are such."""
        weights: Weights = {}
        if "positions" in self.outer:
            table: Tensor = getattr(model, f"{self.stack}_positions")[: model.config.longest]
            before = table.new_zeros(self.offset, table.shape[1])
            weights[f"{self.outer['positions']}.weight"] = torch.cat([before, table])
        if "final" in self.outer:
            weights |= named(self.outer["final"], getattr(model, self.stack).final)
        return weights

    def _layers(self, model: Transformer) -> Iterator[tuple[str, Tensor]]:
        """Every weight of every layer under its name there."""
        for i, layer in enumerate(getattr(model, self.stack).layers):
            path, sites = self.layer.format(i), (layer.self_attention, layer.ffn)
            for name, site in zip(self.norms, sites, strict=True):
                yield from named(f"{path}.{name}", site.pre if self.scheme == "pre_ln" else site.post).items()
            for role in ("q_norm", "k_norm"):
                yield from named(f"{path}.{self.roles.get(role)}", getattr(layer.self_attention.f, role)).items()
            for name, value in self._matrices([matrix for site in sites for matrix in site.f.matrices()]).items():
                yield f"{path}.{name}", value

    def _matrices(self, matrices: list[Any]) -> Weights:
        """A layer's matrices and biases."""
        found: dict[str, list[Tensor]] = {}
        for matrix in matrices:
            found.setdefault(f"{self.roles[matrix.role]}.weight", []).append(matrix.weight)
            if matrix.bias is not None:
                found.setdefault(f"{self.roles[matrix.role]}.bias", []).append(matrix.bias)
        whole = {name: torch.cat(parts) for name, parts in found.items()}
        return {name: value.T if self.transposed and value.dim() == 2 else value for name, value in whole.items()}


def embeddings(model: Transformer, stack: str) -> tuple[Tensor, Tensor, bool]:
    """Input and output embeddings, and whether they are one matrix; a factor √width goes into the input's own copy."""
    config = model.config
    factor = math.sqrt(config.width) if config.embedding_scale == "sqrt_width" else 1.0
    inside: Any = model.embeddings["shared" if config.tie_embeddings else stack]
    return inside.weight * factor, model.output_weight, config.tie_embeddings and factor == 1.0


def named(path: str, module: nn.Module) -> Weights:
    """A module's weights under a path."""
    return {f"{path}.{name}": value for name, value in module.named_parameters()}


def filled(peer: Any, weights: Weights) -> Any:
    """The class with our weights, and 0 for a bias that ours does not have; any other difference is a bug of ours."""
    own = {name: value for name, value in peer.state_dict().items() if not name.endswith(UNFILLED)}
    zeros = {name: torch.zeros_like(value) for name, value in own.items() if name.endswith(".bias")}
    whole = zeros | {name: value.detach().contiguous() for name, value in weights.items()}
    assert whole.keys() == own.keys(), whole.keys() ^ own.keys()
    peer.load_state_dict(whole, strict=False)
    return peer.eval()
