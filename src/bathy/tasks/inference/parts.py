"""Sub-layers and layers as plain calls on packed weights, for inference on a CPU."""

# s sentence, k hypothesis, t target position, j cached slot, l layer, h head, d head width, D stream width

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy.core.attention import CrossAttention, SelfAttention
from bathy.core.feed_forward import FeedForward
from bathy.core.residual import Residual
from bathy.kernels.packed import PackedLinear
from bathy.tasks.special_tokens import PAD

Apply = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
"""Keys and values, s h t d each, contiguous in t and d."""


class Layout:
    """Where a batch's tokens are real. Matrix products see the real tokens alone, attention the padded batch."""

    def __init__(self, tokens: Tensor, like: Tensor, heads: int) -> None:
        real, self.shape = tokens.ne(PAD), tokens.shape
        self.places = self.mask = None
        """Rows of the real tokens, and 0 where a token is real, −∞ elsewhere ((s·h) 1 t); None where nothing is padded."""
        if not bool(real.all()):
            self.places = real.flatten().nonzero().squeeze(1)
            self.mask = like.new_zeros(tokens.shape).masked_fill_(~real, -torch.inf)[:, None].repeat_interleave(heads, 0)

    def spread(self, rows: Tensor) -> Tensor:
        """Rows of the real tokens as rows of all, padding 0."""
        whole = self.shape[0] * self.shape[1]
        return rows if self.places is None else rows.new_zeros(whole, rows.shape[1]).index_copy_(0, self.places, rows)

    def gather(self, rows: Tensor) -> Tensor:
        """Of rows of all tokens, those of the real ones."""
        return rows if self.places is None else rows.index_select(0, self.places)


