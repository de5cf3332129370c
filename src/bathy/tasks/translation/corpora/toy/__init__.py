"""The built-in corpus: German and English from a small grammar of our own, any size, no network, no licence question.

`train`, `valid` and `test` share their sentence structures but no sentence; the structures of `test_structure` occur in
no other split, though each of their parts does.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

from bathy.console import progress
from bathy.files import explained, lock_folder
from bathy.tasks.pool import Pool
from bathy.tasks.translation.corpora.layout import PairFile, describe
from bathy.tasks.translation.corpora.toy.grammar import Grammar, pair

CHUNK = 2_000
"""Sentences drawn from one seed; the result does not depend on how many cores share the chunks."""
Pair = tuple[str, str]


def chunk(seed_and_number: tuple[int, int]) -> list[tuple[str, str, str, str]]:
    """The (split, structure, German, English) rows of one chunk."""
    grammar = Grammar("{}/{}".format(*seed_and_number))
    return [pair(grammar) for _ in range(CHUNK)]


def pairs(seed: int = 1, workers: int = 1) -> Generator[tuple[str, str, str, str]]:
    """Rows of the grammar without end."""
    with Pool(workers) as pool:
        for rows in pool.map(chunk, ((seed, number) for number in count())):
            yield from rows


def write_toy(folder: Path, size: int = 20_000, held_out: int = 500, seed: int = 1, workers: int = 0) -> dict[str, Any]:
    """Write the corpus: `size` training pairs, `held_out` each for valid, test and test_structure."""
    with explained(folder), lock_folder(folder):
        _write(folder, size, held_out, seed, workers)
        return describe(folder, "toy", "de", "en", seed=seed, size=size, held_out=held_out)


def _write(folder: Path, size: int, held_out: int, seed: int, workers: int) -> None:
    seen: set[str] = set()
    kept: dict[str, dict[Pair, str]] = {"valid": {}, "test": {}, "test_structure": {}}
    with ExitStack() as stack:
        train = stack.enter_context(PairFile(folder, "train", "de", "en"))
        advance = stack.enter_context(progress("writing sentences", size))
        rows = stack.enter_context(closing(pairs(seed, workers or (1 if size < 100_000 else 0))))
        for split, structure, source, target in rows:
            if split != "train":
                kept[split].setdefault((source, target), structure)
            elif train.lines < size:
                train.write(source.encode(), target.encode())
                seen.add(structure)
                advance()
            if train.lines == size and all(len(chosen(kept, name, seen, held_out)) == held_out for name in kept):
                break
    for name in kept:
        with PairFile(folder, name, "de", "en") as file:
            for source, target in chosen(kept, name, seen, held_out):
                file.write(source.encode(), target.encode())


def chosen(kept: dict[str, dict[Pair, str]], split: str, seen: set[str], number: int) -> list[Pair]:
    """The first sentences of a split whose structure training has, or has not, seen."""
    known = split != "test_structure"
    return [pair for pair, structure in kept[split].items() if (structure in seen) == known][:number]
