"""Optimisers by name, with weight decay where it belongs and states that are saved by parameter name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bathy.core.constants import Rates
from bathy.core.rates import rates
from bathy.core.transformer import Transformer
from bathy.errors import CheckpointError, ConfigError, ModelError, unknown
from bathy.sites.wrapped import is_shard
from bathy.train.checkpoint import current_names
from bathy.train.muon import Muon, hidden_matrices
from bathy.train.schedule import rectification

if TYPE_CHECKING:
    from bathy.train.config import OptimConfig

Groups = list[dict[str, Any]]


def make_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The optimiser of the config over groups: what is decayed, and norms, biases and ω, which are not; each again by the rates
    that the model's scheme asks for."""
    row = find_optimizer(config.name)
    groups = parameter_groups(model, config)
    return row.make(_by_matrix(model, groups) if row.needs_matrices else groups, config)


class RAdam(torch.optim.RAdam):
    """RAdam that on a CPU takes its rectified steps in one fused pass over memory.

    With rectification r and bias corrections b₁, b₂, its step lr·r·(m/b₁)·√b₂/(√v + ε) is AdamW's at the rate lr·r,
    with decay wd/r and ε/√b₂ (Liu et al., 2019).
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update. The first few, which are not rectified, and those on other devices are torch's own."""
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        step = _next_step([self.state[p] for _, parameters in groups for p in parameters])
        if closure or not step or any(rectification(step, group["betas"][1]) <= 5 for group, _ in groups):
            return super().step(closure)
        for group, parameters in groups:
            if parameters:
                self._fused(group, parameters, step)
        return None

    def _fused(self, group: dict[str, Any], parameters: list[Tensor], step: int) -> None:
        beta1, beta2 = group["betas"]
        rho, last = rectification(step, beta2), 2 / (1 - beta2) - 1
        factor = math.sqrt((rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho))
        states = [self.state[p] for p in parameters]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(steps, 1.0)
        torch._fused_adamw_(
            parameters, [p.grad for p in parameters if p.grad is not None], means, squares, [], steps,
            amsgrad=False, lr=group["lr"] * factor, beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"] / factor,
            eps=group["eps"] / math.sqrt(1 - beta2**step), maximize=group["maximize"],
        )  # fmt: skip


def _next_step(states: Sequence[Mapping[str, Any]]) -> int:
    """The step that all parameters take next; 0 where they differ, are new, or count on a GPU, which asking would stop."""
    if not states or not all(states) or states[0]["exp_avg"].device.type != "cpu":
        return 0
    least, most = torch.stack([state["step"] for state in states]).aminmax()
    return int(most) + 1 if least == most else 0


def radam(groups: Groups, config: OptimConfig) -> Optimizer:
    """RAdam with decoupled weight decay (Liu et al., 2019)."""
    return RAdam(groups, config.lr, (config.beta1, config.beta2), config.eps, decoupled_weight_decay=True)


def adamw(groups: Groups, config: OptimConfig) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    return torch.optim.AdamW(groups, config.lr, (config.beta1, config.beta2), config.eps, fused=True)


def adam(groups: Groups, config: OptimConfig) -> Optimizer:
    """Adam; its weight decay is part of the gradient (Kingma and Ba, 2015)."""
    return torch.optim.Adam(groups, config.lr, (config.beta1, config.beta2), config.eps, fused=True)


def sgd(groups: Groups, config: OptimConfig) -> Optimizer:
    """Gradient descent with momentum beta1."""
    return torch.optim.SGD(groups, config.lr, momentum=config.beta1, fused=True)


def muon(groups: Groups, config: OptimConfig) -> Optimizer:
    """Muon for the matrices of blocks, AdamW for the rest (Jordan et al., 2024; Liu et al., 2025)."""
    return Muon(groups, config.lr, config.momentum, (config.beta1, config.beta2), config.eps)


@dataclass(frozen=True)
class Row:
    """An optimiser: how it is made, and how many numbers it keeps for each parameter."""

    make: Callable[[Groups, OptimConfig], Optimizer]
    states: int
    needs_matrices: bool = False
    """Whether it treats matrices as such: FSDP2, which cuts them in shards, cannot be used."""


OPTIMIZERS: dict[str, Row] = {
    "radam": Row(radam, 2),
    "adamw": Row(adamw, 2),
    "adam": Row(adam, 2),
    "sgd": Row(sgd, 1),
    "muon": Row(muon, 2, needs_matrices=True),
}


def find_optimizer(name: str) -> Row:
    """The optimiser of that name, or an error that names the nearest."""
    if name not in OPTIMIZERS:
        raise ConfigError(unknown("optimiser", name, OPTIMIZERS))
    return OPTIMIZERS[name]


def parameter_groups(model: nn.Module, config: OptimConfig) -> Groups:
    """Decayed parameters (all, or those of two dimensions and more) and the others, each in the model's order, and each apart
    by the multipliers of rate, ε and decay that the scheme gives them."""
    factors = rates(model) if isinstance(model, Transformer) else {}
    groups: dict[tuple[bool, Rates], list[nn.Parameter]] = {(True, Rates()): [], (False, Rates()): []}
    for name, parameter in model.named_parameters():
        key = config.decay_all or parameter.dim() > 1, factors.get(name, Rates())
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay * factor.weight_decay if decayed else 0.0,
            "eps": config.eps * factor.eps,
            "lr_factor": factor.lr,
        }
        for (decayed, factor), parameters in groups.items()
        if parameters or factor == Rates()
    ]


def _by_matrix(model: nn.Module, groups: Groups) -> Groups:
    """The groups, each in two: hidden matrices, with their parts, and the rest."""
    matrices = hidden_matrices(model)
    if not matrices:
        raise ModelError("optim.name is 'muon', but the model has no matrices inside blocks (nn.ModuleList); use adamw")
    result = []
    for group in groups:
        inside = [parameter for parameter in group["params"] if parameter in matrices]
        outside = [parameter for parameter in group["params"] if parameter not in matrices]
        if inside:
            result.append({**group, "params": inside, "parts": [matrices[parameter] for parameter in inside]})
        result.append({**group, "params": outside})
    return result


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every group the rate, times the group's own factor where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_factor", 1.0)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """‖∇‖₂ over all parameters, the same on every rank."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if is_shard(norm) else norm


def whole(value: Tensor) -> Tensor:
    """A tensor in one piece on the CPU; shards are gathered from all ranks, which must all ask."""
    if is_shard(value):
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
    state, names = current_names(model, state), {id(parameter): name for name, parameter in model.named_parameters()}
    if unknown := set(state) - set(names.values()):
        raise CheckpointError(f"the optimiser's state has {min(unknown)}, which the model has not; it belongs to another model")
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {i: _placed(state[names[id(p)]], p) for i, p in enumerate(ordered) if names[id(p)] in state}
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def rescale_squares_(optimizer: Optimizer, old: float, new: float) -> None:
    """Keep the estimate of the squared gradient, v / (1 − β₂ᵗ), when β₂ changes: v ← v · (1 − newᵗ) / (1 − oldᵗ).

    After 400 updates with 0.9999 v holds 4 % of the estimate; 0.98 would take it for the whole and step five times as far.
    """
    for entry in optimizer.state.values() if new != old else ():
        if "exp_avg_sq" in entry and (step := float(entry["step"])):
            entry["exp_avg_sq"].mul_((1 - new**step) / (1 - old**step))


def _placed(entry: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """A parameter's entry, laid out as the parameter is."""
    if not is_shard(parameter):
        return dict(entry)
    from torch.distributed.tensor import distribute_tensor

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

    return {key: place(value) for key, value in entry.items()}
