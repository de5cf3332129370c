"""BPE-dropout (Provilkov et al., 2020): sentences with new subwords, drawn before their batches are cut.

Batches are planned for the lengths that sentences have on average after drawing. Then WINDOW planned batches at a time are
drawn and cut anew into as many, by the lengths that came out. A window follows from its numbers alone, so that runs resume
exactly, and it is the same for every rank: each draws all of it. So that this costs little, a word has VARIANTS drawn
segmentations, remembered once they were needed, and takes one of them at random each time it occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from bathy.errors import ConfigError
from bathy.tasks.special_tokens import BOS, EOS, UNK
from bathy.tasks.translation.cutting import Rows, collate, cut, divisible
from bathy.tasks.translation.text.bpe import Subwords
from bathy.tasks.translation.text.codec import Codec
from bathy.tasks.translation.text.pieces import Pieces

WINDOW = 256
"""Batches that are drawn together: sentences of like lengths on both sides are found only among many."""
VARIANTS = 64
REMEMBERED = 1 << 19
"""Segmentations that are kept; memory stays constant on any corpus."""
SPARE = 1.01
"""Room for windows whose sentences turn out longer than on average."""
Ids = npt.NDArray[np.int64]
Planned = tuple[Ids, Ids, Rows]
"""A batch: padded source and target, and which sentences these are."""
Pair = tuple[list[int], list[int]]
"""A sentence's ids on both sides, EOS included."""


class Redraw:
    """Draws subwords anew, each merge skipped with a chance."""

    def __init__(self, codec: Codec, chance: float, tokens: int) -> None:
        """`tokens` is the budget of a batch."""
        if not all(subwords.merges for subwords in codec.subwords.values()):
            raise ConfigError("data.bpe_dropout needs merges; set it to 0, or prepare with prepare.model_type = 'bpe'")
        self.source, self.target = (Words(codec.subwords[side], chance) for side in ("source", "target"))
        self.tokens = tokens

    def growth(self, source: Ids, target: Ids) -> float:
        """How many times longer sentences become, the longer side of each counted; from padded examples."""
        plain = np.maximum((source > BOS).sum(1), (target > BOS).sum(1))
        drawn = [max(map(len, pair)) for pair in self._pairs(source, target, Random(0), self.tokens)]
        return SPARE * sum(drawn) / int(plain.sum())

    def window(self, planned: Sequence[Planned], name: str) -> list[Planned]:
        """Planned batches with new subwords, cut anew into as many.

        Where sentences grew too long for that, the batches stay as planned; a sentence that does not fit keeps its subwords.
        """
        random = Random(name)
        pairs = [pair for s, t, _ in planned for pair in self._pairs(s, t, random, self.tokens)]
        source, target = (np.array([len(pair[side]) for pair in pairs], np.int32) for side in (0, 1))
        batches = cut(source, target, self.tokens, None)
        if len(batches) > len(planned):
            return [(*collate(self._pairs(s, t, random, self.tokens // len(rows))), rows) for s, t, rows in planned]
        batches, rows = divisible(batches, len(planned)), np.concatenate([rows for _, _, rows in planned])
        random.shuffle(batches)
        return [(*collate([pairs[i] for i in chosen]), rows[chosen]) for chosen in batches]

    def _pairs(self, source: Ids, target: Ids, random: Random, limit: int) -> list[Pair]:
        sources, targets = ([words.redrawn(row, random, limit) for row in ids.tolist()]
                            for words, ids in ((self.source, source), (self.target, target)))  # fmt: skip
        return list(zip(sources, targets, strict=True))


class Words:
    """One side's words, each with the segmentations that were needed so far."""

    def __init__(self, subwords: Subwords | Pieces, chance: float) -> None:
        self.subwords, self.chance = subwords, chance
        self.known: dict[tuple[str, int], list[int]] = {}

    def redrawn(self, ids: list[int], random: Random, limit: int) -> list[int]:
        """A sentence's ids with other subwords for the same words; unchanged if it has unknown parts or grows too long."""
        plain = [i for i in ids if i > BOS or i == UNK]
        if UNK in plain:
            return plain
        if len(self.known) > REMEMBERED:
            self.known.clear()
        words = self.subwords.chunks(self.subwords.decode(plain))
        drawn = [i for word in words for i in self._drawn(word, int(VARIANTS * random.random()))]
        return [*drawn, EOS] if len(drawn) < limit else plain

    def _drawn(self, word: str, variant: int) -> list[int]:
        ids = self.known.get((word, variant))
        if ids is None:
            ids = self.known[word, variant] = self.subwords.drop(word, self.chance, Random(f"{variant}/{word}"))
        return ids
