"""Optimisers by name, with weight decay where it belongs and states that are saved by parameter name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from bathy.errors import CheckpointError
from bathy.nmt.config import OptimConfig


def make_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The optimiser of the config over two groups: what is decayed, and norms, biases and ω, which are not."""
    groups = parameter_groups(model, config)
    betas = (config.beta1, config.beta2)
    # On a CPU the single-tensor form of RAdam takes less than half the time of the grouped one; on a GPU torch chooses.
    grouped = {"foreach": False} if next(model.parameters()).device.type == "cpu" else {}
    if config.name == "radam":
        return torch.optim.RAdam(groups, config.lr, betas, config.eps, decoupled_weight_decay=True, **grouped)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, config.lr, betas, config.eps, fused=True)
    if config.name == "adam":
        return torch.optim.Adam(groups, config.lr, betas, config.eps, fused=True)
    return torch.optim.SGD(groups, config.lr, momentum=config.beta1, **grouped)


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


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """‖∇‖₂ over all parameters, the same on every rank."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def whole(value: Tensor) -> Tensor:
    """A tensor in one piece on the CPU; shards are gathered from all ranks, which must all ask."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu()


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """What the optimiser remembers of each parameter, by name and whole: the same for one rank, DDP and FSDP2."""
    return {
        name: {key: whole(value) if isinstance(value, Tensor) else value for key, value in optimizer.state[parameter].items()}
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def load_optimizer_state_(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the optimiser what `optimizer_state` gave, cut in shards where the parameters are."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if unknown := set(state) - set(names.values()):
        raise CheckpointError(f"the optimiser's state has {min(unknown)}, which the model has not; it belongs to another model")
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {i: _placed(state[names[id(p)]], p) for i, p in enumerate(ordered) if names[id(p)] in state}
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _placed(entry: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """A parameter's entry, laid out as the parameter is."""
    if not isinstance(parameter, DTensor):
        return dict(entry)

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

    return {key: place(value) for key, value in entry.items()}
