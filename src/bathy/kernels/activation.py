"""dropout(relu(x)) in one pass over memory, and one back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.kernels.choose import own_dropout
from bathy.kernels.dropout import LEVELS, block_of, drawn_for, dropout, masked_


def activated(activation: nn.Module, x: Tensor, rate: float) -> Tensor:
    """dropout(activation(x)) at that rate."""
    plain = not rate or round(rate * LEVELS) >= LEVELS or not x.numel() or type(activation) is not nn.ReLU
    return dropout(activation(x), rate) if plain or not own_dropout(x) else _ReluDropout.apply(x, rate)  # type: ignore[no-untyped-call]


class _ReluDropout(torch.autograd.Function):
    """Where the result is above 0, x was above 0 and was kept: the backward pass needs neither x nor the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        dropped = round(rate * LEVELS)
        draws, result = drawn_for(x), torch.empty_like(x, memory_format=torch.contiguous_format)
        lanes, block = draws.view(torch.int16)[: x.numel()], block_of(x)
        for part, bits, out in zip(x.reshape(-1).split(block), lanes.split(block), result.view(-1).split(block), strict=True):
            masked_(part.relu(), bits, out, dropped)
        ctx.save_for_backward(result)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        passed, block = torch.empty_like(result), block_of(result)
        parts = grad.reshape(-1).split(block), result.view(-1).split(block), passed.view(-1).split(block)
        for given, kept, out in zip(*parts, strict=True):
            torch.ops.aten.threshold_backward.grad_input(given, kept, 0, grad_input=out).mul_(ctx.scale)
        return passed, None
