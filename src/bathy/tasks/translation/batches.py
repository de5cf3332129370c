"""Batches for training and validation: full, nearly free of padding, in random order, each sentence once.

    batches = Batches(open_splits(config.data), tokens=4096, seed=1111, rank=world.rank, size=world.size)
    batch = next(batches)              # endless; batch.source, batch.target_in, batch.target_out
    saved = batches.state_dict()       # where to resume, exactly
    for batch in ordered(Split(folder, "valid"), tokens=4096): ...

The budget bounds rows × longest on each side. Sentences are sorted by the longer of their two lengths and, among equals,
by the difference of the two, alternately up and down, so that neighbours fit each other on both sides; then cut
into batches, which are shuffled. All of it follows from seed and epoch: any batch can be made without those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bathy.errors import ConfigError, DataError
from bathy.files import digest
from bathy.tasks.special_tokens import BOS, EOS, PAD, UNK
from bathy.tasks.translation.data import Side, Split
from bathy.tasks.translation.settings import DataConfig
from bathy.tasks.translation.text.bpe import Subwords
from bathy.tasks.translation.text.codec import FILES, Codec
from bathy.tasks.translation.text.pieces import Pieces

Rows = npt.NDArray[np.int64]
GROWTH = 2.5
"""BPE-dropout makes sentences about 1 + 2.5 p times longer; batches are planned for that."""


@dataclass(frozen=True)
class Batch:
    """Padded sentences; a source row ends with EOS, a target row begins with BOS and ends with EOS."""

    source: Tensor
    target: Tensor
    rows: Rows
    """Which sentences these are, by their place in the data."""
    source_tokens: int
    target_tokens: int
    """Tokens to predict: the target without BOS and padding."""

    @property
    def target_in(self) -> Tensor:
        """What the decoder reads."""
        return self.target[:, :-1]

    @property
    def target_out(self) -> Tensor:
        """What it should say next; PAD where nothing is asked."""
        return self.target[:, 1:]

    @property
    def efficiency(self) -> float:
        """Real tokens among all, both sides counted."""
        return (self.source_tokens + self.target_tokens) / (self.source.numel() + self.target_out.numel())

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        source, target = (tensor.to(device, non_blocking=True) for tensor in (self.source, self.target))
        return Batch(source, target, self.rows, self.source_tokens, self.target_tokens)


def open_splits(config: DataConfig, split: str = "train") -> list[Split]:
    """The same split of every data folder; they must share one vocabulary."""
    opened = [Split(folder, split) for folder in config.folders]
    first, *others = config.folders
    for other in others:
        if tokenizers(other) != tokenizers(first):
            raise DataError(
                f"{other} and {first} have different tokenizers; folders that are mixed must share one (prepare.codes)"
            )
    return opened


def tokenizers(folder: Path) -> list[str]:
    """The checksums of a folder's tokenizer files."""
    return [digest(folder / name) for names in FILES for name in names if (folder / name).exists()]


