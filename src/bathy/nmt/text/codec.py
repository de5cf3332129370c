"""One object between text and ids, loadable on its own from a data, run or model folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from bathy.errors import DataError
from bathy.files import replacing, write_json
from bathy.nmt.dataconfig import TextConfig
from bathy.nmt.marks import EOS
from bathy.nmt.text.bpe import Subwords
from bathy.nmt.text.moses import Moses, Normaliser, Spaces

Side = Literal["source", "target"]


class Words:
    """One side's way from a raw line to words and back."""

    def __init__(self, config: TextConfig, language: str) -> None:
        moses = config.tokeniser == "moses"
        self.splitter = Moses(language, config.aggressive, config.escape) if moses else Spaces()
        self.normalise = Normaliser(language) if config.normalise else None
        self.lowercase = config.lowercase

    def split(self, line: str) -> str:
        """Space-separated words of a raw line."""
        words = self.splitter.split(self.normalise(line) if self.normalise else line)
        return words.lower() if self.lowercase else words

    def join(self, words: str) -> str:
        """A natural line."""
        return self.splitter.join(words)


class Codec:
    """Raw lines to ids and ids to natural lines, for both sides of a language pair.

    `encode` appends the end mark; `decode` stops at it. A codec writes `tokenizer.json` (both sides, or the source),
    `tokenizer.target.json` where the sides have their own merges, and `text.json` with the settings of the words.
    """

    def __init__(self, config: TextConfig, source: Subwords, target: Subwords | None = None) -> None:
        self.config = config
        self.subwords: dict[Side, Subwords] = {"source": source, "target": target or source}
        self.joint = target is None
        self.words: dict[Side, Words] = {"source": Words(config, config.source), "target": Words(config, config.target)}

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """The codec of a data, run or model folder."""
        try:
            settings = json.loads((folder / "text.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder} has no text.json that can be read; is it a data, run or model folder? ({error})"
            ) from None
        target = folder / "tokenizer.target.json"
        both = Subwords.load(folder / "tokenizer.json"), Subwords.load(target) if target.exists() else None
        return cls(TextConfig(**settings), *both)

    def save(self, folder: Path) -> None:
        """Write the codec's files into a folder."""
        for name, side in self.files().items():
            with replacing(folder / name) as temporary:
                temporary.write_text(self.subwords[side].tokenizer.to_str(pretty=False), encoding="utf-8")
        write_json(folder / "text.json", self.config.model_dump())

    def files(self) -> dict[str, Side]:
        """Tokenizer file name to the side it serves."""
        joint: dict[str, Side] = {"tokenizer.json": "source"}
        return joint if self.joint else {**joint, "tokenizer.target.json": "target"}

    @property
    def vocab(self) -> int:
        """Entries of the vocabulary, shared by both sides."""
        return len(self.subwords["source"].names)

    def encode(self, lines: Iterable[str], side: Side = "source") -> list[list[int]]:
        """Ids of raw lines, each with an end mark."""
        words, subwords = self.words[side], self.subwords[side]
        return [[*subwords.encode(words.split(line)), EOS] for line in lines]

    def decode(self, rows: Iterable[Sequence[int]], side: Side = "target") -> list[str]:
        """Natural lines from ids."""
        return [self.words[side].join(words) for words in self.tokens(rows, side)]

    def tokens(self, rows: Iterable[Sequence[int]], side: Side = "target") -> list[str]:
        """Words as the tokeniser splits them, for BLEU on tokens."""
        return [self.subwords[side].decode(row) for row in rows]