class EncoderLayer:
    """Self-attention over whole sentences, then feed-forward; the stream is (real tokens) × D."""

    def __init__(self, layer: Any) -> None:
        self.attention, self.ffn = SelfPart(layer.self_attention), FeedPart(layer.ffn)

    def __call__(self, x: Tensor, layout: Layout, heads: int) -> Tensor:
        qkv = layout.spread(self.attention.project(x))
        q, k, v = qkv.view(*layout.shape, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        x = self.attention.add(x, layout.gather(attend(q, (k, v), layout.mask, self.attention.f.scale)))
        return self.ffn(x)


class DecoderLayer:
    """One step of self-attention, cross-attention and feed-forward; the stream is (s·k) × D."""

    def __init__(self, layer: Any) -> None:
        self.attention, self.cross, self.ffn = (
            SelfPart(layer.self_attention),
            CrossPart(layer.cross_attention),
            FeedPart(layer.ffn),
        )

    def __call__(
        self,
        x: Tensor,
        shape: tuple[int, int, int],
        kv: Tensor,
        start: int,
        mask: Tensor | None,
        memory_kv: Pair,
        memory_mask: Tensor | None,
    ) -> Tensor:
        """`kv` (2 s h j d) takes this step's keys and values from slot `start` on."""
        qkv = self.attention.project(x).view(shape[0], shape[1], 3, shape[2], -1).permute(2, 0, 3, 1, 4)
        kv.narrow(3, start, shape[1]).copy_(qkv.narrow(0, 1, 2))
        k, v = kv.narrow(3, 0, start + shape[1]).unbind(0)
        x = self.attention.add(x, attend(qkv.select(0, 0), (k, v), mask, self.attention.f.scale))
        x = self.cross.add(x, attend(self.cross.query(x, shape), memory_kv, memory_mask, self.cross.f.scale))
        return self.ffn(x)


class Part:
    """A residual, post(skip · x + branch · f(pre(x))), as plain calls; Identity and dropout cost nothing."""

    def __init__(self, residual: Any, kind: type) -> None:
        if type(residual) is not Residual or type(residual.f) is not kind:
            raise TypeError(f"{type(residual.f).__name__} in {type(residual).__name__}")
        self.f: Any = residual.f
        self.pre, self.post, self.branch = (as_function(part) for part in (residual.pre, residual.post, residual.branch))
        self.inner = as_function(residual.f.inner)
        self.omega = None if isinstance(residual.skip, nn.Identity) else residual.skip.omega

    def join(self, x: Tensor, a: Tensor) -> Tensor:
        """post(skip · x + branch · a)."""
        a = a if self.branch is None else self.branch(a)
        x = x + a if self.omega is None else a + x * self.omega
        return x if self.post is None else self.post(x)

    def read(self, x: Tensor) -> Tensor:
        """pre(x)."""
        return x if self.pre is None else self.pre(x)

    def within(self, x: Tensor) -> Tensor:
        """What the last matrix reads."""
        return x if self.inner is None else self.inner(x)


class AttentionPart(Part):
    """What both attentions share: the output matrix."""

    def __init__(self, residual: Any, kind: type) -> None:
        super().__init__(residual, kind)
        self.out = PackedLinear(self.f.out.weight, self.f.out.bias)

    def add(self, x: Tensor, values: Tensor) -> Tensor:
        """The stream after this sub-layer, from what attention gave."""
        return self.join(x, self.out(self.within(values)))


class SelfPart(AttentionPart):
    """Self-attention: q, k and v from one product."""

    def __init__(self, residual: Any) -> None:
        super().__init__(residual, SelfAttention)
        self.qkv = PackedLinear(self.f.qkv.weight, self.f.qkv.bias)

    def project(self, x: Tensor) -> Tensor:
        """q, k and v side by side."""
        return self.qkv(self.read(x))


class CrossPart(AttentionPart):
    """Attention to the encoder's output, whose keys and values are computed once."""

    def __init__(self, residual: Any) -> None:
        super().__init__(residual, CrossAttention)
        self.q, self.kv = (PackedLinear(part.weight, part.bias) for part in (self.f.q, self.f.kv))

    def query(self, x: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """s h k d."""
        s, k, h = shape
        return self.q(self.read(x)).view(s, k, h, -1).transpose(1, 2)

    def keys_values(self, memory: Tensor, layout: Layout, heads: int) -> Pair:
        """Those of the encoder's output."""
        k, v = layout.spread(self.kv(memory)).view(*layout.shape, 2, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        return k, v


class FeedPart(Part):
    """Feed-forward."""

    def __init__(self, residual: Any) -> None:
        super().__init__(residual, FeedForward)
        self.fc1, self.fc2 = (PackedLinear(part.weight, part.bias) for part in (self.f.fc1, self.f.fc2))
        self.activation = torch.relu_ if type(self.f.activation) is nn.ReLU else self.f.activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.join(x, self.fc2(self.within(self.activation(self.fc1(self.read(x))))))


def attend(q_shtd: Tensor, kv: Pair, mask: Tensor | None, scale: float | None) -> Tensor:
    """softmax(scale · q kᵀ + mask) v as rows, (s·t) × D; the mask is (s·h) t j, or (s·h) 1 j for all t alike; of one
    sentence also 1 t j for all heads alike.

    For many sentences of few tokens three batched products are a little faster than torch's fused attention; for one sentence
    they are not, and in half precision they would round the scores.
    """
    s, h, t, d = q_shtd.shape
    scale = d**-0.5 if scale is None else scale
    if s == 1 or q_shtd.itemsize < 4:
        wide = None if mask is None else mask[None] if len(mask) == 1 else mask.unflatten(0, (s, h))
        return F.scaled_dot_product_attention(q_shtd, *kv, wide, scale=scale).transpose(1, 2).reshape(s * t, h * d)
    q, k, v = (part.reshape(s * h, -1, d) for part in (q_shtd, *kv))
    scores = torch.bmm(q, k.mT).mul_(scale) if mask is None else torch.baddbmm(mask, q, k.mT, alpha=scale)
    return torch.bmm(scores.softmax(-1), v).view(s, h, t, d).transpose(1, 2).reshape(s * t, h * d)


def as_function(module: nn.Module) -> Apply | None:
    """The module as a function, without the cost of a module's call where it is a LayerNorm; nothing for Identity."""
    if isinstance(module, nn.Identity):
        return None
    if isinstance(module, nn.LayerNorm):
        shape, weight, bias, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
    return module


def ends(stack: Any) -> tuple[Apply, Apply]:
    """What a stack does before its first and after its last layer."""
    first, final = (as_function(part) or (lambda x: x) for part in (stack.first, stack.final))
    return first, final
