"""A whole sub-layer, post(ω · x + dropout(f(pre(x)))), as one node of autograd, with its backward pass written by hand.

In a narrow model a matrix product takes as long as the bookkeeping of a few operations, so that most of an update's time is
spent between products: in Python, in autograd's graph and in allocating memory. Here a sub-layer is a dozen operations on
plain tensors each way, and one node. The numbers are those of the modules, bit for bit, random draws included: each operation
is the one that the modules take, in its order, so that a run that is looked at (hooks need the modules) stays the same run.

`Around` is everything but f; `Inner` is f: see `fused_feed_forward` and `fused_attention`.
"""

# r row (a token of the batch), d width

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import own_rows
from bathy.kernels.dropout import LEVELS, drawn_for, dropped_by, masked
from bathy.kernels.norm import Maybe, Norm, norm_rows, norm_rows_back
from bathy.kernels.shortcut import omega_back


@dataclass(slots=True)
class Around:
    """A sub-layer but for f: its norms, ω (a number, or a learned number or vector), and the rate of the last dropout."""

    pre: Norm | None
    post: Norm | None
    omega: float | Tensor
    rate: float

    def parameters(self) -> tuple[Maybe, ...]:
        """γ and ν of pre, ω, γ and ν of post; none where there is no such part or it is not learned."""
        pre, post = self.pre or (None, None), self.post or (None, None)
        return pre[0], pre[1], self.omega if isinstance(self.omega, Tensor) else None, post[0], post[1]


class Inner(Protocol):
    """f on plain tensors."""

    def parameters(self) -> tuple[Maybe, ...]:
        """What may have a gradient."""
        ...

    def forward(self, h_rd: Tensor, memory: Maybe) -> tuple[Tensor, tuple[Maybe, ...]]:
        """f(h), a tensor that nothing else needs, and what the backward pass needs."""
        ...

    def backward(self, dy_rd: Tensor, h_rd: Tensor, memory: Maybe, saved: tuple[Maybe, ...]) -> tuple[Maybe, ...]:
        """Gradients of h, of the memory and of each parameter."""
        ...


def sublayer(x: Tensor, around: Around, inner: Inner, memory: Tensor | None = None) -> Tensor:
    """post(ω · x + dropout(f(pre(x)))); `memory` is what cross-attention attends to."""
    return _Sublayer.apply(around, inner, x, memory, *around.parameters(), *inner.parameters())  # type: ignore[no-untyped-call]


class _Sublayer(torch.autograd.Function):
    """dz from post; then dy = dropout's share of it, dh from f, and dx = ω · dz + pre's share of dh."""

    @staticmethod
    def forward(ctx: Any, around: Around, inner: Inner, x: Tensor, memory: Maybe, *parameters: Maybe) -> Tensor:
        x_rd = x.reshape(-1, x.shape[-1])
        h, *entered = (x_rd, None, None) if around.pre is None else norm_rows(around.pre, x_rd)
        y, inside = inner.forward(h, memory)
        draws = drawn_for(y) if around.rate else None
        z = _added(around, x_rd, y, draws)
        out, *left = (z, None, None) if around.post is None else norm_rows(around.post, z)
        kept_z, kept_h = None if around.post is None else z, None if around.pre is None else h
        ctx.save_for_backward(x_rd, memory, kept_h, *entered, draws, kept_z, *left, *inside, *parameters)
        ctx.around, ctx.inner, ctx.inside, ctx.shape = around, inner, len(inside), x.shape
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        around: Around = ctx.around
        x, memory, h, pre_mean, pre_deviation, draws, z, mean, deviation, *rest = ctx.saved_tensors
        dz, d_gamma, d_nu, d_omega = grad.reshape(x.shape), None, None, None
        if around.post is not None:
            stream = x if isinstance(around.omega, Tensor) and around.omega.dim() == 1 else None
            dz, d_gamma, d_nu, d_omega = norm_rows_back(around.post, dz, z, mean, deviation, stream)
        dy = dz if draws is None else masked(dz, draws, round(around.rate * LEVELS))
        if d_omega is None and isinstance(around.omega, Tensor):
            d_omega = omega_back(dz, x, around.omega)
        dh, d_memory, *inner = ctx.inner.backward(dy, x if h is None else h, memory, tuple(rest[: ctx.inside]))
        pre_gamma = pre_nu = None
        if around.pre is not None:
            dh, pre_gamma, pre_nu, _ = norm_rows_back(around.pre, dh, x, pre_mean, pre_deviation)
        dx = _added_back(around.omega, dz, dh)
        return None, None, dx.view(ctx.shape), d_memory, pre_gamma, pre_nu, d_omega, d_gamma, d_nu, *inner


def _added_back(omega: Tensor | float, dz_rd: Tensor, dh_rd: Tensor) -> Tensor:
    """dh + ω · dz, in dh's place."""
    if isinstance(omega, float) and omega == 1.0:
        return dh_rd.add_(dz_rd)
    if (isinstance(omega, float) or omega.dim() == 1) and own_rows(dz_rd, dh_rd):
        return compiled.join(dz_rd, dh_rd, None, omega, into=dh_rd)
    return dh_rd.add_(dz_rd * omega)


def _added(around: Around, x_rd: Tensor, y_rd: Tensor, draws: Maybe) -> Tensor:
    """ω · x + dropout(y)."""
    omega = around.omega
    vector = not isinstance(omega, Tensor) or (omega.dim() == 1 and own_rows(omega))
    if vector and own_rows(x_rd, y_rd):
        return compiled.join(x_rd, y_rd, dropped_by(draws, around.rate), omega)
    z = y_rd if draws is None else masked(y_rd, draws, round(around.rate * LEVELS))
    return torch.addcmul(z, x_rd, omega, out=z) if isinstance(omega, Tensor) else z.add_(x_rd, alpha=omega)
