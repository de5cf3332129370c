"""What the Hugging Face classes have in common: what a class can hold, and our weights under other names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bathy.core.schemes import SCHEMES
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ModelError

Weights = dict[str, Tensor]
Needs = Mapping[str, tuple[object, ...]]
"""Setting to the values that a class can hold."""
EPSILON = 1e-5
"""Added to the variance by all our norms."""


def misfits(config: TransformerConfig, stack: str, scheme: str, needs: Needs) -> list[str]:
    """The settings that a class cannot hold, each as `name = value`."""
    if config.stacks != [stack]:
        return [f"a stack of {' and '.join(config.stacks)} layers (it has {stack} layers only)"]
    found = [] if config.scheme(stack).build is SCHEMES[scheme].build else [f"{stack}_scheme = {config.scheme_name(stack)!r}"]
    for name, values in needs.items():
        if getattr(config, name) not in values:
            found.append(f"{name} = {getattr(config, name)!r}")
    return found


def check(to: str, name: str, reasons: list[str]) -> None:
    """An error that names what the class cannot hold."""
    if reasons:
        raise ModelError(
            f"--to {to}: {name} cannot hold {', '.join(f'model.{reason}' if '=' in reason else reason for reason in reasons)}; "
            "export --to bathy holds every model"
        )


def grouped(config: TransformerConfig) -> list[str]:
    """Grouped heads of keys and values, where a class has none."""
    return [f"kv_heads = {config.kv_heads}"] if config.kv_heads not in (0, config.heads) else []


def embeddings(model: Transformer, stack: str) -> tuple[Tensor, Tensor, bool]:
    """Input and output embeddings, and whether they are one matrix; a factor √width goes into the input's own copy."""
    config = model.config
    factor = math.sqrt(config.width) if config.embedding_scale == "sqrt_width" else 1.0
    inside: Any = model.embeddings["shared" if config.tie_embeddings else stack]
    tied = config.tie_embeddings and factor == 1.0
    return inside.weight.detach() * factor, model.output_weight.detach(), tied


def positions(model: Transformer, stack: str) -> Tensor:
    """The table of positions, learned or not, as far as the model knows them."""
    table: Tensor = getattr(model, f"{stack}_positions")
    return table.detach()[: model.config.longest]


def norm(path: str, module: nn.Module, bias: bool = True) -> Weights:
    """A norm's weights under a path; a bias that ours does not have is 0."""
    found = {f"{path}.{name}": value.detach() for name, value in module.named_parameters()}
    if bias and f"{path}.bias" not in found:
        found[f"{path}.bias"] = torch.zeros_like(found[f"{path}.weight"])
    return found


def linear(path: str, weight: Tensor, bias: Tensor | None, transposed: bool = False) -> Weights:
    """A linear layer's weights under a path; a bias that ours does not have is 0."""
    zeros = weight.new_zeros(len(weight)) if bias is None else bias.detach()
    return {f"{path}.weight": (weight.T if transposed else weight).detach().contiguous(), f"{path}.bias": zeros}


def filled(peer: Any, weights: Weights, unfilled: tuple[str, ...] = ()) -> Any:
    """The Hugging Face model with our weights; one that gets none, or that it does not have, is a bug of ours."""
    missing, foreign = peer.load_state_dict({name: value.detach() for name, value in weights.items()}, strict=False)
    left = [name for name in missing if not name.endswith(("inv_freq", "position_ids", *unfilled))]
    assert not foreign and not left, (left, foreign)
    return peer.eval()
