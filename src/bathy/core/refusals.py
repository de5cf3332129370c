"""Blocks that a scheme does not go with: why, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bathy.core.feed_forward import find_feed_forward

if TYPE_CHECKING:
    from bathy.core.config import Architecture

Refusal = Callable[["Architecture"], str]
"""Why a config does not go with a scheme, with the way out; empty where it does."""


def needs_xavier(config: Architecture) -> str:
    """Gains are relative to Xavier's matrices."""
    return "" if config.init == "xavier" else "its gains are relative to Xavier's matrices; use model.init = 'xavier'"


def needs_plain_feed_forward(config: Architecture) -> str:
    """No gate."""
    gated = find_feed_forward(config.feed_forward).gated
    return f"it is not defined for the gate of {config.feed_forward!r}; use feed_forward 'relu' or 'gelu'" if gated else ""


def norms_embeddings_itself(config: Architecture) -> str:
    """One norm on the embeddings is enough."""
    return "it has a norm on the embeddings of its own; use model.embedding_norm = false" if config.embedding_norm else ""


def embeddings_follow_the_width(config: Architecture) -> str:
    """x_0 has the same size at every width."""
    pairs = {("xavier", "sqrt_width"), ("normal", "one")}
    if (config.init, config.embedding_scale) not in pairs or (config.init == "xavier" and config.positions == "learned"):
        return "its embeddings keep their size at every width; use model.init = 'normal' with embedding_scale = 'one'"
    return ""
