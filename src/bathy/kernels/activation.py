"""dropout(relu(x)) in one pass over memory, and one back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import own_dropout, own_rows
from bathy.kernels.dropout import LEVELS, drawn_for, dropout, dropped_by, masked


def activated(activation: nn.Module, x: Tensor, rate: float) -> Tensor:
    """dropout(activation(x)) at that rate."""
    plain = not rate or round(rate * LEVELS) >= LEVELS or not x.numel() or type(activation) is not nn.ReLU
    return dropout(activation(x), rate) if plain or not own_dropout(x) else _ReluDropout.apply(x, rate)  # type: ignore[no-untyped-call]


class _ReluDropout(torch.autograd.Function):
    """Where the result is above 0, x was above 0 and was kept: the backward pass needs neither x nor the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        result = relu_dropped(x.clone(memory_format=torch.contiguous_format), drawn_for(x), rate)
        ctx.save_for_backward(result)
        ctx.rate = rate
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return relu_dropped_back(grad.clone(memory_format=torch.contiguous_format), result, ctx.rate), None


def relu_dropped(x: Tensor, draws: Tensor | None, rate: float) -> Tensor:
    """dropout(relu(x)); x, in one piece, may be overwritten."""
    if own_rows(x):
        return compiled.relu_mask_(x, dropped_by(draws, rate))
    return x.relu_() if draws is None else masked(x.relu_(), draws, round(rate * LEVELS))


def relu_dropped_back(grad: Tensor, result: Tensor, rate: float) -> Tensor:
    """The gradient of x from that of the result; `grad`, in one piece, is overwritten."""
    scale = LEVELS / (LEVELS - round(rate * LEVELS))
    if own_rows(grad, result):
        return compiled.relu_mask_back_(grad, result, scale)
    grad = torch.ops.aten.threshold_backward.grad_input(grad, result, 0, grad_input=grad)
    return grad.mul_(scale) if rate else grad
