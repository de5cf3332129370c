"""The loss of guessing by frequency alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

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
