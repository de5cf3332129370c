"""What attention remembers between the steps of decoding: keys and values."""

# b batch, q query position, k key position, h head, d head width

from __future__ import annotations

import torch
from torch import Tensor


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
