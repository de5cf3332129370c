"""Exact deduplication in constant memory: hashes on disk, compared a part at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from bathy.files import replacing
from bathy.tasks.translation.prepare.shards import finish, is_finished

PART = 2_000_000
"""Pairs whose hashes are compared at once."""


def mark_repeated(folder: Path, kept: list[int]) -> None:
    """Write `keep.npy`: for each kept pair of all shards, whether it is the first of its kind."""
    target = folder / "keep.npy"
    if is_finished(folder, "keep"):
        return
    with replacing(target) as temporary:
        keep = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.bool_, shape=(sum(kept),))
        keep[:] = False
        parts = max(1, -(-sum(kept) // PART))
        for part in range(parts):
            places, values = gathered(folder, kept, part, parts)
            _, first = np.unique(values, axis=0, return_index=True)
            keep[places[first]] = True
        keep.flush()
        del keep
    finish(folder, "keep", [target.name])


def gathered(folder: Path, kept: list[int], part: int, parts: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """(place, hash) of the pairs whose hash falls into a part, in order of place."""
    places, values, start = [np.empty(0, np.int64)], [np.empty((0, 2), np.uint64)], 0
    for number, count in enumerate(kept):
        hashes = np.load(folder / f"{number:06}.npy")
        chosen = np.flatnonzero(hashes[:, 0] % np.uint64(parts) == part)
        places.append(chosen + start)
        values.append(hashes[chosen])
        start += count
    return np.concatenate(places), np.concatenate(values)
