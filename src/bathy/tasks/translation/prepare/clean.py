"""First half of preparing: raw lines to tokenised pairs, cleaned, in shards that survive a killed run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bathy.errors import DataError
from bathy.files import replacing, write_text
from bathy.tasks.lines import BYTE_ORDER_MARK
from bathy.tasks.translation.prepare.inputs import SHARD, Pair, shards
from bathy.tasks.translation.prepare.shards import account, finish, is_finished
from bathy.tasks.translation.settings import CleanConfig, LimitsConfig, TextConfig
from bathy.tasks.translation.text.codec import Words

KEPT = "kept"


@dataclass(frozen=True)
class Job:
    """One shard to tokenise: everything that a worker process needs."""

    config: CleanConfig
    pair: Pair
    folder: Path
    number: int
    source: bytes
    target: bytes

    @property
    def strict(self) -> bool:
        """Only training pairs may be dropped; the other splits stay aligned with their references."""
        return self.pair.split == "train"


@cache
def words_of(config: TextConfig) -> tuple[Words, Words]:
    """Both sides' word splitters, made once in each process."""
    return Words(config, config.source), Words(config, config.target)


def text_settings(config: TextConfig) -> TextConfig:
    """The part of the settings that decides what words are."""
    return TextConfig(**{name: getattr(config, name) for name in TextConfig.model_fields})


def jobs(config: CleanConfig, pair: Pair, folder: Path) -> Iterator[Job]:
    """The shards that are not finished yet."""
    missing = [number for number in range(-(-pair.lines // SHARD)) if not is_finished(folder, f"{number:06}")]
    if not missing:
        return
    for number, source, target in shards(pair):
        if number in missing:
            yield Job(config, pair, folder, number, source, target)


def clean_shard(job: Job) -> int:
    """Tokenise and clean one shard; writes the kept pairs, their hashes, and why others were dropped."""
    split_source, split_target = words_of(text_settings(job.config))
    first = job.number * SHARD + 1
    sources = decoded(job.source, job.pair.source.path, first, job.config.invalid)
    targets = decoded(job.target, job.pair.target.path, first, job.config.invalid)
    counts: Counter[str] = Counter()
    kept = []
    for source, target in zip(sources, targets, strict=True):
        if source is None or target is None:
            counts["not UTF-8"] += 1
            if job.strict:
                continue
        pair = split_source.split(source or ""), split_target.split(target or "")
        reason = reason_to_drop(pair, job.config) if job.strict else ""
        counts[reason or KEPT] += 1
        if not reason:
            kept.append(pair)
    write_shard(job, kept, counts)
    return len(sources)


def write_shard(job: Job, kept: list[tuple[str, str]], counts: Counter[str]) -> None:
    """The shard's files; the JSON comes last and says that all are whole."""
    name = f"{job.number:06}"
    files = [f"{name}.tsv"]
    write_text(job.folder / files[0], "".join(f"{source}\t{target}\n" for source, target in kept))
    if job.config.deduplicate and job.strict:
        files.append(f"{name}.npy")
        with replacing(job.folder / files[1]) as temporary, temporary.open("wb") as file:
            np.save(file, hashes(kept))
    characters = ["".join(sorted(set().union(*(pair[side] for pair in kept)))) for side in (0, 1)]
    finish(job.folder, name, files, counts=counts, characters=characters)


def hashes(pairs: list[tuple[str, str]]) -> npt.NDArray[np.uint64]:
    """128 bits a pair; equal pairs have equal hashes, and no others ever met do."""
    digests = [hashlib.blake2b(f"{a}\t{b}".encode(), digest_size=16).digest() for a, b in pairs]
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


def decoded(block: bytes, path: str, first: int, invalid: str) -> list[str | None]:
    """The block's lines without byte-order marks; an undecodable one is None, or an error that names it."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        text = block.decode()
    except UnicodeDecodeError:
        pass
    else:
        return [line.removeprefix(BYTE_ORDER_MARK) for line in text.split("\n")[: len(lines)]]
    result: list[str | None] = []
    for number, line in enumerate(lines, first):
        try:
            result.append(line.decode().removeprefix(BYTE_ORDER_MARK))
        except UnicodeDecodeError as error:
            if invalid == "stop":
                raise DataError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start + 1}); "
                    "fix it, or leave such lines out with --set prepare.invalid=skip"
                ) from None
            result.append(None)
    return result


def reason_to_drop(pair: tuple[str, str], config: CleanConfig) -> str:
    """Why a training pair is left out, or nothing."""
    if not pair[0] or not pair[1]:
        return "empty"
    if config.measure == "subwords":
        return ""
    return misfit(pair[0].count(" ") + 1, pair[1].count(" ") + 1, config)


def misfit(source: int, target: int, config: LimitsConfig) -> str:
    """Which limit a pair of lengths breaks, as Moses' clean-corpus-n counts, or nothing."""
    if min(source, target) < config.min_length:
        return "too short"
    if config.max_length and max(source, target) > config.max_length:
        return "too long"
    if config.max_ratio and max(source, target) > config.max_ratio * min(source, target):
        return "ratio"
    return ""


@dataclass(frozen=True)
class Account:
    """What a finished shard says of itself: counts by reason, and the characters of each side."""

    counts: Counter[str]
    characters: tuple[str, str]


def accounts(folder: Path, pair: Pair) -> list[Account]:
    """Every shard's account."""
    rows = (account(folder, f"{n:06}") for n in range(-(-pair.lines // SHARD)))
    return [Account(Counter(row["counts"]), tuple(row["characters"])) for row in rows]


def read_shard(folder: Path, number: int, keep: npt.NDArray[np.bool_] | None = None) -> list[tuple[str, str]]:
    """The pairs of a finished shard, those marked as repeated left out."""
    text = (folder / f"{number:06}.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.split("\n")[:-1]]
    pairs = [(source, target) for source, target in rows]
    return pairs if keep is None else [pair for pair, wanted in zip(pairs, keep, strict=True) if wanted]
