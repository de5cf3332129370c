"""The teacher's translations of a text, shard by shard: each is written once, whole, with the checksum of its sources.

A shard's result depends on its lines, the teacher and the search alone, so that any number of processes, killed at any time,
write the same files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bathy.console import progress
from bathy.errors import DataError
from bathy.files import read_json, write_json
from bathy.tasks.lines import read_lines
from bathy.tasks.pool import Pool

if TYPE_CHECKING:
    from bathy.tasks.translation.search import Decode
    from bathy.tasks.translation.translate import Translator


@dataclass(frozen=True)
class Shard:
    """Lines to translate, by whom, and where to."""

    path: Path
    lines: tuple[str, ...]
    teachers: tuple[Path, ...]
    decode: Decode
    batch: int

    @property
    def digest(self) -> str:
        """SHA-256 of the lines: what ties translations to their sources."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


@dataclass(frozen=True)
class Taught:
    """A source line and its translations by the teacher, best first, with their scores."""

    source: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    cut: bool = False
    """Whether the line was longer than the teacher reads, so that its end is not translated."""


def shards(source: Path, folder: Path, teachers: tuple[Path, ...], decode: Decode, size: int, batch: int) -> Iterator[Shard]:
    """The text in shards of `size` lines."""
    stream = read_lines(source)
    number = 0
    while lines := tuple(islice(stream, size)):
        yield Shard(folder / f"{number:05d}.json", lines, teachers, decode, batch)
        number += 1


def translate_all(jobs: Sequence[Shard], workers: int) -> None:
    """Translate the shards that are not there yet, on so many processes."""
    missing = [job for job in jobs if not is_done(job)]
    pool = Pool(min(workers or Pool().workers, max(1, len(missing))))
    total = sum(len(job.lines) for job in missing)
    with pool, progress("the teacher translates", total) as advance:
        for lines in pool.map(translate_shard, missing):
            advance(lines)


def translate_shard(job: Shard) -> int:
    """Translate one shard on one thread, wherever it runs, and write it; returns its lines."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = _translator(job.teachers, job.decode, job.batch).translate(job.lines)
    finally:
        torch.set_num_threads(threads)
    rows = [{"texts": one.texts, "scores": one.scores, "cut": one.cut > 0} for one in found]
    write_json(job.path, {"sources": job.digest, "rows": rows}, seal=True)
    return len(job.lines)


@lru_cache(maxsize=1)
def _translator(teachers: tuple[Path, ...], decode: Decode, batch: int) -> Translator:
    from bathy.tasks.translation.translate import Translator

    return Translator.load(teachers, decode, batch=batch)


def is_done(job: Shard) -> bool:
    """Whether the shard's file is there, whole, and of these lines."""
    if not job.path.exists():
        return False
    try:
        read_shard(job)
    except DataError:
        return False
    return True


def read_shard(job: Shard) -> list[Taught]:
    """A shard's translations beside their sources; what does not belong to these lines is refused."""
    value = read_json(job.path, advice="remove it and run the same command")
    rows = value.get("rows")
    if value.get("sources") != job.digest or not isinstance(rows, list) or len(rows) != len(job.lines):
        raise DataError(f"{job.path} does not belong to these sources; remove it and run the same command")
    return [_taught(line, **row) for line, row in zip(job.lines, rows, strict=True)]


def _taught(source: str, texts: Sequence[str], scores: Sequence[float], cut: bool = False) -> Taught:
    return Taught(source, tuple(texts), tuple(scores), cut)


def fingerprint(teachers: Sequence[Path], decode: Decode, size: int, batch: int) -> str:
    """A short hash of all that a translation depends on besides its lines."""
    from bathy.files import digest
    from bathy.train.averaging import Choice, choose
    from bathy.train.checkpoint import WEIGHTS

    choices = [Choice([folder]) if (folder / WEIGHTS).exists() else choose(folder, decode.average) for folder in teachers]
    weights = [digest(place / choice.file) for choice in choices for place in choice.folders]
    parts = [weights, decode.model_dump(), size, batch]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
