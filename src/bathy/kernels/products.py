"""x Wᵀ + b and its gradients, each by the library that is fastest here.

oneDNN, which is inside torch, takes 10 to 20 % less than MKL for the product itself and for the gradient of x on AMD's
processors (dW does not gain); its operator is not public: it is compared with `F.linear` before it is used. Small matrices,
where a call costs much, are multiplied by compiled kernels. `library` says which are used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import own_products, own_rows
from bathy.kernels.library import with_compiled, with_onednn

WIDE = 256
"""Inputs of a matrix from which oneDNN's forward product is the faster one; its gradient of x is so for all."""
SMALL = 1 << 15
"""Entries of a matrix below which a call to oneDNN costs more than its product saves."""


class Linear(nn.Linear):
    """x Wᵀ + b."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b."""
    ours = own_products(x) and _ours(weight)
    return _Linear.apply(x, weight, bias) if ours else F.linear(x, weight, bias)  # type: ignore[no-untyped-call]


def _ours(weight: Tensor) -> bool:
    return _for_onednn(weight) or _for_compiled(weight)


def _for_onednn(weight: Tensor) -> bool:
    """Whether oneDNN is the faster library for this matrix in training on a CPU."""
    return weight.numel() >= SMALL and weight.dtype == torch.float32 and with_onednn()


def _for_compiled(weight: Tensor) -> bool:
    """Whether compiled kernels are faster than either library."""
    return with_compiled() and compiled.can_multiply(weight) and own_rows(weight)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b where autograd does not look, in training on a CPU; x in rows."""
    if _for_compiled(weight):
        return compiled.product(x.contiguous(), weight, bias)
    return (onednn if weight.shape[1] >= WIDE and _for_onednn(weight) else F.linear)(x, weight, bias)


def product_back(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x, g W."""
    if _for_compiled(weight):
        return compiled.product_back(grad.contiguous(), weight)
    return onednn(grad, weight.T, None) if _for_onednn(weight) else grad @ weight


def weight_back(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of W, gᵀ x."""
    return compiled.weight_back(grad.contiguous(), x.contiguous()) if _for_compiled(weight) else grad.T @ x


def bias_back(grad: Tensor, bias: Tensor | None, weight: Tensor) -> Tensor | None:
    """The gradient of b, Σ g."""
    if bias is None:
        return None
    return compiled.sum_rows(grad.contiguous()) if own_rows(bias) and _ours(weight) else grad.sum(0)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b by oneDNN, where `can_pack` says it can."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """dx = g W, dW = gᵀ x, db = Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight, bias)
        return product(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        dx = product_back(rows, weight).view(*grad.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        return dx, weight_back(rows, x, weight), bias_back(rows, bias, weight)
