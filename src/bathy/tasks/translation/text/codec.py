"""One object between text and ids, loadable on its own from a data, run or model folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from bathy.errors import ConfigError, DataError
from bathy.files import check_digest, digest, read_json, write_json
from bathy.tasks.special_tokens import EOS
from bathy.tasks.translation.settings import TextConfig
from bathy.tasks.translation.text.bpe import Subwords
from bathy.tasks.translation.text.moses import Moses, Normaliser, Spaces
from bathy.tasks.translation.text.pieces import Pieces, unite_pieces

Side = Literal["source", "target"]


FILES = (("tokenizer.json", "tokenizer.target.json"), ("sentencepiece.model", "sentencepiece.target.model"))
"""Names of the files of both sides, or of the source alone: BPE's, SentencePiece's."""


def read_subwords(paths: Sequence[Path]) -> list[Subwords] | list[Pieces]:
    """The subwords of one or two files; two SentencePiece models get one vocabulary."""
    if paths[0].suffix != ".model":
        return [Subwords.load(path) for path in paths]
    pieces = [Pieces.load(path) for path in paths]
    return list(unite_pieces(*pieces)) if len(pieces) == 2 else pieces


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

    `encode` appends EOS; `decode` stops at it. A codec writes `tokenizer.json` or `sentencepiece.model` (both sides, or
    the source), a second one where the sides have their own, and `text.json` with the settings of the words.
    """

    def __init__(self, config: TextConfig, source: Subwords | Pieces, target: Subwords | Pieces | None = None) -> None:
        self.config = config
        self.subwords: dict[Side, Subwords | Pieces] = {"source": source, "target": target or source}
        self.joint = target is None
        self.words: dict[Side, Words] = {"source": Words(config, config.source), "target": Words(config, config.target)}

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """The codec of a data, run or model folder."""
        if not (folder / "text.json").exists():
            raise DataError(f"{folder} has no text.json; is it a data, run or model folder?")
        settings = read_json(folder / "text.json", advice="restore it, or make the folder again")
        sums = settings.pop("sha256", None)
        known = FILES[settings.get("tokeniser") == "sentencepiece"]
        names = [name for name in known if (name in sums if isinstance(sums, dict) else (folder / name).exists())]
        for name in names if isinstance(sums, dict) else []:
            check_digest(folder / name, str(sums[name]))
        if not names:
            raise DataError(f"{folder} has no {known[0]}; restore it, or make the folder again")
        return cls(TextConfig(**settings), *read_subwords([folder / name for name in names]))

    def save(self, folder: Path) -> None:
        """Write the codec's files into a folder."""
        for name, side in self.files().items():
            self.subwords[side].save(folder / name)
        sums = {name: digest(folder / name) for name in self.files()}
        write_json(folder / "text.json", {**self.config.model_dump(), "sha256": sums}, seal=True)

    def files(self) -> dict[str, Side]:
        """Tokenizer file name to the side it serves."""
        source, target = FILES[isinstance(self.subwords["source"], Pieces)]
        joint: dict[str, Side] = {source: "source"}
        return joint if self.joint else {**joint, target: "target"}

    def bpe(self, side: Side, purpose: str) -> Subwords:
        """One side's BPE, for what needs its merges; SentencePiece is an error."""
        subwords = self.subwords[side]
        if isinstance(subwords, Pieces):
            raise ConfigError(f"{purpose} needs BPE; this model's text is cut by SentencePiece")
        return subwords

    @property
    def vocab(self) -> int:
        """Entries of the vocabulary, shared by both sides."""
        return len(self.subwords["source"].names)

    def encode(self, lines: Iterable[str], side: Side = "source") -> list[list[int]]:
        """Ids of raw lines, each with EOS."""
        words, subwords = self.words[side], self.subwords[side]
        return [[*subwords.encode(words.split(line)), EOS] for line in lines]

    def decode(self, rows: Iterable[Sequence[int]], side: Side = "target") -> list[str]:
        """Natural lines from ids."""
        return [self.words[side].join(words) for words in self.tokens(rows, side)]

    def tokens(self, rows: Iterable[Sequence[int]], side: Side = "target") -> list[str]:
        """Words as the tokeniser splits them, for BLEU on tokens."""
        return [self.subwords[side].decode(row) for row in rows]
