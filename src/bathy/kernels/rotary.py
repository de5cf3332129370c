"""Rotary positions: every pair (x_i, x_{i+d/2}) of a head turned by an angle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels.choose import own_rotation


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a cos − b sin, b cos + a sin) for the halves a, b of x's last dimension; cos and sin have half its width."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if own_rotation(x):
        return _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """x turned by the angle times the sign, each half written where it belongs."""
    result = torch.empty_like(x)
    (a, b), (left, right) = x.chunk(2, dim=-1), result.chunk(2, dim=-1)
    torch.mul(a, cos, out=left).addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=right).addcmul_(a, sin, value=sign)
    return result


class _Rotation(torch.autograd.Function):
    """The gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turned(grad, cos, sin, -1), None, None
