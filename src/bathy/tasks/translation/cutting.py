"""Sentences cut into batches by their lengths, and laid side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bathy.errors import DataError
from bathy.tasks.special_tokens import BOS, PAD

Rows = npt.NDArray[np.int64]


def cut(
    source: npt.NDArray[np.int32], target: npt.NDArray[np.int32], tokens: int, rng: np.random.Generator | None
) -> list[Rows]:
    """Places of the sentences of each batch, shortest first.

    `rng` decides among sentences of like lengths, which way the differences run, and how full the first batch is, so
    that no two epochs draw the same borders.
    """
    start = rng.permutation(len(source)) if rng is not None else np.arange(len(source))
    up = int(rng.integers(2)) if rng is not None else 0
    first = int(rng.uniform(0.2, 1) * tokens) if rng is not None else tokens
    longer = np.maximum(source, target)[start]
    difference = (source - target)[start].astype(np.int64)
    key = longer.astype(np.int64) * (2 * int(longer.max(initial=0)) + 1) + np.where(longer % 2 == up, difference, -difference)
    order = start[np.argsort(key, kind="stable")]
    longer = np.maximum(source, target)[order]
    batches, begin = [], 0
    while begin < len(order):
        budget = tokens if begin else max(first, int(longer[0]))
        window = longer[begin : begin + budget // int(longer[begin])]
        rows = int(np.searchsorted(window * np.arange(1, len(window) + 1), budget, side="right"))
        batches.append(order[begin : begin + rows])
        begin += rows
    return batches


def divisible(batches: list[Rows], size: int) -> list[Rows]:
    """The batches, the largest of them halved until their number is a multiple of `size`."""
    batches = list(batches)
    while len(batches) % size:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        whole = batches.pop(largest)
        if len(whole) < 2:
            raise DataError(
                f"{len(batches) + 1} batches of one sentence cannot be shared by {size} ranks; raise the token budget"
            )
        batches += [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return batches


def collate(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Rows, Rows]:
    """Sources and targets as padded arrays; a target begins with BOS."""
    return _padded([source for source, _ in pairs]), _padded([[BOS, *target] for _, target in pairs])


def _padded(rows: Sequence[Sequence[int]]) -> Rows:
    result = np.full((len(rows), max(map(len, rows))), PAD, np.int64)
    for row, ids in zip(result, rows, strict=True):
        row[: len(ids)] = ids
    return result
