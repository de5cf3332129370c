"""Compare an exported model with ours: the same sentences through both, every difference counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bathy.core.transformer import Transformer
from bathy.tasks.special_tokens import EOS
from bathy.tasks.translation.search import Decode, Hypothesis, rate, search
from bathy.tasks.translation.translate import batches, padded

Rows = Sequence[Sequence[int]]
TIE = 1e-4
"""Scores nearer than this are equal: another order of additions may decide between them."""


class Engine(Protocol):
    """An exported folder, opened by the program it is for. Rows are token ids; source rows end with EOS."""

    measure: str
    """What `distance` compares."""

    def translate(self, source: Rows, decode: Decode) -> list[list[int]]:
        """The best translation of each row, without special tokens."""

    def distance(self, model: Transformer, source: Rows, target: Rows) -> float:
        """The largest difference from `model` in what both compute for given translations."""


@dataclass(frozen=True)
class Comparison:
    """How many translations of one search agree."""

    beam: int
    sentences: int
    identical: int
    ties: int
    """Translations that differ but that our model finds equally good."""
    cut: int
    """Translations that differ because one of them reached the length limit, where engines end differently."""
    distance: float
    ours: list[list[int]] = field(repr=False)
    theirs: list[list[int]] = field(repr=False)

    @property
    def different(self) -> int:
        """Translations that differ for no such reason."""
        return self.sentences - self.identical - self.ties - self.cut


@torch.inference_mode()
def compare(
    model: Transformer, engine: Engine, source: Rows, decode: Decode, beams: Sequence[int] = (1, 5)
) -> list[Comparison]:
    """Our translations of `source` against the engine's, for each beam."""
    return [_compare(model, engine, source, decode.model_copy(update={"beam": beam, "n_best": 1})) for beam in beams]


def _compare(model: Transformer, engine: Engine, source: Rows, decode: Decode) -> Comparison:
    ours: dict[int, Hypothesis] = {}
    theirs: dict[int, list[int]] = {}
    for batch in batches([len(row) for row in source], 64, 8192):
        rows = [source[i] for i in batch]
        ours |= zip(batch, (found[0] for found in search([model], padded(rows), decode)), strict=True)
        theirs |= zip(batch, engine.translate(rows, decode), strict=True)
    differing = [i for i in ours if list(ours[i].tokens) != theirs[i]]
    limits = decode.limits(padded(source), model.config.max_length).tolist()
    cut = [i for i in differing if max(len(theirs[i]), len(ours[i].tokens)) + 1 >= limits[i]]
    ties = [i for i in differing if i not in cut and _rated(model, source[i], theirs[i], decode) > ours[i].score - TIE]
    mine, others = ([list(row) for _, row in sorted(part.items())] for part in ({i: ours[i].tokens for i in ours}, theirs))
    far = engine.distance(model, source, [[*row, EOS] for row in mine])
    counts = len(source), len(source) - len(differing), len(ties), len(cut)
    return Comparison(decode.beam, *counts, far, mine, others)


def _rated(model: Transformer, source: Sequence[int], tokens: list[int], decode: Decode) -> float:
    return float(rate([model], padded([source]), padded([[*tokens, EOS]]), decode))


def paired(source: Rows, target: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Both sides in batches of similar length."""
    for batch in batches([len(row) for row in source], 64, 8192):
        yield [source[i] for i in batch], [target[i] for i in batch]
