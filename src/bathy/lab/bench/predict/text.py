"""Text for the runs that a forecast is fitted on: Python's own source as bytes, and the toy corpus as words."""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bathy.tasks.translation.corpora.toy import chunk

Kind = Literal["causal", "masked", "translation"]
PAD, UNK, BOS, EOS, MASK = range(5)
SPECIAL = 5
BYTES = 2_000_000
"""Bytes of source that are read, and a tenth as many that are held out."""
ASKED, HIDDEN = 0.2, 0.7
"""Share of the tokens that a masked model is asked for, and of those the share that is hidden from it."""


@dataclass(frozen=True)
class Example:
    """One batch: what the model reads, and what it is asked for (0: not asked)."""

    inputs: tuple[Tensor, ...]
    target: Tensor


@cache
def python_source() -> Tensor:
    """The standard library of the running Python as byte ids, its modules in the order of their names."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) > 1.1 * BYTES:
            break
    return torch.frombuffer(text[: int(1.1 * BYTES)], dtype=torch.uint8).long().clamp_max(127) + SPECIAL


@cache
def toy_pairs() -> tuple[Tensor, Tensor, int]:
    """(German, English, words known): 8,000 sentence pairs of the toy corpus as word ids, padded; both share one vocabulary."""
    pairs = [(german.split(), english.split()) for number in range(4) for _, _, german, english in chunk((1, number))]
    counts = Counter(word for pair in pairs for side in pair for word in side)
    ids = {word: SPECIAL + i for i, (word, _) in enumerate(counts.most_common(507))}
    sides = []
    for side in (0, 1):
        table = torch.zeros(len(pairs), 24, dtype=torch.long)
        for row, pair in enumerate(pairs):
            words = [*[ids.get(word, UNK) for word in pair[side]][:23], EOS]
            table[row, : len(words)] = torch.tensor(words)
        sides.append(table)
    return sides[0], sides[1], len(ids) + SPECIAL


def vocabulary(kind: Kind) -> int:
    """Number of ids that a model for this kind of text needs."""
    return toy_pairs()[2] if kind == "translation" else 128 + SPECIAL


def batches(kind: Kind, seed: int, rows: int = 12, length: int = 32, held_out: bool = False) -> Iterator[Example]:
    """Endless batches, drawn by seed; held-out text is never among the others."""
    generator = torch.Generator().manual_seed(2 * seed + held_out)
    while True:
        yield _pairs(generator, rows, held_out) if kind == "translation" else _text(kind, generator, rows, length, held_out)


def _text(kind: Kind, generator: torch.Generator, rows: int, length: int, held_out: bool) -> Example:
    text = python_source()
    first, last = (BYTES, len(text)) if held_out else (0, BYTES)
    start = torch.randint(first, last - length, (rows, 1), generator=generator)
    tokens = text[start + torch.arange(length)]
    if kind == "masked":
        asked, drawn = (torch.rand(tokens.shape, generator=generator) for _ in range(2))
        hidden = (asked < ASKED) & (drawn < HIDDEN)
        return Example((tokens.masked_fill(hidden, MASK),), tokens.masked_fill(asked >= ASKED, PAD))
    return Example((torch.cat([torch.full((rows, 1), BOS), tokens[:, :-1]], 1),), tokens)


def _pairs(generator: torch.Generator, rows: int, held_out: bool) -> Example:
    source, target, _ = toy_pairs()
    first, last = (7_200, 8_000) if held_out else (0, 7_200)
    chosen = torch.randint(first, last, (rows,), generator=generator)
    source, target = source[chosen], target[chosen]
    source, target = source[:, source.any(0)], target[:, target.any(0)]
    target_in = torch.cat([torch.full((rows, 1), BOS), target[:, :-1]], 1).masked_fill(target.eq(PAD), PAD)
    return Example((source, target_in), target)


def unigram_entropy(kind: Kind) -> float:
    """Nats per token of guessing by frequency alone: what a model reaches that no longer sees its input."""
    asked = torch.cat([example.target[example.target.ne(PAD)] for example in islice(batches(kind, 10_001), 200)])
    counts = torch.bincount(asked, minlength=vocabulary(kind)).double()
    p = (counts + 0.01) / (counts + 0.01).sum()
    held = torch.cat([example.target[example.target.ne(PAD)] for example in islice(batches(kind, 10_001, held_out=True), 50)])
    return float(-p[held].log().mean())
