"""Second half of preparing: tokenised shards to id shards, and these to the files of a data folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bathy.files import digest, replacing
from bathy.tasks.blocks import block_sums
from bathy.tasks.special_tokens import EOS, UNK
from bathy.tasks.translation.prepare.clean import KEPT, misfit, read_shard
from bathy.tasks.translation.prepare.shards import account, finish
from bathy.tasks.translation.settings import EncodeConfig
from bathy.tasks.translation.text.bpe import Subwords
from bathy.tasks.translation.text.codec import Codec
from bathy.tasks.translation.text.pieces import Pieces

SIDES = ("source", "target")


@dataclass(frozen=True)
class Job:
    """One shard to encode."""

    config: EncodeConfig
    split: str
    texts: Path
    ids: Path
    codec: Path
    number: int
    first: int
    """How many pairs of earlier shards are kept: every valid_every-th of all becomes a validation pair."""
    begin: int
    """Place of this shard's first pair in keep.npy."""
    count: int


@cache
def subwords_of(folder: Path, stamp: str) -> tuple[Subwords | Pieces, Subwords | Pieces]:
    """Both sides' subwords, loaded once in each process; `stamp` tells a changed file from the old."""
    codec = Codec.load(folder)
    return codec.subwords["source"], codec.subwords["target"]


def encode_shard(job: Job) -> int:
    """Encode one shard, measure its pairs, and write its ids and lengths."""
    keep = None
    if (job.texts / "keep.npy").exists():
        keep = np.load(job.texts / "keep.npy", mmap_mode="r")[job.begin : job.begin + job.count]
    source, target = subwords_of(job.codec, job.ids.name)
    rows: dict[str, list[list[int]]] = {f"{split}.{side}": [] for split in (job.split, "valid") for side in SIDES}
    counts: Counter[str] = Counter()
    for place, (a, b) in enumerate(read_shard(job.texts, job.number, keep), job.first + 1):
        every = job.config.valid_every if job.split == "train" else 0
        split = "valid" if every and place % every == 0 else job.split
        pair = fitted([*source.encode(a), EOS], [*target.encode(b), EOS], job.config, split, counts)
        for side, ids in zip(SIDES, pair, strict=False):
            rows[f"{split}.{side}"].append(ids)
    write_ids(job, rows, counts)
    return job.count


def fitted(a: list[int], b: list[int], config: EncodeConfig, split: str, counts: Counter[str]) -> tuple[list[int], ...]:
    """The pair, cut or dropped if too long, counted by what became of it."""
    training = split == "train"
    reason = misfit(len(a) - 1, len(b) - 1, config) if config.measure == "subwords" and training else ""
    long = max(len(a), len(b)) > config.longest
    if not reason and long and training and config.overlong == "drop":
        reason = "over longest"
    if reason:
        counts[reason] += 1
        return ()
    if long:
        counts[f"{split} cut"] += 1
        a, b = ([*ids[: config.longest - 1], EOS] if len(ids) > config.longest else ids for ids in (a, b))
    return a, b


def write_ids(job: Job, rows: dict[str, list[list[int]]], counts: Counter[str]) -> None:
    """The shard's arrays, then its counts, which say that all is whole."""
    arrays: dict[str, Any] = {}
    for name, lists in rows.items():
        arrays[f"{name}.ids"] = np.fromiter(chain.from_iterable(lists), dtype=np.uint32)
        arrays[f"{name}.lengths"] = np.fromiter(map(len, lists), dtype=np.int64)
    stem = f"{job.number:06}"
    with replacing(job.ids / f"{stem}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    sizes = {name: [len(arrays[f"{name}.lengths"]), len(arrays[f"{name}.ids"])] for name in rows}
    finish(job.ids, stem, [f"{stem}.npz"], counts=counts, sizes=sizes)


def reports(folder: Path, number: int) -> list[dict[str, Any]]:
    """What each encoded shard says of itself."""
    return [account(folder, f"{n:06}") for n in range(number)]


def assemble(folder: Path, shards: Path, number: int, split: str, vocab: int) -> dict[str, Any]:
    """Write a split's four files from its shards, and return what the manifest says of them."""
    facts: dict[str, Any] = {}
    for side in SIDES:
        name = f"{split}.{side}"
        sizes = [report["sizes"].get(name, [0, 0]) for report in reports(shards, number)]
        sentences, tokens = (sum(size[i] for size in sizes) for i in (0, 1))
        paths = folder / f"{name}.ids.npy", folder / f"{name}.offsets.npy"
        with replacing(paths[0]) as ids, replacing(paths[1]) as offsets:
            facts[side] = copied(ids, offsets, arrays(shards, number, name), sentences, tokens, vocab)
        facts[side]["sha256"] = {path.name: digest(path) for path in paths}
        facts[side]["blocks"] = {path.name: block_sums(path) for path in paths}
    return {"sentences": sentences, **facts}


def arrays(shards: Path, number: int, name: str) -> Iterator[tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]:
    """(ids, lengths) of each shard in order."""
    for n in range(number):
        with np.load(shards / f"{n:06}.npz", allow_pickle=False) as stored:
            if f"{name}.ids" in stored:
                yield stored[f"{name}.ids"], stored[f"{name}.lengths"]


def copied(
    ids_path: Path, offsets_path: Path, parts: Iterator[tuple[Any, Any]], sentences: int, tokens: int, vocab: int
) -> dict[str, Any]:
    """Stream the shards into two files; lengths and unknown tokens are counted on the way."""
    kind = np.dtype(np.uint16 if vocab <= 1 << 16 else np.uint32)
    token = unknown = 0
    histogram = np.zeros(1, np.int64)
    with started(ids_path, kind, tokens) as ids, started(offsets_path, np.dtype(np.int64), sentences + 1) as offsets:
        for values, lengths in parts:
            ids.write(values.astype(kind).tobytes())
            offsets.write((token + np.cumsum(lengths) - lengths).tobytes())
            token, unknown = token + len(values), unknown + int((values == UNK).sum())
            seen = np.bincount(lengths, minlength=len(histogram))
            seen[: len(histogram)] += histogram
            histogram = seen
        offsets.write(np.int64(tokens).tobytes())
    return {"tokens": tokens, "unknown": unknown, "unknown_rate": unknown / max(tokens, 1), **quantiles(histogram)}


def started(path: Path, kind: np.dtype[Any], length: int) -> BinaryIO:
    """An .npy file of one dimension whose values are still to be written; a memory map would count as memory in use."""
    file = path.open("wb")
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def quantiles(histogram: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Mean, median, 99th percentile and longest, from counts by length."""
    total = int(histogram.sum())
    if not total:
        return {"mean": 0.0, "median": 0, "p99": 0, "longest": 0}
    cumulative = np.cumsum(histogram)
    at = [int(np.searchsorted(cumulative, share * total)) for share in (0.5, 0.99)]
    mean = float((np.arange(len(histogram)) * histogram).sum() / total)
    return {"mean": round(mean, 2), "median": at[0], "p99": at[1], "longest": int(np.flatnonzero(histogram)[-1])}


__all__ = ["KEPT", "Job", "assemble", "encode_shard", "reports"]
