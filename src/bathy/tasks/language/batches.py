"""Batches of text: windows of a fixed length, drawn from anywhere or packed with whole documents.

    batches = make_batches(stream, windows="random", shape=(12, 64), seed=1111, rank=world.rank, size=world.size)
    batch = next(batches)              # endless; batch.tokens and batch.targets, b × t
    saved = batches.state_dict()       # where to resume, exactly
    for batch in in_order(open_stream(config.data, "valid"), shape=(12, 64)): ...

Everything in a batch follows from the seed and the batch's number among those of all ranks.
"""

# b window, t token

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bathy.errors import DataError
from bathy.tasks.language.data import TextStream

Rows = npt.NDArray[np.int64]
MASKED, RANDOM = 0.8, 0.1
"""Shares of the hidden tokens that become the mask token, and a random one (Devlin et al., 2019)."""


@dataclass(frozen=True)
class Batch:
    """Windows of text."""

    tokens: Tensor
    """What the model reads, b × t."""
    targets: Tensor
    """What it should say: the next token, or, in a masked model, the token that stood there."""
    chosen: Tensor | None = None
    """Where a masked model is asked (b × t); None: everywhere."""
    documents: Tensor | None = None
    """The number of each token's document in its window, where tokens see their own document only."""

    @property
    def count(self) -> int:
        """Tokens to predict."""
        return self.targets.numel() if self.chosen is None else int(self.chosen.sum())

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        parts = {name: part.to(device, non_blocking=True) for name, part in vars(self).items() if part is not None}
        return replace(self, **parts)


@dataclass(frozen=True)
class Hiding:
    """How tokens are hidden from a masked model."""

    share: float
    mask: int
    vocab: int
    end: int

    def __call__(self, batch: Batch, seed: list[int]) -> Batch:
        """The batch with tokens hidden; at least one."""
        rng = np.random.default_rng(seed)
        tokens = batch.targets.clone()
        chosen = torch.from_numpy(rng.random(tokens.shape) < self.share)
        if not chosen.any():
            chosen.view(-1)[int(rng.integers(tokens.numel()))] = True
        kind = torch.from_numpy(rng.random(tokens.shape))
        tokens[chosen & (kind < MASKED)] = self.mask
        other = chosen & (kind >= MASKED) & (kind < MASKED + RANDOM)
        tokens[other] = torch.from_numpy(rng.integers(0, self.vocab, int(other.sum())))
        documents = None if batch.documents is None else batch.targets.eq(self.end).cumsum(1)
        return replace(batch, tokens=tokens, chosen=chosen, documents=documents)


class Windows:
    """An endless stream of one rank's batches; `position` says where it is."""

    def __init__(
        self, stream: TextStream, shape: tuple[int, int], seed: int, rank: int, size: int, hiding: Hiding | None
    ) -> None:
        self.stream, self.seed, self.rank, self.size, self.hiding = stream, seed, rank, size, hiding
        self.rows, self.length = shape
        self.position = 0
        """Batches given so far, on each rank."""
        check_length(stream, self.length)

    @property
    def per_epoch(self) -> int:
        """Batches, all ranks' counted, that have as many tokens as the text."""
        return max(1, len(self.stream) // (self.rows * self.length))

    @property
    def epochs(self) -> int:
        """Passes over the text that are complete, or as many tokens."""
        return self.position * self.size // self.per_epoch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        number = self.position * self.size + self.rank
        self.position += 1
        batch = self.batch(number)
        return self.hiding(batch, [self.seed, number, 1]) if self.hiding else batch

    def batch(self, number: int) -> Batch:
        """The batch of this number."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        """Where the stream is: enough to resume as if it had never stopped."""
        return {"position": self.position, "size": self.size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume from a saved place; on another number of ranks, from the nearest place at or before it."""
        self.seed = state["seed"]
        self.position = state["position"] * state["size"] // self.size


class RandomWindows(Windows):
    """Windows from random places of the text, as nanoGPT draws them."""

    def batch(self, number: int) -> Batch:
        starts = np.random.default_rng([self.seed, number]).integers(0, len(self.stream) - self.length + 1, self.rows)
        return as_batch(self.stream.ids[starts[:, None] + np.arange(self.length + 1)])


class PackedWindows(Windows):
    """Documents in random order, each once per epoch, end to end, cut into windows; what does not fill a batch waits."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if (need := self.rows * self.length) > len(self.stream):
            raise DataError(
                f"a batch has {need:,} tokens, but {self.stream.folder}'s {self.stream.name} text {len(self.stream):,}; "
                "lower train.tokens, prepare more text, or set data.windows = 'random'"
            )

    _order: tuple[int, Rows, Rows] = -1, np.empty(0, np.int64), np.empty(0, np.int64)

    def batch(self, number: int) -> Batch:
        epoch, place = divmod(number, self.per_epoch)
        first = (place * self.rows + np.arange(self.rows)) * self.length
        return as_batch(self.stream.ids[self._places(epoch, first[:, None] + np.arange(self.length + 1))], self._end)

    @property
    def _end(self) -> int:
        assert self.stream.codec
        return self.stream.codec.end

    def _places(self, epoch: int, places: Rows) -> Rows:
        """Where in the text the tokens at these places of an epoch's order stand."""
        if self._order[0] != epoch:
            starts = self.stream.starts
            order = np.random.default_rng([self.seed, epoch, 2]).permutation(len(starts) - 1)
            ends = np.cumsum(np.diff(starts)[order])
            self._order = epoch, ends, starts[order + 1]
        _, ends, stops = self._order
        owner = np.minimum(np.searchsorted(ends, places, side="right"), len(ends) - 1)
        return stops[owner] - (ends[owner] - places)


WINDOWS: dict[str, type[Windows]] = {"random": RandomWindows, "packed": PackedWindows}


def as_batch(ids: npt.NDArray[Any], end: int | None = None) -> Batch:
    """Windows of t + 1 ids as a batch; with `end`, the token that begins a document, each sees its own document only."""
    ids_bt = torch.from_numpy(ids.astype(np.int64))
    documents = None if end is None else ids_bt[:, :-1].eq(end).cumsum(1)
    return Batch(ids_bt[:, :-1].contiguous(), ids_bt[:, 1:].contiguous(), documents=documents)


class Text(Protocol):
    """A stream of ids, all but the first to be predicted."""

    @property
    def ids(self) -> Any: ...
    def __len__(self) -> int: ...


def in_order(
    stream: Text,
    shape: tuple[int, int],
    rank: int = 0,
    size: int = 1,
    end: int | None = None,
    hiding: Hiding | None = None,
) -> Iterator[Batch]:
    """Each token of a stream once, in windows from its beginning on; the last, shorter one is a batch of its own."""
    rows, length = shape
    whole, rest = divmod(len(stream), length)
    jobs = [(first, min(rows, whole - first), length) for first in range(0, whole, rows)] + ([(whole, 1, rest)] if rest else [])
    for number, (first, count, wide) in list(enumerate(jobs))[rank::size]:
        places = ((first + np.arange(count)) * length)[:, None] + np.arange(wide + 1)
        batch = as_batch(stream.ids[places], end)
        yield hiding(batch, [0, number]) if hiding else batch


def check_length(stream: TextStream, length: int) -> None:
    """Refuse a text that does not fill one window."""
    if len(stream) < length:
        raise DataError(
            f"model.context is {length}, but {stream.folder}'s {stream.name} text has {len(stream):,} tokens; shorten the "
            "context, or prepare more text"
        )
