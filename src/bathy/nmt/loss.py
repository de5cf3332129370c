"""Label-smoothed cross-entropy straight from features, in chunks, with a backward written by hand.

With logits z = x Wᵀ over V tokens, target y and smoothing ε:

    loss = lse(z) − (1−ε) z_y − ε mean(z),    ∂loss/∂z = softmax(z) − (1−ε) e_y − ε/V

The gradients of x and W are taken while a chunk's softmax is at hand: no logits outlive their chunk, and none are computed
twice or at padding. The constant ε/V never touches the V columns: mean(z) = x · mean(W), whose gradients are one row each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 1024
"""Most tokens a chunk: enough that W and its gradient are seldom read again, few enough that logits take little memory."""


def cross_entropy(x: Tensor, weight: Tensor, target: Tensor, smoothing: float = 0.0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """(smoothed loss, NLL), each summed over the rows of `x` (n × D) with targets (n); the NLL carries no gradient."""
    return _CrossEntropy.apply(x, weight, target, smoothing, rows)  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """The sum over chunks; its gradients are computed with it and scaled in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, smoothing: float, rows: int) -> tuple[Tensor, Tensor]:
        device = x.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        with torch.autocast(device, enabled=False):
            chunks = _Chunks(x.detach().to(kind), weight.detach().to(kind), gradients=any(ctx.needs_input_grad))
            smoothed, nll = chunks.run(target, smoothing, rows)
        ctx.save_for_backward(chunks.grad_x.to(x.dtype), chunks.grad_w.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_w = ctx.saved_tensors
        return grad_x * grad, grad_w * grad, None, None, None


class _Chunks:
    """Loss and, if asked for, gradients of x and W, computed chunk by chunk and summed in float32 or better."""

    def __init__(self, x: Tensor, w: Tensor, gradients: bool) -> None:
        self.x, self.w, self.gradients = x, w, gradients
        self.exact = torch.promote_types(x.dtype, torch.float32)
        self.grad_x = torch.empty_like(x) if gradients else x.new_empty(0)
        self.grad_w = torch.zeros_like(w, dtype=self.exact) if gradients else w.new_empty(0)

    def run(self, target: Tensor, smoothing: float, rows: int) -> tuple[Tensor, Tensor]:
        """(smoothed loss, NLL), in even chunks of at most `rows`."""
        rows = -(-len(self.x) // max(1, -(-len(self.x) // rows))) or 1
        nll = z_target = torch.zeros((), dtype=self.exact, device=self.x.device)
        for start in range(0, len(self.x), rows):
            y = target[start : start + rows, None]
            z = (self.x[start : start + rows] @ self.w.T).to(self.exact)
            z_y, top = z.gather(1, y), z.amax(1, keepdim=True)
            p = torch.softmax(z, 1, out=z)
            # lse = top − log(max p): no second pass of exponentials
            nll = nll + (top - p.amax(1, keepdim=True).log() - z_y).sum()
            z_target = z_target + z_y.sum()
            if self.gradients:
                self._gradients(p.scatter_add_(1, y, torch.full_like(z_y, smoothing - 1)).to(self.x.dtype), start)
        mean_w, sum_x = self.w.mean(0, dtype=self.exact), self.x.sum(0, dtype=self.exact)
        if self.gradients and smoothing:
            self.grad_x -= smoothing * mean_w
            self.grad_w -= smoothing / len(self.w) * sum_x
        return nll + smoothing * (z_target - sum_x @ mean_w), nll

    def _gradients(self, dz: Tensor, start: int) -> None:
        """dx = dz · W, and dW grows by dzᵀ · x."""
        rows = slice(start, start + len(dz))
        torch.mm(dz, self.w, out=self.grad_x[rows])
        if dz.dtype == self.exact:
            self.grad_w.addmm_(dz.T, self.x[rows])
        else:
            self.grad_w += dz.T @ self.x[rows]
