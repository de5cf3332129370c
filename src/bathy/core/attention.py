"""Multi-head attention as a residual branch."""

# b batch, q query position, k key position, h head, g head of keys and values, d head width

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bathy.core.cache import KeyValues
from bathy.core.initial import find_initialisation
from bathy.core.norms import RMSNorm
from bathy.core.residual import Branch, Matrix, Projections
from bathy.core.untouched import are, usual_rate
from bathy.kernels import fused_attention as fused
from bathy.kernels.attention import attention, bias_of
from bathy.kernels.choose import own_short
from bathy.kernels.dropout import Dropout
from bathy.kernels.products import Linear
from bathy.kernels.rotary import rotate
from bathy.kernels.sublayer import Inner

if TYPE_CHECKING:
    from bathy.core.config import Architecture

Turn = tuple[Tensor, Tensor]
"""cos and sin of the angles that rotary positions turn q and k by."""


class Attention(Branch):
    """dropout(W_out · softmax(scale · q·kᵀ) v), scale = 1/√d: what self-attention and cross-attention share.

    With `kv_heads` several heads of q share one of k and v (Ainslie et al., 2023); with `qk_norm` every head's q and k pass an
    RMSNorm (Henry et al., 2020; as Qwen3 has it).
    """

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.heads, self.inner_width, self.kv_width = config.heads, config.width, config.kv_width
        self.scale = config.head_width**-0.5
        self.attention_dropout = Dropout(config.attention_dropout)
        self.inner: nn.Module = nn.Identity()
        self.out = Linear(config.width, config.width, config.biases)
        self.dropout = Dropout(config.dropout)
        self.q_norm: nn.Module = RMSNorm(config.head_width) if config.qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(config.head_width) if config.qk_norm else nn.Identity()
        find_initialisation(config.init).draw_(self.out)

    def split(self, x: Tensor) -> Tensor:
        """b q (h d) as b h q d."""
        return x.unflatten(-1, (-1, self.inner_width // self.heads)).transpose(1, 2)

    def attend(self, q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The attended values, through the output matrix and its dropout."""
        rate = self.attention_dropout.p if self.training else 0.0
        values = attention(q_bhqd, k_bgkd, v_bgkd, mask, rate, causal, self.scale, self.training)
        return self.dropout(self.out(self.inner(values.transpose(1, 2).flatten(2))))

    def heads_kernel(
        self, x: Tensor, length: int, mask: Tensor | None, causal: bool, turn: Turn | None = None
    ) -> fused.Heads | None:
        """How heads attend in a fused sub-layer: plain ones, each with its own keys, of sequences of the keys' length."""
        rate = usual_rate(self.attention_dropout, self.training)
        plain = are(nn.Identity, self.inner, self.q_norm, self.k_norm) and are(Linear, self.out)
        if rate is None or not plain or self.kv_width != self.inner_width:
            return None
        short = own_short(x, self.inner_width // self.heads, length)
        bias = None if causal and (short or not rate) else bias_of(x, x.shape[1], length, mask, causal)
        return fused.Heads(self.heads, bias, causal, rate, self.scale, turn, short)


class SelfAttention(Attention):
    """Attention of the stream to itself; q, k and v are one matrix."""

    kind = "self_attention"

    def __init__(self, config: Architecture, causal: bool) -> None:
        super().__init__(config)
        self.causal, self.rotary = causal, config.positions == "rotary"
        self.qkv = Projections(config.width, (config.width, config.kv_width, config.kv_width), config.biases)
        find_initialisation(config.init).draw_(self.qkv)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValues | None = None, turn: Turn | None = None
    ) -> Tensor:
        """`mask` is true where a key may be seen (b 1 q k). Without it a causal stack sees its past, padded on the right."""
        q_bhqd, k_bgkd, v_bgkd = (self.split(part) for part in self.qkv(x))
        q_bhqd, k_bgkd = self.q_norm(q_bhqd), self.k_norm(k_bgkd)
        if self.rotary:
            assert turn is not None, "rotary attention needs the angles of its positions"
            q_bhqd, k_bgkd = rotate(q_bhqd, *turn), rotate(k_bgkd, *turn)
        past = cache.length if cache else 0
        if cache is not None:
            k_bgkd, v_bgkd = cache.extend(k_bgkd, v_bgkd)
        causal = self.causal and mask is None and x.shape[1] > 1
        if causal and past:
            mask, causal = torch.ones(x.shape[1], k_bgkd.shape[2], dtype=torch.bool, device=x.device).tril(past), False
        return self.attend(q_bhqd, k_bgkd, v_bgkd, mask, causal)

    def inner_kernel(self, x: Tensor, *context: Any) -> Inner | None:
        """W_out · attention(x) for a fused sub-layer; not with a cache."""
        mask, cache, turn = (*context, None, None, None)[:3]
        if cache is not None or not are(Projections, self.qkv) or type(self) is not SelfAttention:
            return None
        causal = self.causal and mask is None and x.shape[1] > 1
        heads = self.heads_kernel(x, x.shape[1], mask, causal, turn if self.rotary else None)
        if heads is None:
            return None
        return fused.SelfAttention(self.qkv.weight, self.qkv.bias, self.out.weight, self.out.bias, heads, x.shape[0])

    def matrices(self) -> list[Matrix]:
        """q, k and v read the stream."""
        ends = [0, self.inner_width, self.inner_width + self.kv_width, self.inner_width + 2 * self.kv_width]
        rows = [slice(*pair) for pair in pairwise(ends)]
        parts = [Matrix(role, self.qkv, part, reads=True) for role, part in zip("qkv", rows, strict=True)]
        return [*parts, Matrix("out", self.out)]


class CrossAttention(Attention):
    """Attention of the decoder's stream to the encoder's output."""

    kind = "cross_attention"

    def __init__(self, config: Architecture) -> None:
        super().__init__(config)
        self.q = Linear(config.width, config.width, config.biases)
        self.kv = Projections(config.width, (config.kv_width, config.kv_width), config.biases)
        find_initialisation(config.init).draw_(self.q, self.kv)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, cache: KeyValues | None = None) -> Tensor:
        """`memory` is the encoder's output, `mask` true where it is real (b 1 1 k); a filled cache stands for both k and v."""
        if cache is not None and cache.length:
            k_bgkd, v_bgkd = cache.held()
        else:
            k_bgkd, v_bgkd = (self.split(part) for part in self.kv(memory))
            k_bgkd = self.k_norm(k_bgkd)
            if cache is not None:
                cache.extend(k_bgkd, v_bgkd)
        return self.attend(self.q_norm(self.split(self.q(x))), k_bgkd, v_bgkd, mask, causal=False)

    def inner_kernel(self, x: Tensor, *context: Any) -> Inner | None:
        """W_out · attention(x, memory) for a fused sub-layer; not with a cache."""
        memory, mask, cache = (*context, None, None)[:3]
        known = are(Linear, self.q) and are(Projections, self.kv) and type(self) is CrossAttention
        heads = self.heads_kernel(x, memory.shape[1], mask, causal=False) if known and cache is None else None
        if heads is None:
            return None
        weights = self.q.weight, self.q.bias, self.kv.weight, self.kv.bias, self.out.weight, self.out.bias
        return fused.CrossAttention(*weights, heads, x.shape[0])

    def matrices(self) -> list[Matrix]:
        """Only q reads the stream: k and v read the encoder's output."""
        k, v = slice(0, self.kv_width), slice(self.kv_width, 2 * self.kv_width)
        parts = [Matrix("q", self.q, reads=True), Matrix("k", self.kv, k), Matrix("v", self.kv, v)]
        return [*parts, Matrix("out", self.out)]
