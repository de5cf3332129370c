"""Multi-head attention as a residual branch, with a key/value cache."""

# b batch, q query position, k key position, h head, d head width, D stream width

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bathy.dropout import Dropout
from bathy.residual import Branch, Matrix


class KeyValues:
    """Keys and values that one attention has seen so far, b h k d each.

    They lie in buffers of b k h d that double when full: a step writes only what is new, and a selection of rows moves only
    the rows that change their place. For inference: the buffers are written in place.
    """

    def __init__(self) -> None:
        self.length = 0
        """Positions held."""
        self._buffers: list[Tensor] = []

    def extend(self, k_bhkd: Tensor, v_bhkd: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values with the new ones behind."""
        start, self.length = self.length, self.length + k_bhkd.shape[2]
        if not self._buffers or self._buffers[0].shape[1] < self.length:
            self._grow(k_bhkd, start)
        for buffer, new_bhkd in zip(self._buffers, (k_bhkd, v_bhkd), strict=True):
            buffer[:, start : self.length] = new_bhkd.transpose(1, 2)
        return self.held()

    def held(self) -> tuple[Tensor, Tensor]:
        """All keys and values."""
        keys, values = (buffer[:, : self.length].transpose(1, 2) for buffer in self._buffers)
        return keys, values

    def select_(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        for i, buffer in enumerate(self._buffers):
            if len(rows) > len(buffer):
                self._buffers[i] = buffer[rows]
            else:
                buffer[moved] = buffer[rows[moved]]
                self._buffers[i] = buffer[: len(rows)]

    def compact_(self, slots_bk: Tensor) -> None:
        """Keep these positions of each row, in this order."""
        rows = torch.arange(len(slots_bk), device=slots_bk.device)[:, None]
        self.length = slots_bk.shape[1]
        for buffer in self._buffers:
            buffer[:, : self.length] = buffer[rows, slots_bk]

    def _grow(self, like_bhkd: Tensor, used: int) -> None:
        b, h, _, d = like_bhkd.shape
        grown = [like_bhkd.new_empty(b, max(self.length, 2 * used), h, d) for _ in range(2)]
        for new, old in zip(grown, self._buffers, strict=False):
            new[:, :used] = old[:, :used]
        self._buffers = grown


class Cache:
    """What a decoder remembers between steps: own keys and values for each layer, and those of the encoder's output.

    With `beams` the columns of `target_in` are not successive tokens but a sentence's hypotheses, one token each, all at the
    same position. Keys and values stay where they were written; `follow_` changes only who sees them, so that a beam step
    copies nothing, and the encoder's keys exist once a sentence. Now and then positions that no hypothesis sees any more are
    dropped: hypotheses soon share all but their last few tokens.
    """

    ROOM = 32
    """Positions below which nothing is dropped."""

    def __init__(self, layers: int, beams: int = 1) -> None:
        self.own = [KeyValues() for _ in range(layers)]
        self.memory = [KeyValues() for _ in range(layers)]
        self.beams, self.length, self.full = beams, 0, self.ROOM
        """Hypotheses, target positions decoded so far, and cached positions at which unseen ones are dropped."""
        self.visible: Tensor | None = None
        """Which cached position each hypothesis has in its history, b q k; with one beam, all."""

    def admit(self, tokens: Tensor) -> Tensor | None:
        """Make room for tokens: with one beam the next ones, else one of each hypothesis, with the mask of what it sees."""
        self.length += tokens.shape[1] if self.beams == 1 else 1
        if self.beams == 1:
            return None
        itself = torch.eye(self.beams, dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        self.visible = itself if self.visible is None else torch.cat([self.visible, itself], dim=2)
        return self.visible[:, None]

    def follow_(self, parents: Tensor) -> None:
        """Let hypothesis j of sentence i go on from hypothesis parents[i, j]."""
        if self.visible is None:
            return
        self.visible = self.visible.gather(1, parents[..., None].expand(-1, -1, self.visible.shape[2]))
        if self.visible.shape[2] >= self.full:
            self._drop_unseen(self.visible)

    def _drop_unseen(self, visible: Tensor) -> None:
        seen = visible.any(1)
        slots = seen.byte().sort(dim=1, descending=True, stable=True).indices[:, : int(seen.sum(1).max())]
        for part in self.own:
            part.compact_(slots)
        self.visible = visible.gather(2, slots[:, None].expand(-1, self.beams, -1))
        self.full = max(self.ROOM, 2 * slots.shape[1])

    def select_(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for part in (*self.own, *self.memory):
            part.select_(rows)
        if self.visible is not None:
            self.visible = self.visible[rows]


def fused_xavier_(*linears: nn.Linear) -> None:
    """Draw the linear layers as the rows of one Xavier-uniform matrix (for q, k, v: an effective gain of 1/√2), biases 0."""
    rows = sum(linear.out_features for linear in linears)
    bound = (6 / (rows + linears[0].in_features)) ** 0.5
    for linear in linears:
        nn.init.uniform_(linear.weight, -bound, bound)
        nn.init.zeros_(linear.bias)


class _Projections(torch.autograd.Function):
    """x Wᵀ + b as `parts` tensors, whose gradients meet in the matrix products: no copy puts them side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, parts: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return tuple(F.linear(x, w, b) for w, b in zip(weight.chunk(parts), bias.chunk(parts), strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat, rows = x.flatten(0, -2), [grad.flatten(0, -2) for grad in grads]
        matrices = weight.chunk(len(grads))
        dx = rows[0] @ matrices[0]
        for grad, matrix in zip(rows[1:], matrices[1:], strict=True):
            dx.addmm_(grad, matrix)
        return dx.view_as(x), torch.cat([grad.T @ flat for grad in rows]), torch.cat([grad.sum(0) for grad in rows]), None


class Projections(nn.Linear):
    """Linear maps of one input to `width` each, the rows of one matrix; gives them apart."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__(width, parts * width)
        self.parts = parts

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        plain = x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or self.bias is None
        if plain or not torch.is_grad_enabled():
            return super().forward(x).chunk(self.parts, dim=-1)
        return _Projections.apply(x, self.weight, self.bias, self.parts)  # type: ignore[no-untyped-call]


class Attention(Branch):
    """dropout(W_out · softmax(q·kᵀ/√d) v): what self-attention and encoder-attention share."""

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.heads, self.inner_width = heads, width
        self.attention_dropout = Dropout(attention_dropout)
        self.inner: nn.Module = nn.Identity()
        self.out = nn.Linear(width, width)
        self.dropout = Dropout(dropout)
        fused_xavier_(self.out)

    def split(self, x_bqd: Tensor) -> Tensor:
        """b q (h d) as b h q d."""
        return x_bqd.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q_bhqd: Tensor, k_bhkd: Tensor, v_bhkd: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The attended values, through the output matrix and its dropout."""
        chance = self.attention_dropout.p if self.training else 0.0
        real = type(q_bhqd) is Tensor  # not a fake one, by which a plan measures memory for any device
        slow = chance or (real and q_bhqd.dtype == torch.bfloat16 and torch.is_grad_enabled())
        if slow and q_bhqd.device.type == "cpu" and not torch.compiler.is_compiling():
            values = self._products(q_bhqd, k_bhkd, v_bhkd, mask, causal)
        else:
            values = F.scaled_dot_product_attention(q_bhqd, k_bhkd, v_bhkd, mask, chance, causal)
        return self.dropout(self.out(self.inner(values.transpose(1, 2).flatten(2))))

    def _products(self, q_bhqd: Tensor, k_bhkd: Tensor, v_bhkd: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The attended values step by step: on a CPU torch's own takes longer with dropout, and far longer in bfloat16."""
        if causal:
            mask = torch.ones(q_bhqd.shape[2], k_bhkd.shape[2], dtype=torch.bool).tril()
        scores_bhqk = (q_bhqd * q_bhqd.shape[3] ** -0.5) @ k_bhkd.mT
        if mask is not None:
            scores_bhqk += torch.zeros(mask.shape, dtype=scores_bhqk.dtype).masked_fill_(~mask, -torch.inf)
        return self.attention_dropout(scores_bhqk.softmax(-1)) @ v_bhkd


class SelfAttention(Attention):
    """Attention of the stream to itself; q, k and v are one matrix."""

    kind = "self_attention"

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float, causal: bool) -> None:
        super().__init__(width, heads, dropout, attention_dropout)
        self.causal = causal
        self.qkv = Projections(width, 3)
        fused_xavier_(self.qkv)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KeyValues | None = None) -> Tensor:
        """`mask` is true where a key may be seen (b 1 q k). Without it a causal stack sees its past, padded on the right."""
        q_bhqd, k_bhkd, v_bhkd = (self.split(part) for part in self.qkv(x))
        past = cache.length if cache else 0
        if cache is not None:
            k_bhkd, v_bhkd = cache.extend(k_bhkd, v_bhkd)
        causal = self.causal and mask is None and x.shape[1] > 1
        if causal and past:
            mask, causal = torch.ones(x.shape[1], k_bhkd.shape[2], dtype=torch.bool, device=x.device).tril(past), False
        return self.attend(q_bhqd, k_bhkd, v_bhkd, mask, causal)

    def matrices(self) -> list[Matrix]:
        """q, k and v read the stream."""
        width = self.out.out_features
        rows = [slice(i * width, (i + 1) * width) for i in range(3)]
        parts = [Matrix(role, self.qkv, part, reads=True) for role, part in zip("qkv", rows, strict=True)]
        return [*parts, Matrix("out", self.out)]


class EncoderAttention(Attention):
    """Attention of the decoder's stream to the encoder's output."""

    kind = "encoder_attention"

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__(width, heads, dropout, attention_dropout)
        self.q, self.kv = nn.Linear(width, width), Projections(width, 2)
        fused_xavier_(self.q, self.kv)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, cache: KeyValues | None = None) -> Tensor:
        """`memory` is the encoder's output, `mask` true where it is real (b 1 1 k); a filled cache stands for both k and v."""
        if cache is not None and cache.length:
            k_bhkd, v_bhkd = cache.held()
        else:
            k_bhkd, v_bhkd = (self.split(part) for part in self.kv(memory))
            if cache is not None:
                cache.extend(k_bhkd, v_bhkd)
        return self.attend(self.split(self.q(x)), k_bhkd, v_bhkd, mask, causal=False)

    def matrices(self) -> list[Matrix]:
        """Only q reads the stream: k and v read the encoder's output."""
        width = self.q.out_features
        k, v = slice(0, width), slice(width, 2 * width)
        parts = [Matrix("q", self.q, reads=True), Matrix("k", self.kv, k), Matrix("v", self.kv, v)]
        return [*parts, Matrix("out", self.out)]
