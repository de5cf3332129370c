"""Layer norm of rows, by torch or compiled: γ · (x − μ)/σ + ν."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import own_operations, own_rows

Maybe = Tensor | None


class Norm(NamedTuple):
    """γ, ν and what is added to the variance."""

    weight: Tensor
    bias: Maybe
    eps: float


def layer_norm(x: Tensor, norm: Norm, training: bool) -> Tensor:
    """γ · (x − μ)/σ + ν over the last dimension."""
    if training and own_operations(x, norm.weight, norm.bias):
        return _LayerNorm.apply(x, *norm)  # type: ignore[no-untyped-call]
    return F.layer_norm(x, x.shape[-1:], *norm)


class _LayerNorm(torch.autograd.Function):
    """`norm_rows` as a node of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Maybe, eps: float) -> Tensor:
        rows = x.view(-1, x.shape[-1])
        out, mean, deviation = norm_rows(Norm(weight, bias, eps), rows)
        ctx.save_for_backward(rows, mean, deviation, weight, bias)
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        rows, mean, deviation, weight, bias = ctx.saved_tensors
        dx, d_gamma, d_nu, _ = norm_rows_back(Norm(weight, bias, 0.0), grad.reshape(rows.shape), rows, mean, deviation)
        return dx.view(grad.shape), d_gamma, d_nu, None


def norm_rows(norm: Norm, x_rd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The norm's output, and mean and 1/deviation of each row."""
    if own_rows(x_rd, norm.weight):
        return compiled.norm(x_rd, *norm)
    return torch.native_layer_norm(x_rd, x_rd.shape[1:], *norm)


def norm_rows_back(
    norm: Norm, grad_rd: Tensor, x_rd: Tensor, mean: Tensor, deviation: Tensor, stream: Maybe = None
) -> tuple[Tensor, Tensor, Maybe, Maybe]:
    """Gradients of x, γ and ν; and, where that costs no further pass, Σ dx ⊙ stream, ω's for x = ω · stream + …."""
    if own_rows(grad_rd := grad_rd.contiguous(), x_rd, norm.weight):
        return compiled.norm_back(grad_rd, x_rd, mean, deviation, norm.weight, norm.bias, stream)
    wanted = [True, True, norm.bias is not None]
    given = grad_rd, x_rd, x_rd.shape[1:], mean, deviation, norm.weight, norm.bias, wanted
    return *torch.ops.aten.native_layer_norm_backward(*given), None
