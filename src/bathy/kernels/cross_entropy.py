"""Label-smoothed cross-entropy straight from features, in chunks, with a backward written by hand.

With logits z = x Wᵀ over V tokens, target y and smoothing ε:

    loss = lse(z) − (1−ε) z_y − ε mean(z),    ∂loss/∂z = softmax(z) − (1−ε) e_y − ε/V

The gradients of x and W are taken while a chunk's softmax is at hand: no logits outlive their chunk, and none are computed
twice or at padding. The constant ε/V never touches the V columns: mean(z) = x · mean(W), whose gradients are one row each.

Torch's own `linear_cross_entropy` (2.13) works in chunks only without label smoothing, and gives no NLL beside the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels.choose import own_rows
from bathy.kernels.compiled import softmax_loss_

ROWS = 1024
"""Most tokens a chunk: enough that W and its gradient are seldom read again, few enough that logits take little memory."""


def cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    smoothing: float = 0.0,
    rows: int = ROWS,
    bias: Tensor | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(smoothed loss, NLL), each summed over the rows of `x` (n × D) with targets (n); the NLL carries no gradient.

    `bias` is added to the logits; with `cap` c, they are c · tanh(z / c).
    """
    return _CrossEntropy.apply(x, weight, bias, target, smoothing, rows, cap)  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """The sum over chunks; its gradients are computed with it and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, rows: int, cap: float
    ) -> tuple[Tensor, Tensor]:
        device = x.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        with torch.autocast(device, enabled=False):
            inputs = x.detach().to(kind), weight.detach().to(kind), None if bias is None else bias.detach()
            chunks = _Chunks(*inputs, smoothing, cap, gradients=any(ctx.needs_input_grad))
            smoothed, nll = chunks.run(target, rows)
        grad_b = None if bias is None else chunks.grad_b.to(bias.dtype)
        ctx.save_for_backward(chunks.grad_x.to(x.dtype), chunks.grad_w.to(weight.dtype), grad_b)
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = [None if value is None else value * grad for value in ctx.saved_tensors]
        return (*grads, None, None, None, None)


class _Chunks:
    """Loss and, if asked for, gradients of x, W and b, computed chunk by chunk and summed in float32 or better."""

    def __init__(self, x: Tensor, w: Tensor, b: Tensor | None, smoothing: float, cap: float, gradients: bool) -> None:
        self.x, self.w, self.b, self.smoothing, self.cap, self.gradients = x, w, b, smoothing, cap, gradients
        self.exact = torch.promote_types(x.dtype, torch.float32)
        self.grad_x = torch.empty_like(x) if gradients else x.new_empty(0)
        self.grad_w = torch.zeros_like(w, dtype=self.exact) if gradients else w.new_empty(0)
        self.grad_b = torch.zeros(len(w) if gradients and b is not None else 0, dtype=self.exact, device=w.device)

    def run(self, target: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """(smoothed loss, NLL), in even chunks of at most `rows`."""
        rows = -(-len(self.x) // max(1, -(-len(self.x) // rows))) or 1
        nll = spread = torch.zeros((), dtype=self.exact, device=self.x.device)
        for start in range(0, len(self.x), rows):
            y, z = target[start : start + rows, None], self._logits(start, rows)
            if self.gradients and not self.cap and own_rows(z, y):
                chunk_nll, chosen = softmax_loss_(z, y, self.smoothing)
                nll, spread = nll + chunk_nll.sum(), spread + chosen.sum()
                self._gradients(z, None, start)
                continue
            z_y, top = z.gather(1, y), z.amax(1, keepdim=True)
            slope = 1 - (z / self.cap).square_() if self.cap else None
            spread = spread + self._spread(z, z_y)
            p = torch.softmax(z, 1, out=z)
            # lse = top − log(max p): no second pass of exponentials
            nll = nll + (top - p.amax(1, keepdim=True).log() - z_y).sum()
            if self.gradients:
                self._gradients(p.scatter_add_(1, y, torch.full_like(z_y, self.smoothing - 1)), slope, start)
        return nll + self.smoothing * (spread - self._mean()), nll

    def _logits(self, start: int, rows: int) -> Tensor:
        z = (self.x[start : start + rows] @ self.w.T).to(self.exact)
        if self.b is not None:
            z += self.b
        return torch.tanh_(z.div_(self.cap)).mul_(self.cap) if self.cap else z

    def _spread(self, z: Tensor, z_y: Tensor) -> Tensor:
        """Σ z_y of the chunk; with a cap, which mean(z) = x · mean(W) does not survive, less its Σ mean(z)."""
        return z_y.sum() - z.mean(1).sum() if self.cap else z_y.sum()

    def _mean(self) -> Tensor:
        """Σ mean(z) of all rows without a cap, as x · mean(W) + mean(b), and its gradients."""
        mean_w, sum_x = self.w.mean(0, dtype=self.exact), self.x.sum(0, dtype=self.exact)
        if self.cap:
            return torch.zeros_like(sum_x[0])
        if self.gradients and self.smoothing:
            self.grad_x -= self.smoothing * mean_w
            self.grad_w -= self.smoothing / len(self.w) * sum_x
            self.grad_b -= self.smoothing / len(self.w) * len(self.x)
        return sum_x @ mean_w + (0 if self.b is None else len(self.x) * self.b.mean(dtype=self.exact))

    def _gradients(self, dz: Tensor, slope: Tensor | None, start: int) -> None:
        """dx = dz · W, and dW grows by dzᵀ · x, db by Σ dz; a cap passes on its slope of each dz."""
        if slope is not None:
            dz = dz.sub_(self.smoothing / len(self.w)).mul_(slope)
        if self.b is not None:
            self.grad_b += dz.sum(0)
        rows, dz = slice(start, start + len(dz)), dz.to(self.x.dtype)
        torch.mm(dz, self.w, out=self.grad_x[rows])
        if dz.dtype == self.exact:
            self.grad_w.addmm_(dz.T, self.x[rows])
        else:
            self.grad_w += dz.T @ self.x[rows]
