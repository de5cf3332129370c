"""The loss of guessing by frequency alone, and what a model that has improved on it does not use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

BEGUN = 0.3
"""Nats of improvement over guessing from which on a model has begun to learn."""
COUNTED = 10_000_000
"""Tokens of each stream that the entropy is taken over."""


def unigram_entropy(streams: Iterable[Any]) -> float:
    """Entropy in nats of streams of token ids."""
    counts = [np.bincount(np.asarray(ids[:COUNTED])) for ids in streams]
    total = np.zeros(max(map(len, counts)))
    for count in counts:
        total[: len(count)] += count
    share = total[total > 0] / total.sum()
    return float(-(share * np.log(share)).sum())


def hardly_uses(what: str, improvement: float, gap: float, share: float) -> str:
    """That a model has begun to learn and yet a wrong input costs it less than a `share` of its improvement; else nothing."""
    if improvement <= BEGUN or gap >= share * improvement:
        return ""
    return f"{what}: a wrong one costs {gap:.3f} of the {improvement:.2f} nats by which it improves on guessing"
