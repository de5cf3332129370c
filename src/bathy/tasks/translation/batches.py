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
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bathy.errors import DataError
from bathy.files import digest
from bathy.tasks.special_tokens import BOS, PAD
from bathy.tasks.translation.cutting import Rows, cut, divisible
from bathy.tasks.translation.data import Side, Split
from bathy.tasks.translation.redraw import WINDOW, Redraw
from bathy.tasks.translation.settings import DataConfig
from bathy.tasks.translation.text.codec import FILES, Codec

EXAMPLES = 256
"""Sentences from which the growth by BPE-dropout is estimated."""


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
        self.redraw = Redraw(Codec.load(self.splits[0].folder), dropout, tokens) if dropout else None
        self.epoch = self.position = 0
        self.growth = self._growth()
        self._plan: tuple[int, list[Rows]] = (-1, [])
        self._window: tuple[str, list[Batch]] = ("", [])

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
        return self.gathered(self.plan()[number]) if self.redraw is None else self._redrawn(self.redraw, number)

    def _redrawn(self, redraw: Redraw, number: int) -> Batch:
        """A batch with new subwords, one of those that are drawn together."""
        first, place = number - number % WINDOW, number % WINDOW
        name = f"{self.seed}/{self.epoch}/{first}"
        if self._window[0] != name:
            planned = [(*self._arrays(rows), rows) for rows in self.plan()[first : first + WINDOW]]
            self._window = name, [_batch(*parts) for parts in redraw.window(planned, name)]
        return self._window[1][place]

    def _growth(self) -> float:
        """How much longer sentences become by BPE-dropout; the same for every seed and rank."""
        if self.redraw is None or not self.starts[-1]:
            return 1.0
        return self.redraw.growth(*self._arrays(np.random.default_rng(0).integers(0, self.starts[-1], EXAMPLES)))

    def gathered(self, rows: Rows) -> Batch:
        """The sentences as stored, padded."""
        return _batch(*self._arrays(rows), rows)

    def _arrays(self, rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        source, target = self._padded(rows, "source", room=0), self._padded(rows, "target", room=1)
        target[:, 0] = BOS
        return source, target

    def _padded(self, rows: Rows, side: str, room: int) -> npt.NDArray[np.int64]:
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        parts = [(owner == i, getattr(split, side)) for i, split in enumerate(self.splits)]
        blocks = [(where, padded(part, rows[where] - self.starts[i])) for i, (where, part) in enumerate(parts) if where.any()]
        result = np.full((len(rows), room + max(block.shape[1] for _, block in blocks)), PAD, np.int64)
        for where, block in blocks:
            result[where, room : room + block.shape[1]] = block
        return result

    def _planned(self) -> list[Rows]:
        rng = np.random.default_rng([self.seed, self.epoch])
        rows = np.concatenate([self._share(i) for i in range(len(self.splits))])
        source, target = (
            np.concatenate([getattr(split, side).lengths for split in self.splits])[rows] for side in ("source", "target")
        )
        if self.redraw:
            longest = (np.maximum(n, np.minimum(np.ceil(n * self.growth), self.tokens)) for n in (source, target))
            source, target = (n.astype(np.int32) for n in longest)
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


def padded(side: Side, rows: Rows) -> npt.NDArray[np.int64]:
    """The sentences side by side, PAD behind the shorter ones: one flat gather from the mapped file."""
    starts = side.offsets[rows]
    lengths = side.offsets[rows + 1] - starts
    columns = np.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    places = np.where(inside, starts[:, None] + columns, starts[:, None])
    return np.where(inside, side.ids[places], PAD).astype(np.int64)


def _batch(source: npt.NDArray[np.int64], target: npt.NDArray[np.int64], rows: Rows) -> Batch:
    counts: list[Any] = [int((source != PAD).sum()), int((target[:, 1:] != PAD).sum())]
    return Batch(torch.from_numpy(source), torch.from_numpy(target), rows, *counts)
