"""The feed-forward inside a fused sub-layer: W₂ · dropout(h) with h = activation(W₁ · x), gated or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.kernels.activation import relu_dropped, relu_dropped_back
from bathy.kernels.dropout import LEVELS, drawn_for, masked
from bathy.kernels.norm import Maybe
from bathy.kernels.products import bias_back, product, product_back, weight_back

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
        if self.activation is nn.ReLU:
            kept = relu_dropped(a, drawn_for(a) if self.rate else None, self.rate)
            return product(kept, self.w2, self.b2), (kept, None, None)
        h = self._activated(a)
        draws = drawn_for(h) if self.rate else None
        kept = h if draws is None else masked(h, draws, round(self.rate * LEVELS))
        return product(kept, self.w2, self.b2), (kept, a, draws)

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
            da = relu_dropped_back(product_back(dy, self.w2), kept, self.rate)
        else:
            dh = product_back(dy, self.w2)
            da = self._activated_back(dh if draws is None else masked(dh, draws, round(self.rate * LEVELS)), a)
        first = weight_back(da, x, self.w1), bias_back(da, self.b1, self.w1)
        return product_back(da, self.w1), None, *first, weight_back(dy, kept, self.w2), bias_back(dy, self.b2, self.w2)

    def _activated_back(self, dh: Tensor, a: Tensor) -> Tensor:
        activation, back = ACTIVATIONS[self.activation]
        if not self.gated:
            return back(dh, a)
        (gate, up), da = a.chunk(2, 1), torch.empty_like(a)
        d_gate, d_up = da.chunk(2, 1)
        d_gate.copy_(back(dh * up, gate))
        torch.mul(dh, activation(gate), out=d_up)
        return da
