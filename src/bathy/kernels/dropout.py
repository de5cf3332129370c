"""Dropout whose masks cost a tenth of torch's on a CPU, where drawing them is serial and takes 10 % of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import is_fake, own_dropout, own_rows
from bathy.kernels.compiled import Dropped
from bathy.kernels.library import with_compiled

LANES, LEVELS = 4, 1 << 16
"""One 64-bit draw gives four elements 16 bits each: a rate is kept to the nearest multiple of 2^−16, and its scale is exact."""
BLOCK = 1 << 17
"""Elements at a time: mask and product stay in the cache."""


class Dropout(nn.Dropout):
    """x · m / (1 − p) with m = 0 at rate p, in training; x itself otherwise. Torch's random state decides."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, rate: float) -> Tensor:
    """x · m / (1 − rate) with m = 0 at that rate."""
    if not rate:
        return x
    ordinary = x.numel() and round(rate * LEVELS) < LEVELS  # something to drop, something to keep
    return _Dropout.apply(x, rate) if ordinary and own_dropout(x) else F.dropout(x, rate)  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """x · mask, and the same mask, made again from the kept draws, for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        draws = drawn_for(x)
        ctx.dropped = round(rate * LEVELS)
        ctx.save_for_backward(draws)
        return masked(x, draws, ctx.dropped)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (draws,) = ctx.saved_tensors
        return masked(grad, draws, ctx.dropped), None


def draw(count: int) -> Tensor:
    """Random 64-bit numbers from a generator that torch's random state seeds and that is twice as fast."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    if with_compiled():
        return compiled.draw(seed, count)
    return torch.from_numpy(np.random.SFC64(seed).random_raw(count).view(np.int64))


@torch.library.custom_op("bathy::drawn", mutates_args=())
def drawn(count: int) -> Tensor:
    """`draw` as an operator of torch, for fake tensors; calling it takes 15 µs more."""
    return draw(count)


@drawn.register_fake
def _(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.int64)


def drawn_for(x: Tensor) -> Tensor:
    """Draws for every element of x, and a few more, which compiled kernels may read and nobody uses."""
    count = -(-x.numel() // LANES) + compiled.SPARE // LANES
    return drawn(count) if is_fake(x) else draw(count)


def dropped_by(draws: Tensor | None, rate: float) -> Dropped | None:
    """What a rate drops by these draws, for compiled kernels."""
    dropped = round(rate * LEVELS)
    return None if draws is None else Dropped(draws, dropped - LEVELS // 2, LEVELS / (LEVELS - dropped))


def masked(x: Tensor, draws: Tensor, dropped: int) -> Tensor:
    """0 where 16 bits of `draws` fall below `dropped` of 2^16 levels, x / (1 − rate) elsewhere."""
    if own_rows(x):
        return compiled.mask(x, Dropped(draws, dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)))
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for part, bits, out in in_blocks(block_of(x), x.reshape(-1), draws.view(torch.int16)[: x.numel()], result.view(-1)):
        masked_(part, bits, out, dropped)
    return result


def in_blocks(size: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """So many elements of each flat tensor at a time."""
    if tensors[0].numel() <= size:
        return (tensors,)
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def block_of(x: Tensor) -> int:
    """Elements at a time: all of a fake tensor's, which only stands for memory."""
    return x.numel() if is_fake(x) else BLOCK


def masked_(x: Tensor, bits: Tensor, out: Tensor, dropped: int) -> None:
    """Write x, masked by 16 bits for each element and scaled, to `out`."""
    scale, level = LEVELS / (LEVELS - dropped), dropped - LEVELS // 2
    torch.addcmul(x.new_zeros(()), torch.ge(bits, level, out=out), x, value=scale, out=out)
