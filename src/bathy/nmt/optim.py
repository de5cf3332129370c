"""Optimisers by name, with weight decay on matrices and embeddings alone unless told otherwise."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from bathy.nmt.config import OptimConfig


def make_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The optimiser of the config over two groups: what is decayed, and norms, biases and ω, which are not."""
    groups = parameter_groups(model, config)
    betas = (config.beta1, config.beta2)
    # On a CPU the single-tensor form of RAdam is the fast one; on a GPU torch chooses.
    on_cpu = {"foreach": False} if next(model.parameters()).device.type == "cpu" else {}
    if config.name == "radam":
        return torch.optim.RAdam(groups, config.lr, betas, config.eps, decoupled_weight_decay=True, **on_cpu)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, config.lr, betas, config.eps, **on_cpu)
    if config.name == "adam":
        return torch.optim.Adam(groups, config.lr, betas, config.eps, **on_cpu)
    return torch.optim.SGD(groups, config.lr, momentum=config.beta1, **on_cpu)


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, object]]:
    """Decayed parameters (all, or those of two dimensions and more) and the others, each in the model's order."""
    parameters = list(model.parameters())
    decayed = [parameter for parameter in parameters if config.decay_all or parameter.dim() > 1]
    others = [parameter for parameter in parameters if not config.decay_all and parameter.dim() <= 1]
    return [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every group the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
