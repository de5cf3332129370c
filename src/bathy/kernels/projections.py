"""Several linear maps of one input, stored as the rows of one matrix and given apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels.choose import own_projections
from bathy.kernels.products import by_onednn, linear


def projections(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """x Wᵀ + b, cut into tensors of these widths."""
    if by_onednn(x, weight) or not own_projections(x):
        return linear(x, weight, bias).split(sizes, dim=-1)
    return _Projections.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]


class _Projections(torch.autograd.Function):
    """One product for each part, whose gradients meet in the matrix products: no copy puts them side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.sizes, ctx.biased = sizes, bias is not None
        biases = (None,) * len(sizes) if bias is None else bias.split(sizes)
        return tuple(F.linear(x, w, b) for w, b in zip(weight.split(sizes), biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat, rows = x.flatten(0, -2), [grad.flatten(0, -2) for grad in grads]
        matrices = weight.split(ctx.sizes)
        dx = rows[0] @ matrices[0]
        for grad, matrix in zip(rows[1:], matrices[1:], strict=True):
            dx.addmm_(grad, matrix)
        biases = torch.cat([grad.sum(0) for grad in rows]) if ctx.biased else None
        return dx.view_as(x), torch.cat([grad.T @ flat for grad in rows]), biases, None
