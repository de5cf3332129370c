"""Attended values: softmax(scale · q·kᵀ) v, with dropout on the probabilities; heads of q may share those of k and v."""

# b batch, h head, g head of keys and values, q query position, k key position, d head width

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bathy.kernels import compiled
from bathy.kernels.choose import own_attention, own_short, repeated_keys
from bathy.kernels.dropout import drawn_for, dropout, dropped_by


def attention(
    q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, mask: Tensor | None, rate: float, causal: bool, scale: float,
    training: bool = False,
) -> Tensor:  # fmt: skip
    """The attended values, b h q d; `mask` is true where a key may be seen, `causal` lets a query see its past only.

    With fewer heads of keys than of queries, each serves as many successive heads of queries.
    """
    same = q_bhqd.shape[1] == k_bgkd.shape[1]
    if training and same and own_short(q_bhqd.transpose(1, 2), q_bhqd.shape[3], k_bgkd.shape[2]):
        bias = None if causal else bias_of(q_bhqd, q_bhqd.shape[2], k_bgkd.shape[2], mask, causal)
        return _ShortAttention.apply(q_bhqd, k_bgkd, v_bgkd, bias, rate, causal, scale)  # type: ignore[no-untyped-call]
    if own_attention(q_bhqd, rate):
        bias = bias_of(q_bhqd, q_bhqd.shape[2], k_bgkd.shape[2], mask, causal)
        return _Attention.apply(q_bhqd, k_bgkd, v_bgkd, bias, rate, scale)  # type: ignore[no-untyped-call]
    grouped = q_bhqd.shape[1] != k_bgkd.shape[1]
    if grouped and repeated_keys(q_bhqd):
        times, grouped = q_bhqd.shape[1] // k_bgkd.shape[1], False
        k_bgkd, v_bgkd = k_bgkd.repeat_interleave(times, 1), v_bgkd.repeat_interleave(times, 1)
    return F.scaled_dot_product_attention(q_bhqd, k_bgkd, v_bgkd, mask, rate, causal, scale=scale, enable_gqa=grouped)


def bias_of(x: Tensor, queries: int, keys: int, mask: Tensor | None, causal: bool) -> Tensor | None:
    """0 where a key may be seen and −∞ elsewhere, in the precision of x."""
    if causal:
        return x.new_full((queries, keys), -torch.inf).triu_(1)
    return None if mask is None else x.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)


class _Attention(torch.autograd.Function):
    """`attend` as a node of autograd."""

    @staticmethod
    def forward(
        ctx: Any, q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, bias: Tensor | None, rate: float, scale: float
    ) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            q, k, v = _items(q_bhqd, k_bgkd.shape[1]), _items(k_bgkd), _items(v_bgkd)
            o, p, kept = attend(q, k, v, bias, (*q_bhqd.shape[:3], k_bgkd.shape[2]), rate, scale)
        ctx.save_for_backward(q, k, v, p, kept, o)
        ctx.rate, ctx.scale = rate, scale
        return o.view(q_bhqd.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bhqd: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, kept, o = ctx.saved_tensors
        groups = len(k) // len(grad_bhqd)
        grad = _items(grad_bhqd, groups)
        mean = (grad * o).sum(-1, keepdim=True)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        attend_back(grad, mean, q, k, v, p, kept, ctx.rate, ctx.scale, dq, dk, dv)
        by_head = (len(grad_bhqd), groups, -1, q.shape[2])
        return dq.view_as(grad_bhqd), dk.view(by_head), dv.view(by_head), None, None, None


class _ShortAttention(torch.autograd.Function):
    """`attend_short` as a node of autograd."""

    @staticmethod
    def forward(
        ctx: Any, q_bhqd: Tensor, k_bhkd: Tensor, v_bhkd: Tensor, bias: Tensor | None, rate: float, causal: bool, scale: float
    ) -> Tensor:
        qkv = [_in_rows(part) for part in (q_bhqd, k_bhkd, v_bhkd)]
        o_rd, p, draws = attend_short(qkv, bias, causal, rate, scale)
        ctx.save_for_backward(*qkv, o_rd, p, draws)
        ctx.rate, ctx.scale = rate, scale
        batch, heads, queries, width = q_bhqd.shape
        return o_rd.view(batch, queries, heads, width).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bhqd: Tensor) -> tuple[Tensor | None, ...]:
        *qkv, o_rd, p, draws = ctx.saved_tensors
        into = [torch.empty_like(part) for part in qkv]
        grad_rd = grad_bhqd.transpose(1, 2).reshape(o_rd.shape)
        compiled.attend_back(grad_rd, o_rd, qkv, p, dropped_by(draws, ctx.rate), ctx.scale, into)
        return (*into, None, None, None, None)


def _in_rows(x_bhtd: Tensor) -> Tensor:
    """The same, with a head's numbers next to each other."""
    return x_bhtd if x_bhtd.stride(3) == 1 else x_bhtd.contiguous()


def attend_short(
    qkv: list[Tensor], bias: Tensor | None, causal: bool, rate: float, scale: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(o as rows, p, draws) by compiled kernels; each b h t d."""
    batch, heads, queries, _ = qkv[0].shape
    draws = drawn_for(qkv[0].new_empty(()).expand(batch, heads, queries, qkv[1].shape[2])) if rate else None
    o_rd, p = compiled.attend(qkv, bias, causal, dropped_by(draws, rate), scale)
    return o_rd, p, draws


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, shape: tuple[int, ...], rate: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(o, p, p̃): p = softmax(s), s = scale · q·kᵀ + bias; o = p̃ v with p̃ = dropout(p), by batched products over heads.

    `shape` is that of the scores, b h q k, which the bias and the draws follow.
    """
    p = _product(q, k.mT, scale).view(shape)
    if bias is not None:
        p += bias
    p = torch.softmax(p, -1, out=p)
    kept = dropout(p, rate)
    items = (len(q), -1, shape[3])
    return torch.bmm(kept.view(items), v), p.view(items), kept.view(items)


def attend_back(
    grad: Tensor, mean: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor, kept: Tensor, rate: float, scale: float,
    dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    """Write the gradients of q, k and v to the last three.

    With p̃ ⊙ ∂p̃ = p ⊙ ∂p no mask is needed: ∂s = p̃ ⊙ (∂o vᵀ) − p · Σ_d ∂o ⊙ o, whose sum is `mean` (Dao et al., 2022).
    """
    ds = torch.bmm(grad, v.mT)
    ds = ds.mul_(kept).addcmul_(p, mean, value=-1) if rate else ds.sub_(mean).mul_(p)
    _product(ds, k, scale, dq)
    _product(ds.mT, q, scale, dk)
    torch.bmm(kept.mT, grad, out=dv)


def _items(x_bhqd: Tensor, groups: int = 0) -> Tensor:
    """b h q d as (b g) (h/g · q) d: a group's heads below each other, so that keys are not repeated."""
    return x_bhqd.reshape(x_bhqd.shape[0] * (groups or x_bhqd.shape[1]), -1, x_bhqd.shape[3])


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale · a b for each item, in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)
