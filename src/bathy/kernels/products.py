"""x Wᵀ + b and its gradients, each by the library that is fastest here.

On a CPU torch gives float32 products to MKL, whose kernels for AMD's processors are not its best: there oneDNN, which is inside
torch, takes 10 to 20 % less for the product itself and for the gradient of x (dW does not gain). The choice is by the
processor's maker and not by the clock; a run keeps its own wherever it is resumed, and all ranks take the first one's, so that
they compute the same numbers. The operator is not public: it is compared with `F.linear` before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.files import processor
from bathy.kernels.choose import own_products
from bathy.kernels.packed import can_pack

WIDE = 256
"""Inputs of a matrix from which oneDNN's forward product is the faster one; its gradient of x is so for all."""
SMALL = 1 << 15
"""Entries of a matrix below which a call to oneDNN costs more than its product saves."""
_fixed: list[str] = []


def library() -> str:
    """The library that takes float32 products in training on a CPU: onednn or mkl (torch's own choice)."""
    return _fixed[-1] if _fixed else _fastest()


def usable(name: str) -> bool:
    """Whether a library is here."""
    return name == "mkl" or can_pack(torch.float32)


@contextmanager
def products_by(name: str) -> Iterator[None]:
    """A block in which products are taken by onednn or mkl, whatever the machine is."""
    _fixed.append(name)
    try:
        yield
    finally:
        _fixed.pop()


@cache
def _fastest() -> str:
    return "onednn" if processor("vendor_id") == "AuthenticAMD" and usable("onednn") else "mkl"


class Linear(nn.Linear):
    """x Wᵀ + b."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b."""
    return _Linear.apply(x, weight, bias) if by_onednn(x, weight) else F.linear(x, weight, bias)  # type: ignore[no-untyped-call]


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes the products of x with this matrix."""
    return _for_onednn(weight) and own_products(x)


def _for_onednn(weight: Tensor) -> bool:
    """Whether oneDNN is the faster library for this matrix in training on a CPU."""
    return weight.numel() >= SMALL and weight.dtype == torch.float32 and library() == "onednn"


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b where autograd does not look, in training on a CPU."""
    return (onednn if weight.shape[1] >= WIDE and _for_onednn(weight) else F.linear)(x, weight, bias)


def product_back(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x, g W."""
    return onednn(grad, weight.T, None) if _for_onednn(weight) else grad @ weight


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b by oneDNN, where `can_pack` says it can."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """dx = g W, dW = gᵀ x, db = Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        dx = product_back(rows, weight).view_as(x) if ctx.needs_input_grad[0] else None
        return dx, rows.T @ x.flatten(0, -2), rows.sum(0) if ctx.biased else None
