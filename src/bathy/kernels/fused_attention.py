"""Self- and cross-attention inside a fused sub-layer: W_out · softmax(scale · q·kᵀ) v, every head with keys of its own."""

# b batch, t or q query, k key, h head, d head width, r row (b t)

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bathy.kernels import compiled
from bathy.kernels.attention import attend, attend_back, attend_short
from bathy.kernels.dropout import dropped_by
from bathy.kernels.norm import Maybe
from bathy.kernels.products import bias_back, product, product_back, weight_back
from bathy.kernels.rotary import turned

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(slots=True)
class Heads:
    """How q, k and v attend: `bias` (0 or −∞, as wide as the scores or to be widened) is added to the scores."""

    count: int
    bias: Maybe
    causal: bool
    rate: float
    scale: float
    turn: tuple[Tensor, Tensor] | None
    short: bool
    """Whether compiled kernels attend."""

    def split(self, x_rd: Tensor, batch: int, parts: int) -> Tensor:
        """Rows of several parts side by side as parts b h t d: one copy for batched products, else a view."""
        apart = x_rd.view(batch, len(x_rd) // batch, parts, self.count, -1).permute(2, 0, 3, 1, 4)
        return apart.contiguous() if self.rate and not self.short else apart

    def join(self, x_pbhtd: Tensor) -> Tensor:
        """`split` undone."""
        parts, batch, heads, length, width = x_pbhtd.shape
        return x_pbhtd.permute(1, 3, 0, 2, 4).reshape(batch * length, parts * heads * width)

    def turn_(self, q_bhtd: Tensor, k_bhtd: Tensor, sign: int) -> None:
        """Turn q and k by the angles of their positions, or back."""
        if self.turn is not None:
            for x in (q_bhtd, k_bhtd):
                x.copy_(turned(x, *self.turn, sign))

    def forward(self, q_bhqd: Tensor, k_bhkd: Tensor, v_bhkd: Tensor) -> tuple[Tensor, tuple[Maybe, ...]]:
        """The attended values as rows, and what the backward pass needs."""
        if self.short:
            o_rd, *saved = attend_short([q_bhqd, k_bhkd, v_bhkd], self.bias, self.causal, self.rate, self.scale)
            return o_rd, tuple(saved)
        if not self.rate:
            o, total = FLASH(q_bhqd, k_bhkd, v_bhkd, 0.0, self.causal, attn_mask=self.bias, scale=self.scale)
            return self.join(o[None]), (total,)
        shape = (*q_bhqd.shape[:3], k_bhkd.shape[2])
        q, k, v = _items(q_bhqd), _items(k_bhkd), _items(v_bhkd)
        o, p, kept = attend(q, k, v, self.bias, shape, self.rate, self.scale)
        return self.join(o.view(1, *q_bhqd.shape)), (p, kept)

    def backward(
        self, grad_rd: Tensor, o_rd: Tensor, qkv: tuple[Tensor, ...], saved: tuple[Tensor, ...], into: tuple[Tensor, ...]
    ) -> None:
        """Write the gradients of q, k and v, each b h t d."""
        if self.short:
            p, draws = saved
            compiled.attend_back(grad_rd, o_rd, qkv, p, dropped_by(draws, self.rate), self.scale, into)
            return
        grad = self.split(grad_rd, len(qkv[0]), 1)[0]
        if not self.rate:
            o = self.split(o_rd, len(qkv[0]), 1)[0]
            found = FLASH_BACK(grad, *qkv, o, *saved, 0.0, self.causal, attn_mask=self.bias, scale=self.scale)
            for gradient, place in zip(found, into, strict=True):
                place.copy_(gradient)
            return
        mean = (
            (grad_rd * o_rd).view(len(grad), -1, self.count, grad.shape[3]).sum(3).transpose(1, 2).reshape(-1, grad.shape[2], 1)
        )
        (q, k, v), (dq, dk, dv), (p, kept) = map(_items, qkv), map(_items, into), saved
        attend_back(_items(grad), mean, q, k, v, p, kept, self.rate, self.scale, dq, dk, dv)


def _items(x_bhtd: Tensor) -> Tensor:
    return x_bhtd.view(-1, *x_bhtd.shape[2:])


@dataclass(slots=True)
class SelfAttention:
    """Weights and settings; q, k and v are one matrix."""

    w_qkv: Tensor
    b_qkv: Maybe
    w_out: Tensor
    b_out: Maybe
    heads: Heads
    batch: int

    def parameters(self) -> tuple[Maybe, ...]:
        """Both matrices with their biases."""
        return self.w_qkv, self.b_qkv, self.w_out, self.b_out

    def forward(self, x: Tensor, memory: Maybe) -> tuple[Tensor, tuple[Maybe, ...]]:
        """W_out · attention(x) + b_out."""
        qkv = self.heads.split(product(x, self.w_qkv, self.b_qkv), self.batch, 3)
        self.heads.turn_(qkv[0], qkv[1], 1)
        values, saved = self.heads.forward(*qkv.unbind())
        return product(values, self.w_out, self.b_out), (qkv, values, *saved)

    def backward(self, dy: Tensor, x: Tensor, memory: Maybe, saved: tuple[Maybe, ...]) -> tuple[Maybe, ...]:
        """Gradients of x, of no memory, and of the parameters."""
        qkv, values, *rest = saved
        assert qkv is not None and values is not None
        grads = torch.empty_like(qkv)
        self.heads.backward(product_back(dy, self.w_out), values, qkv.unbind(), tuple(rest), grads.unbind())  # type: ignore[arg-type]
        self.heads.turn_(grads[0], grads[1], -1)
        d_qkv = self.heads.join(grads)
        own = weight_back(d_qkv, x, self.w_qkv), bias_back(d_qkv, self.b_qkv, self.w_qkv)
        last = weight_back(dy, values, self.w_out), bias_back(dy, self.b_out, self.w_out)
        return product_back(d_qkv, self.w_qkv), None, *own, *last


@dataclass(slots=True)
class CrossAttention:
    """Weights and settings; k and v are one matrix, of the encoder's output."""

    w_q: Tensor
    b_q: Maybe
    w_kv: Tensor
    b_kv: Maybe
    w_out: Tensor
    b_out: Maybe
    heads: Heads
    batch: int

    def parameters(self) -> tuple[Maybe, ...]:
        """The three matrices with their biases."""
        return self.w_q, self.b_q, self.w_kv, self.b_kv, self.w_out, self.b_out

    def forward(self, x: Tensor, memory: Maybe) -> tuple[Tensor, tuple[Maybe, ...]]:
        """W_out · attention(x, memory) + b_out."""
        assert memory is not None
        q = self.heads.split(product(x, self.w_q, self.b_q), self.batch, 1)
        kv = self.heads.split(product(memory.flatten(0, 1), self.w_kv, self.b_kv), self.batch, 2)
        values, saved = self.heads.forward(q[0], *kv.unbind())
        return product(values, self.w_out, self.b_out), (q, kv, values, *saved)

    def backward(self, dy: Tensor, x: Tensor, memory: Maybe, saved: tuple[Maybe, ...]) -> tuple[Maybe, ...]:
        """Gradients of x, of the memory, and of the parameters."""
        q, kv, values, *rest = saved
        assert q is not None and kv is not None and values is not None and memory is not None
        dq, dkv = torch.empty_like(q), torch.empty_like(kv)
        grad = product_back(dy, self.w_out)
        self.heads.backward(grad, values, (q[0], *kv.unbind()), tuple(rest), (dq[0], *dkv.unbind()))  # type: ignore[arg-type]
        d_q, d_kv = self.heads.join(dq), self.heads.join(dkv)
        own = weight_back(d_q, x, self.w_q), bias_back(d_q, self.b_q, self.w_q)
        other = weight_back(d_kv, memory.flatten(0, 1), self.w_kv), bias_back(d_kv, self.b_kv, self.w_kv)
        last = weight_back(dy, values, self.w_out), bias_back(dy, self.b_out, self.w_out)
        return product_back(d_q, self.w_q), product_back(d_kv, self.w_kv).view_as(memory), *own, *other, *last
