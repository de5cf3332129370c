"""The middle of preparing: what subwords are learned from, and the codec that comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bathy.console import track
from bathy.errors import ConfigError
from bathy.tasks.translation.prepare.clean import KEPT, Account, read_shard
from bathy.tasks.translation.settings import LearnConfig, TextConfig
from bathy.tasks.translation.text.bpe import Subwords, from_codes, learn, unite
from bathy.tasks.translation.text.codec import Codec
from bathy.tasks.translation.text.pieces import Pieces, learn_pieces, unite_pieces

LEAST_COVERAGE = 0.98
"""The smallest share of a text's characters that SentencePiece's trainer accepts."""


@dataclass(frozen=True)
class CleanText:
    """The tokenised shards of a split: where they lie and what they say of themselves."""

    folder: Path
    accounts: Sequence[Account]

    @property
    def kept(self) -> list[int]:
        """Pairs of each shard, repeated ones included."""
        return [account.counts[KEPT] for account in self.accounts]

    @property
    def starts(self) -> list[int]:
        """Place of each shard's first pair among all kept ones."""
        return list(accumulate(self.kept, initial=0))

    @property
    def first_places(self) -> list[int]:
        """The same with repeated pairs left out."""
        keep = self.not_repeated
        if keep is None:
            return self.starts
        return list(accumulate((int(keep[a:b].sum()) for a, b in pairwise(self.starts)), initial=0))

    @property
    def not_repeated(self) -> npt.NDArray[np.bool_] | None:
        """Which pairs are the first of their kind, where that was asked for."""
        path = self.folder / "keep.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    def lines(self, side: int | None, valid_every: int) -> Iterator[list[str]]:
        """One side's lines or both, shard by shard, without the pairs that are held out for validation."""
        starts, first_places, keep = self.starts, self.first_places, self.not_repeated
        for number in track(range(len(self.accounts)), "reading text for BPE"):
            mask = None if keep is None else keep[starts[number] : starts[number + 1]]
            pairs = read_shard(self.folder, number, mask)
            if valid_every:
                pairs = [pair for place, pair in enumerate(pairs, first_places[number] + 1) if place % valid_every]
            yield [line for pair in pairs for line in (pair if side is None else [pair[side]])]


def learn_codec(text: CleanText, config: LearnConfig, words: TextConfig, vocab: int) -> Codec:
    """Learn subwords, or use given ones: one for both sides, or one each over one vocabulary."""
    if words.tokeniser == "sentencepiece":
        return learn_sentencepiece(text, config, words, vocab)

    def learned(side: int | None, codes: str) -> Any:
        characters = alphabet(text, side, config)
        if codes:
            return from_codes(Path(codes), characters)
        return learn(text.lines(side, config.valid_every), characters, vocab, config.merges, words.tokeniser == "raw")

    if config.joint:
        return Codec(words, Subwords(learned(None, config.codes)))
    return Codec(words, *map(Subwords, unite(learned(0, config.codes), learned(1, config.codes_target))))


def learn_sentencepiece(text: CleanText, config: LearnConfig, words: TextConfig, vocab: int) -> Codec:
    """The same with SentencePiece."""

    def learned(side: int | None, model: str) -> Pieces:
        if model:
            return Pieces.load(Path(model))
        lines = text.lines(side, config.valid_every)
        share = coverage(text, side, config)
        return learn_pieces(lines, vocab, config.model_type, share, config.byte_fallback, config.symbols)

    if config.joint:
        return Codec(words, learned(None, config.codes))
    return Codec(words, *unite_pieces(learned(0, config.codes), learned(1, config.codes_target)))


def coverage(text: CleanText, side: int | None, config: LearnConfig) -> float:
    """The share of the text's characters that the commonest `prepare.characters` make up; 1 where there is no limit."""
    if not config.characters:
        return 1.0
    counts = Counter(char for lines in text.lines(side, config.valid_every) for line in lines for char in line if char != " ")
    shares = [count / counts.total() for _, count in counts.most_common()]
    share = min(1.0, sum(shares[: config.characters]))
    if share < LEAST_COVERAGE:
        least = next(number for number, covered in enumerate(accumulate(shares), 1) if covered >= LEAST_COVERAGE)
        raise ConfigError(
            f"prepare.characters is {config.characters}, which is {100 * share:.0f} % of the text; SentencePiece asks for "
            f"{100 * LEAST_COVERAGE:.0f} %: at least {least}"
        )
    return share


def alphabet(text: CleanText, side: int | None, config: LearnConfig) -> set[str]:
    """The characters of one side or both; of many, the commonest `prepare.characters`."""
    sides = (0, 1) if side is None else (side,)
    found = {char for account in text.accounts for i in sides for char in account.characters[i]}
    if not 0 < config.characters < len(found):
        return found
    lines = (line for lines in text.lines(side, config.valid_every) for line in lines)
    counts = Counter(char for line in lines for char in line if char != " ")
    return set(sorted(counts, key=lambda char: (-counts[char], char))[: config.characters])