class Batches:
    """An endless stream of training batches for one rank; `epoch` and `position` say where it is."""

    def __init__(
        self,
        splits: Sequence[Split],
        tokens: int,
        seed: int = 1,
        rank: int = 0,
        size: int = 1,
        weights: Sequence[float] = (),
        dropout: float = 0.0,
    ) -> None:
        self.splits, self.tokens, self.seed, self.rank, self.size = list(splits), tokens, seed, rank, size
        self.weights = tuple(weights) or (1.0,) * len(self.splits)
        self.starts = np.cumsum([0, *map(len, self.splits)])
        self.dropout = dropout
        self.codec = Codec.load(self.splits[0].folder) if dropout else None
        if self.codec and not all(subwords.merges for subwords in self.codec.subwords.values()):
            raise ConfigError("data.bpe_dropout needs merges; set it to 0, or prepare with prepare.model_type = 'bpe'")
        self.epoch = self.position = 0
        self._plan: tuple[int, list[Rows]] = (-1, [])

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.position >= len(self):
            self.epoch, self.position = self.epoch + 1, 0
        self.position += 1
        return self.batch(self.position - 1)

    def __len__(self) -> int:
        """Batches of the current epoch on this rank; all ranks have as many."""
        return len(self.plan()) // self.size

    @property
    def epochs(self) -> int:
        """Passes over the data that are complete."""
        return self.epoch + (self.position >= len(self))

    def state_dict(self) -> dict[str, int]:
        """Where the stream is: enough to resume as if it had never stopped."""
        return {"epoch": self.epoch, "position": self.position, "size": self.size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume from a saved place; on another number of ranks, from the nearest place at or before it."""
        if (state["epoch"], state["seed"]) != (self.epoch, self.seed):
            self._plan = (-1, [])
        self.epoch, self.seed = state["epoch"], state["seed"]
        self.position = state["position"] * state["size"] // self.size

    def plan(self) -> list[Rows]:
        """The rows of every batch of the current epoch, all ranks', in order of use."""
        if self._plan[0] != self.epoch:
            self._plan = (self.epoch, self._planned())
        return self._plan[1]

    def batch(self, position: int) -> Batch:
        """This rank's batch at a position of the current epoch."""
        number = position * self.size + self.rank
        rows = self.plan()[number]
        if self.codec is None:
            return self.gathered(rows)
        return self._with_dropout(rows, Random(f"{self.seed}/{self.epoch}/{number}"), self.codec)

    def gathered(self, rows: Rows) -> Batch:
        """The sentences as stored, padded."""
        source = self._padded(rows, "source", room=0)
        target = self._padded(rows, "target", room=1)
        target[:, 0] = BOS
        return _batch(source, target, rows)

    def _padded(self, rows: Rows, side: str, room: int) -> npt.NDArray[np.int64]:
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        parts = [(owner == i, getattr(split, side)) for i, split in enumerate(self.splits)]
        blocks = [(where, padded(part, rows[where] - self.starts[i])) for i, (where, part) in enumerate(parts) if where.any()]
        result = np.full((len(rows), room + max(block.shape[1] for _, block in blocks)), PAD, np.int64)
        for where, block in blocks:
            result[where, room : room + block.shape[1]] = block
        return result

    def _with_dropout(self, rows: Rows, random: Random, codec: Codec) -> Batch:
        """The sentences encoded anew with BPE-dropout; one that would break the budget keeps its usual subwords."""
        plain = self.gathered(rows)
        limit = self.tokens // len(rows)
        subwords = codec.subwords
        sources = [redrawn(ids, subwords["source"], self.dropout, random, limit) for ids in plain.source.numpy()]
        targets = [redrawn(ids, subwords["target"], self.dropout, random, limit) for ids in plain.target.numpy()]
        return _batch(collated(sources), collated([[BOS, *ids] for ids in targets]), rows)

    def _planned(self) -> list[Rows]:
        rng = np.random.default_rng([self.seed, self.epoch])
        rows = np.concatenate([self._share(i) for i in range(len(self.splits))])
        source, target = (
            np.concatenate([getattr(split, side).lengths for split in self.splits])[rows] for side in ("source", "target")
        )
        if self.dropout:
            source, target = (np.minimum(np.ceil(n * (1 + GROWTH * self.dropout)).astype(np.int32), np.maximum(n, self.tokens))
                              for n in (source, target))  # fmt: skip
        self._check(rows, np.maximum(source, target))
        batches = [rows[chosen] for chosen in cut(source, target, self.tokens, rng)]
        batches = divisible(batches, self.size)
        return [batches[i] for i in rng.permutation(len(batches))]

    def _share(self, number: int) -> Rows:
        """A folder's sentences for this epoch: as many copies as its weight, a part of a copy taken in turn."""
        length, (copies, part) = len(self.splits[number]), divmod(self.weights[number], 1)
        order = np.random.default_rng([self.seed, number]).permutation(length) if part else np.empty(0, np.int64)
        begin, end = (int(e * part * length) for e in (self.epoch, self.epoch + 1))
        chosen = [np.arange(length)] * int(copies) + [order[np.arange(begin, end) % length] if part else order]
        return np.concatenate(chosen) + self.starts[number]

    def _check(self, rows: Rows, lengths: npt.NDArray[np.int32]) -> None:
        if not len(rows):
            raise DataError(f"{self.splits[0].folder}: {self.splits[0].name} has no sentence")
        longest = int(lengths.max())
        if longest > self.tokens:
            raise DataError(
                f"a sentence has {longest} tokens, more than the budget of {self.tokens} a batch; raise the budget, "
                f"or prepare with --set prepare.longest={self.tokens}"
            )
        if len(rows) < self.size:
            raise DataError(f"{len(rows)} sentences cannot be shared among {self.size} ranks")


def ordered(split: Split, tokens: int, rank: int = 0, size: int = 1) -> Iterator[Batch]:
    """Each sentence of a split once, long ones first, in the same batches every time; `batch.rows` are their places."""
    stream = Batches([split], tokens)
    source, target = split.source.lengths, split.target.lengths
    stream._check(np.arange(size), np.maximum(source, target))
    for chosen in cut(source, target, tokens, None)[::-1][rank::size]:
        yield stream.gathered(chosen)


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


def padded(side: Side, rows: Rows) -> npt.NDArray[np.int64]:
    """The sentences side by side, PAD behind the shorter ones: one flat gather from the mapped file."""
    starts = side.offsets[rows]
    lengths = side.offsets[rows + 1] - starts
    columns = np.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    places = np.where(inside, starts[:, None] + columns, starts[:, None])
    return np.where(inside, side.ids[places], PAD).astype(np.int64)


def collated(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Lists of ids as one padded array."""
    result = np.full((len(rows), max(map(len, rows))), PAD, np.int64)
    for row, ids in zip(result, rows, strict=True):
        row[: len(ids)] = ids
    return result


def redrawn(ids: npt.NDArray[np.int64], subwords: Subwords | Pieces, chance: float, random: Random, limit: int) -> list[int]:
    """A sentence's ids with other subwords for the same words; unchanged if it has unknown parts or grows too long."""
    plain = [int(i) for i in ids if i not in (PAD, BOS)]
    if UNK in plain:
        return plain
    drawn = [*subwords.encode_with_dropout(subwords.decode(plain), chance, random), EOS]
    return drawn if len(drawn) <= limit else plain


def _batch(source: npt.NDArray[np.int64], target: npt.NDArray[np.int64], rows: Rows) -> Batch:
    counts: list[Any] = [int((source != PAD).sum()), int((target[:, 1:] != PAD).sum())]
    return Batch(torch.from_numpy(source), torch.from_numpy(target), rows, *counts)
