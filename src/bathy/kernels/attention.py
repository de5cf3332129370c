"""Attended values: softmax(scale · q·kᵀ) v, with dropout on the probabilities; heads of q may share those of k and v."""

# b batch, h head, g head of keys and values, q query position, k key position, d head width

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels.choose import own_attention, repeated_keys
from bathy.kernels.dropout import dropout


def attention(
    q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, mask: Tensor | None, rate: float, causal: bool, scale: float
) -> Tensor:
    """The attended values, b h q d; `mask` is true where a key may be seen, `causal` lets a query see its past only.

    With fewer heads of keys than of queries, each serves as many successive heads of queries.
    """
    if own_attention(q_bhqd, rate):
        bias = _bias(q_bhqd, k_bgkd, mask, causal)
        return _Attention.apply(q_bhqd, k_bgkd, v_bgkd, bias, rate, scale)  # type: ignore[no-untyped-call]
    grouped = q_bhqd.shape[1] != k_bgkd.shape[1]
    if grouped and repeated_keys(q_bhqd):
        times, grouped = q_bhqd.shape[1] // k_bgkd.shape[1], False
        k_bgkd, v_bgkd = k_bgkd.repeat_interleave(times, 1), v_bgkd.repeat_interleave(times, 1)
    return F.scaled_dot_product_attention(q_bhqd, k_bgkd, v_bgkd, mask, rate, causal, scale=scale, enable_gqa=grouped)


def _bias(q_bhqd: Tensor, k_bgkd: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """0 where a key may be seen and −∞ elsewhere."""
    if causal:
        square = q_bhqd.new_full((q_bhqd.shape[2], k_bgkd.shape[2]), -torch.inf)
        return square.triu_(1)
    return None if mask is None else q_bhqd.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)


class _Attention(torch.autograd.Function):
    """p = softmax(s), s = scale · q·kᵀ + bias; o = p̃ v with p̃ = dropout(p), by batched products over heads.

    With p̃ ⊙ ∂p̃ = p ⊙ ∂p the backward pass needs no mask: ∂s = p̃ ⊙ (∂o vᵀ) − p · Σ_d ∂o ⊙ o (Dao et al., 2022).
    """

    @staticmethod
    def forward(
        ctx: Any, q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, bias: Tensor | None, rate: float, scale: float
    ) -> Tensor:
        shape, keys = q_bhqd.shape, k_bgkd.shape[2]
        with torch.autocast("cpu", enabled=False):
            q, k, v = _items(q_bhqd, k_bgkd.shape[1]), _items(k_bgkd), _items(v_bgkd)
            p = _product(q, k.mT, scale).view(*shape[:3], keys)
            if bias is not None:
                p += bias
            p = torch.softmax(p, -1, out=p)
            kept = dropout(p, rate)
            o = torch.bmm(kept.view(*q.shape[:2], keys), v)
        ctx.save_for_backward(q, k, v, p, kept, o)
        ctx.rate, ctx.scale = rate, scale
        return o.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bhqd: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, kept, o = ctx.saved_tensors
        groups = len(k) // len(grad_bhqd)
        grad = _items(grad_bhqd, groups)
        p, kept = p.view(*q.shape[:2], -1), kept.view(*q.shape[:2], -1)
        ds = torch.bmm(grad, v.mT)
        mean = (grad * o).sum(-1, keepdim=True)
        ds = ds.mul_(kept).addcmul_(p, mean, value=-1) if ctx.rate else ds.sub_(mean).mul_(p)
        dq, dk, dv = _product(ds, k, ctx.scale), _product(ds.mT, q, ctx.scale), torch.bmm(kept.mT, grad)
        by_head = (len(grad_bhqd), groups, -1, q.shape[2])
        return dq.view_as(grad_bhqd), dk.view(by_head), dv.view(by_head), None, None, None


def _items(x_bhqd: Tensor, groups: int = 0) -> Tensor:
    """b h q d as (b g) (h/g · q) d: a group's heads below each other, so that keys are not repeated."""
    return x_bhqd.reshape(x_bhqd.shape[0] * (groups or x_bhqd.shape[1]), -1, x_bhqd.shape[3])


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale · a b for each item, in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)
