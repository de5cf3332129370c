"""NumPy files that are mapped into memory and verified block by block, each when it is first read.

    write: sums = block_sums(path)                         # goes into the folder's manifest
    read:  ids = BlockArray(path, sums, below=vocab)       # opened in a millisecond, whatever its size
           ids[places]                                     # a damaged block, or an id beyond the vocabulary, is an error

A block is 64 kB: its check costs 40 µs, once, and pages that are read anyway are the only ones touched.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from bathy.errors import DataError
from bathy.files import digest

BLOCK = 1 << 16
"""Bytes that are checked together."""
DIGITS = 16
"""Hexadecimal digits kept of a block's SHA-256."""


def block_sums(path: Path) -> str:
    """The checksums of all blocks of a file, one behind the other."""
    with path.open("rb") as file:
        return "".join(_sum(block) for block in iter(lambda: file.read(BLOCK), b""))


def _sum(block: Any) -> str:
    return hashlib.sha256(block).hexdigest()[:DIGITS]


class BlockArray:
    """A one-dimensional .npy file that reads like its array and verifies what is read.

    `sums` is what `block_sums` gave. Folders of version 0.1 have only `sha256` of the whole file: it is checked at the
    first read. Values must be smaller than `below`.
    """

    def __init__(self, path: Path, sums: str | None, sha256: str = "", below: int | None = None) -> None:
        self.path, self.sums, self.sha256, self.below = path, sums, sha256, below
        self.array: npt.NDArray[Any] = open_array(path)
        self.raw = np.memmap(path, np.uint8, mode="r")
        self.header = len(self.raw) - self.array.nbytes
        self.block = BLOCK if sums is not None else len(self.raw)
        blocks = -(-len(self.raw) // self.block)
        if sums is not None and len(sums) != blocks * DIGITS:
            raise DataError(f"{path} has {len(self.raw):,} bytes, not as many as were written; prepare the folder again")
        self.unchecked = np.ones(blocks, np.bool_)
        self.left = blocks
        """Blocks that nobody has read yet."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, places: Any) -> Any:
        """The values at a place, in a slice, or at an array of places."""
        if self.left:
            self._check(self._blocks(places))
        return self.array[places]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def tolist(self) -> list[Any]:
        """All values."""
        return self[:].tolist()

    def _blocks(self, places: Any) -> npt.NDArray[np.int64]:
        """The unchecked blocks that hold the values at these places."""
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            if step != 1:
                start, stop = 0, len(self)
            ends = self._block_of(np.array([start, max(start, stop - 1)]))
            found = np.arange(ends[0], ends[1] + 1)
        else:
            index = np.asarray(places)
            found = np.unique(self._block_of(np.where(index < 0, index + len(self), index)))
        found = found[found < len(self.unchecked)]  # beyond the end is the array's own error
        return found[self.unchecked[found]]

    def _block_of(self, places: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return (self.header + places.astype(np.int64) * self.dtype.itemsize) // self.block

    def _check(self, blocks: npt.NDArray[np.int64]) -> None:
        for block in blocks.tolist():
            if not self._intact(block):
                first = block * self.block
                raise DataError(
                    f"{self.path} is damaged between bytes {first:,} and {min(first + self.block, len(self.raw)):,} (its "
                    "checksum is not the manifest's); prepare the folder again"
                )
            self._check_values(block)
            self.unchecked[block] = False
            self.left -= 1

    def _intact(self, block: int) -> bool:
        if self.sums is None:
            return not self.sha256 or digest(self.path) == self.sha256
        expected = self.sums[block * DIGITS : (block + 1) * DIGITS]
        return _sum(self.raw[block * self.block : (block + 1) * self.block]) == expected

    def _check_values(self, block: int) -> None:
        start, end = ((max(at * self.block - self.header, 0)) // self.dtype.itemsize for at in (block, block + 1))
        values = self.array[start:end]
        if self.below is not None and len(values) and int(values.max()) >= self.below:
            place = start + int(values.argmax())
            raise DataError(
                f"{self.path} has the id {int(values.max())} at place {place:,}, but the vocabulary has {self.below} entries; "
                "prepare the folder again"
            )


def open_array(path: Path) -> npt.NDArray[Any]:
    """A one-dimensional array of whole numbers, mapped; anything else is an error."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:  # the last two: a header that is no Python
        raise DataError(f"{path} cannot be read ({error}); prepare the folder again") from None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{path} is not a list of whole numbers; prepare the folder again")
    return array
