"""Text for the runs that a forecast is fitted on: Python's own source as bytes; the toy corpus and Multi30k as words."""

from __future__ import annotations

import gzip
import os
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

from bathy.errors import ConfigError
from bathy.tasks.translation.corpora.toy import chunk

Kind = Literal["causal", "masked", "translation", "multi30k"]
PAIRS: tuple[Kind, ...] = ("translation", "multi30k")
"""Kinds of text that have a source."""
MULTI30K = "BATHY_MULTI30K"
"""Variable of the environment that names a folder with train.de.gz and train.en.gz."""
PAD, UNK, BOS, EOS, MASK = range(5)
SPECIAL = 5
BYTES = 1_000_000
"""Bytes of source that are read, and a tenth as many that are held out."""
SYMBOLS = "abcdefghijklmnopqrstuvwxyz0 \n_.,()=:'\"#"
"""Symbols of the text, besides one for all others."""
ASKED, HIDDEN = 0.2, 0.7
"""Share of the tokens that a masked model is asked for, and of those the share that is hidden from it."""


@dataclass(frozen=True)
class Example:
    """One batch: what the model reads, and what it is asked for (0: not asked)."""

    inputs: tuple[Tensor, ...]
    target: Tensor


@cache
def python_source() -> Tensor:
    """The standard library of the running Python, its modules in the order of their names, as ids of 40 symbols.

    Letters without case, digits as one, and what else is frequent; the rest is one symbol.
    """
    folder, text = Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) > 1.1 * BYTES:
            break
    table = torch.full((256,), SPECIAL)
    for byte in range(256):
        symbol = "0" if chr(byte).isdigit() else chr(byte).lower()
        table[byte] += SYMBOLS.find(symbol) + 1
    return table[torch.frombuffer(text[: int(1.1 * BYTES)], dtype=torch.uint8).long()]


@cache
def pairs_of(kind: Kind) -> tuple[Tensor, Tensor, int]:
    """(German, English, words known): 8,000 sentence pairs as word ids, padded; both languages share one vocabulary."""
    pairs, words = (_multi30k(), 2_000) if kind == "multi30k" else (_toy(), 123)
    counts = Counter(word for pair in pairs for side in pair for word in side)
    ids = {word: SPECIAL + i for i, (word, _) in enumerate(counts.most_common(words))}
    sides = []
    for side in (0, 1):
        table = torch.zeros(len(pairs), 24, dtype=torch.long)
        for row, pair in enumerate(pairs):
            own = [*[ids.get(word, UNK) for word in pair[side]][:23], EOS]
            table[row, : len(own)] = torch.tensor(own)
        sides.append(table)
    return sides[0], sides[1], len(ids) + SPECIAL


def _toy() -> list[tuple[list[str], list[str]]]:
    return [(german.split(), english.split()) for number in range(4) for _, _, german, english in chunk((1, number))]


def _multi30k() -> list[tuple[list[str], list[str]]]:
    folder = os.environ.get(MULTI30K)
    if not folder:
        raise ConfigError(f"the larger part reads Multi30k: set {MULTI30K} to a folder with train.de.gz and train.en.gz")
    sides = [gzip.decompress((Path(folder) / f"train.{side}.gz").read_bytes()).decode() for side in ("de", "en")]
    german, english = (side.lower().splitlines()[:8_000] for side in sides)
    return [(a.split(), b.split()) for a, b in zip(german, english, strict=True)]


def vocabulary(kind: Kind) -> int:
    """Number of ids that a model for this kind of text needs."""
    return pairs_of(kind)[2] if kind in PAIRS else len(SYMBOLS) + 1 + SPECIAL


def batches(kind: Kind, seed: int, rows: int = 8, length: int = 24, held_out: bool = False) -> Iterator[Example]:
    """Endless batches, drawn by seed; held-out text is never among the others."""
    generator = torch.Generator().manual_seed(2 * seed + held_out)
    while True:
        yield _pairs(kind, generator, rows, held_out) if kind in PAIRS else _text(kind, generator, rows, length, held_out)


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


def _pairs(kind: Kind, generator: torch.Generator, rows: int, held_out: bool) -> Example:
    source, target, _ = pairs_of(kind)
    first, last = (7_200, 8_000) if held_out else (0, 7_200)
    chosen = torch.randint(first, last, (rows,), generator=generator)
    source, target = source[chosen], target[chosen]
    source, target = source[:, source.any(0)], target[:, target.any(0)]
    target_in = torch.cat([torch.full((rows, 1), BOS), target[:, :-1]], 1).masked_fill(target.eq(PAD), PAD)
    return Example((source, target_in), target)


def held_out(kind: Kind) -> Example:
    """The text that every look at a run reads."""
    return next(batches(kind, 0, rows=48, held_out=True))


@cache
def unigram_entropy(kind: Kind) -> float:
    """Nats per token of guessing by frequency alone on that text: what a model reaches that no longer sees its input."""
    asked = torch.cat([example.target[example.target.ne(PAD)] for example in islice(batches(kind, 10_001), 200)])
    counts = torch.bincount(asked, minlength=vocabulary(kind)).double()
    p = (counts + 0.01) / (counts + 0.01).sum()
    target = held_out(kind).target
    return float(-p[target[target.ne(PAD)]].log().mean())
