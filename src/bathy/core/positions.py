"""Where a token stands: sinusoids and learned tables are added to embeddings, rotary positions turn q and k."""

# b batch, t position, d head width

from __future__ import annotations

import torch
from torch import Tensor, nn

from bathy.errors import ConfigError, nearest

POSITIONS = {
    "sinusoidal": "Vaswani et al., 2017: sines and cosines, added to the embeddings",
    "learned": "Gehring et al., 2017: a learned vector for each position, added to the embeddings",
    "rotary": "Su et al., 2021: q and k turned by angles proportional to their position",
}

Where = slice | Tensor
"""Positions of the tokens: consecutive ones, alike in every row, or a table of their own (b t)."""


def find_positions(name: str) -> str:
    """The reference for positions of that name, or an error that names the nearest."""
    if name not in POSITIONS:
        known = ", ".join(POSITIONS)
        raise ConfigError(f"there are no positions {name!r}.{nearest(name, POSITIONS)} Known: {known}.")
    return POSITIONS[name]


def sinusoids(length: int, width: int) -> Tensor:
    """Positions as sine and cosine halves: sin(p / 10000^(2i/width)) for i < width/2, then the cosines."""
    angles = _angles(length, width, 10000.0)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class Rotary(nn.Module):
    """cos and sin of p / base^(2i/d) for i < d/2: the angles by which position p turns the pairs (i, i + d/2) of a head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, head_width: int, base: float) -> None:
        super().__init__()
        angles = _angles(length, head_width, base)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, where: Where) -> tuple[Tensor, Tensor]:
        """(cos, sin) at these positions, t × d/2 or b × 1 × t × d/2."""
        if isinstance(where, slice):
            return self.cos[where], self.sin[where]
        return self.cos[where][:, None], self.sin[where][:, None]


def positions_in_documents(documents_bt: Tensor) -> Tensor:
    """Positions that start again at 0 wherever the number of the document changes along a row (b t)."""
    index = torch.arange(documents_bt.shape[1], device=documents_bt.device).expand_as(documents_bt)
    begins = torch.ones_like(documents_bt, dtype=torch.bool)
    begins[:, 1:] = documents_bt[:, 1:] != documents_bt[:, :-1]
    return index - (index * begins).cummax(1).values


def _angles(length: int, width: int, base: float) -> Tensor:
    rate = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * rate
