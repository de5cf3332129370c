"""The feed-forward inside a fused sub-layer: W₂ · dropout(h) with h = activation(W₁ · x), gated or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.kernels.dropout import LEVELS, drawn_for, masked
from bathy.kernels.products import product, product_back
from bathy.kernels.sublayer import Maybe

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.GELU: (F.gelu, torch.ops.aten.gelu_backward),
    nn.SiLU: (F.silu, torch.ops.aten.silu_backward),
}
"""An activation, and the gradient of its input from that of its output; ReLU has a way of its own."""


def can_fuse(activation: nn.Module, gated: bool) -> bool:
    """Whether this activation has a form here."""
    if type(activation) is nn.ReLU:
        return not gated
    return type(activation) in ACTIVATIONS and getattr(activation, "approximate", "none") == "none"


@dataclass(slots=True)
class FeedForward:
    """Weights and settings; a gate's rows stand before those of W₁."""

    w1: Tensor
    b1: Maybe
    w2: Tensor
    b2: Maybe
    activation: type[nn.Module]
    gated: bool
    rate: float

    def parameters(self) -> tuple[Maybe, ...]:
        """W₁, b₁, W₂, b₂."""
        return self.w1, self.b1, self.w2, self.b2

    def forward(self, x: Tensor, memory: Maybe) -> tuple[Tensor, tuple[Maybe, ...]]:
        """W₂ · dropout(h) + b₂."""
        a = product(x, self.w1, self.b1)
        h = a.relu_() if self.activation is nn.ReLU else self._activated(a)
        draws = drawn_for(h) if self.rate else None
        kept = h if draws is None else masked(h, draws, round(self.rate * LEVELS))
        relu = self.activation is nn.ReLU
        return product(kept, self.w2, self.b2), (kept, None if relu else a, None if relu else draws)

    def _activated(self, a: Tensor) -> Tensor:
        activation, _ = ACTIVATIONS[self.activation]
        if not self.gated:
            return activation(a)
        gate, up = a.chunk(2, 1)
        return activation(gate) * up

    def backward(self, dy: Tensor, x: Tensor, memory: Maybe, saved: tuple[Maybe, ...]) -> tuple[Maybe, ...]:
        """Gradients of x, of no memory, and of the parameters."""
        kept, a, draws = saved
        assert kept is not None
        if a is None:
            da = self._relu_back(dy, kept)
        else:
            dh = product_back(dy, self.w2)
            da = self._activated_back(dh if draws is None else masked(dh, draws, round(self.rate * LEVELS)), a)
        d_w2, d_b2 = dy.T @ kept, None if self.b2 is None else dy.sum(0)
        return product_back(da, self.w1), None, da.T @ x, None if self.b1 is None else da.sum(0), d_w2, d_b2

    def _relu_back(self, dy: Tensor, kept: Tensor) -> Tensor:
        """Where the result is above 0, its input was above 0 and was kept: neither input nor mask is needed."""
        dh = product_back(dy, self.w2)
        dh = torch.ops.aten.threshold_backward.grad_input(dh, kept, 0, grad_input=dh)
        return dh.mul_(LEVELS / (LEVELS - round(self.rate * LEVELS))) if self.rate else dh

    def _activated_back(self, dh: Tensor, a: Tensor) -> Tensor:
        activation, back = ACTIVATIONS[self.activation]
        if not self.gated:
            return back(dh, a)
        (gate, up), da = a.chunk(2, 1), torch.empty_like(a)
        d_gate, d_up = da.chunk(2, 1)
        d_gate.copy_(back(dh * up, gate))
        torch.mul(dh, activation(gate), out=d_up)
        return da
