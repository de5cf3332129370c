"""The raw files of a corpus: counted, fingerprinted, and checked against each other before any work begins."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from lzma import LZMAError
from pathlib import Path

from typing_extensions import TypedDict

from bathy.errors import DataError
from bathy.files import read_json, write_json
from bathy.tasks.lines import opened
from bathy.tasks.pool import cores
from bathy.tasks.translation.corpora.layout import splits

SHARD = 10_000
"""Line pairs that are worked on together; what is finished of them survives a killed run."""


@dataclass(frozen=True)
class Input:
    """A raw file: its lines, and a checksum that tells whether it changed."""

    path: str
    size: int
    modified: int
    lines: int
    sha256: str


class Memory(TypedDict):
    """inputs.json: the raw files as an earlier run saw them."""

    inputs: list[Input]


@dataclass(frozen=True)
class Pair:
    """The two raw files of one split."""

    split: str
    source: Input
    target: Input

    @property
    def lines(self) -> int:
        return self.source.lines


def inspect(path: Path) -> Input:
    """Count and fingerprint a file (the text, whatever its compression)."""
    stat = path.stat()
    lines, last, digest = 0, b"\n", hashlib.sha256()
    try:
        with opened(path) as file:
            while block := file.read(1 << 20):
                lines += block.count(b"\n")
                last = block[-1:]
                digest.update(block)
    except (EOFError, OSError, zlib.error, LZMAError) as error:
        raise DataError(f"{path} is damaged or not what its ending says: {error}") from None
    return Input(str(path), stat.st_size, stat.st_mtime_ns, lines + (last != b"\n"), digest.hexdigest())


def inspect_all(folder: Path, source: str, target: str, memory: Path, workers: int) -> list[Pair]:
    """Every split of a raw folder, checked; files that did not change since the last time are not read again."""
    found = splits(folder, source, target)
    known = _remembered(memory)
    fresh = [path for both in found.values() for path in both if not _unchanged(path, known)]
    with ThreadPoolExecutor(workers or cores()) as threads:  # decompressing and hashing leave Python's lock
        known |= {item.path: item for item in threads.map(inspect, fresh)}
    pairs = [Pair(split, known[str(a)], known[str(b)]) for split, (a, b) in found.items()]
    for pair in pairs:
        check(pair)
    if fresh or not memory.exists():
        write_json(memory, {"inputs": [vars(item) for pair in pairs for item in (pair.source, pair.target)]}, seal=True)
    return pairs


def check(pair: Pair) -> None:
    """An error for an empty file or unequal line counts."""
    for item in (pair.source, pair.target):
        if not item.lines:
            raise DataError(f"{item.path} is empty")
    short, long = sorted((pair.source, pair.target), key=lambda item: item.lines)
    if short.lines != long.lines:
        raise DataError(
            f"{short.path} ends at line {short.lines:,}, but {long.path} goes on to line {long.lines:,}; "
            "both sides need one line for each other's"
        )


def shards(pair: Pair) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, source bytes, target bytes) of every SHARD lines."""
    with opened(Path(pair.source.path)) as source, opened(Path(pair.target.path)) as target:
        for number in range(-(-pair.lines // SHARD)):
            yield number, b"".join(islice(source, SHARD)), b"".join(islice(target, SHARD))


def _remembered(memory: Path) -> dict[str, Input]:
    """What an earlier run saw; a damaged memory is as good as none."""
    try:
        return {item.path: item for item in read_json(memory, Memory)["inputs"]}
    except DataError:
        return {}


def _unchanged(path: Path, known: dict[str, Input]) -> bool:
    stat, old = path.stat(), known.get(str(path))
    return old is not None and (old.size, old.modified) == (stat.st_size, stat.st_mtime_ns)
