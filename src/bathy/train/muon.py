"""Muon for the matrices inside blocks, AdamW for everything else, as one optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim._muon import muon

from bathy.core.residual import residuals

Rows = tuple[slice, ...]
"""The parts of a parameter that are matrices of their own, such as q, k and v."""
COEFFICIENTS, STEPS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7
"""Of the Newton–Schulz iteration, as its author has them."""


class Muon(Optimizer):
    """Momentum made orthogonal, matrix by matrix (Jordan et al., 2024), for the groups that have `parts`; else AdamW.

    An update has AdamW's usual size, 0.2 · √max(rows, columns) times the orthogonal matrix (Liu et al., 2025), so that both
    kinds of group share a learning rate and weight decay. What q, k and v store as one parameter is three matrices here.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, momentum: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "parts": None})
        self.momentum = momentum
        self.adamw = AdamW([group for group in groups if not group.get("parts")], lr, betas, eps, fused=True)
        others = iter(self.adamw.param_groups)
        self.param_groups = [group if group["parts"] else next(others) | {"parts": None} for group in self.param_groups]
        self._link()

    def _link(self) -> None:
        """Let AdamW see the groups and states that are its own."""
        self.adamw.param_groups = [group for group in self.param_groups if not group["parts"]]
        self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._link()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update."""
        loss = self.adamw.step(closure)
        for group in self.param_groups:
            for parameter, parts in zip(group["params"], group["parts"] or [], strict=False):
                if parameter.grad is not None:
                    self._step(parameter, parts, group["lr"], group["weight_decay"])
        return loss

    def _step(self, parameter: Tensor, parts: Rows, lr: float, weight_decay: float) -> None:
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        matrices, grads, buffers = ([whole[rows] for rows in parts] for whole in (parameter, grad, state["momentum_buffer"]))
        muon(
            matrices, grads, buffers,
            lr=lr, weight_decay=weight_decay, momentum=self.momentum, nesterov=True, ns_coefficients=COEFFICIENTS,
            ns_steps=STEPS, eps=EPS, adjust_lr_fn="match_rms_adamw", has_complex=False,
        )  # fmt: skip


def hidden_matrices(model: nn.Module) -> dict[nn.Parameter, Rows]:
    """The matrices inside a model's blocks, each with its parts: of a bathy model those of its branches, of another one the
    weights of two dimensions inside its module lists, embeddings left out."""
    found: dict[nn.Parameter, Rows] = {}
    for _, residual in residuals(model):
        for matrix in residual.f.matrices():
            found[matrix.parameter] = (*found.get(matrix.parameter, ()), matrix.rows)
    return found or {
        parameter: _parts(name, parameter)
        for blocks in model.modules()
        if isinstance(blocks, nn.ModuleList)
        for module in blocks.modules()
        if not isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 2
    }


def _parts(name: str, parameter: nn.Parameter) -> Rows:
    """`nn.MultiheadAttention` keeps q, k and v in one parameter; others are one matrix."""
    third = len(parameter) // 3
    if name != "in_proj_weight":
        return (slice(None),)
    return slice(third), slice(third, 2 * third), slice(2 * third, None)
