"""SentencePiece (Kudo and Richardson, 2018): unigram or BPE pieces of raw text, learned here or read from a .model file.

A model of any origin is read: its pieces follow bathy's four special tokens in their own order, so that its own ids for
padding, begin and end do not matter. Two models, one for each side, share one vocabulary as two BPEs do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

from bathy.errors import ConfigError, DataError, explain, require
from bathy.files import replacing
from bathy.tasks.special_tokens import SPECIALS, UNK
from bathy.tasks.translation.text.bpe import SPACE, disjoint, numbered, until_end, with_short_chunks

THREADS = 8
"""Of the trainer, on any machine: sums in another order would give other pieces."""
LONGEST_LINE = 1 << 30
"""Bytes of a line that the trainer does not pass over without a word."""


def learn_pieces(
    texts: Iterable[list[str]],
    vocab: int,
    kind: Literal["unigram", "bpe"] = "unigram",
    coverage: float = 1.0,
    byte_fallback: bool = False,
    symbols: Sequence[str] = (),
) -> Pieces:
    """A model of `vocab` pieces, special tokens included; `coverage` is the share of the text's characters that get one."""
    trainer: Any = require("sentencepiece", "translation").SentencePieceTrainer
    model = io.BytesIO()
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    names = dict(zip(("pad_piece", "unk_piece", "bos_piece", "eos_piece"), SPECIALS, strict=True))
    try:
        trainer.train(
            sentence_iterator=(line for lines in texts for line in with_short_chunks(lines) if line),
            model_writer=model, vocab_size=vocab, model_type=kind, character_coverage=coverage, byte_fallback=byte_fallback,
            user_defined_symbols=list(symbols), num_threads=THREADS, max_sentence_length=LONGEST_LINE, minloglevel=2,
            **ids, **names,
        )  # fmt: skip
    except RuntimeError as error:
        raise ConfigError(_reason(str(error), vocab)) from None
    return Pieces(model.getvalue())


def _reason(message: str, vocab: int) -> str:
    """What SentencePiece says against a vocabulary, as a setting and a way out."""
    if match := re.search(r"too high .*<= (\d+)", message):
        return f"data.vocab is {vocab}, but the training text allows {match[1]}; ask for at most {match[1]}"
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"data.vocab is {vocab}, but characters and special tokens are {match[1]}; raise it, or limit prepare.characters"
    return f"SentencePiece cannot learn {vocab} pieces from this text: {message.rpartition('] ')[2] or message}"


class Pieces:
    """A SentencePiece model as a codec uses it: like `Subwords`, but on whole lines."""

    def __init__(self, model: bytes, source: object = "the SentencePiece model", names: Sequence[str] = ()) -> None:
        library: Any = require("sentencepiece", "translation")
        try:
            if not model:
                raise RuntimeError("it is empty")
            self.processor = library.SentencePieceProcessor(model_proto=model)
            size = self.processor.get_piece_size()
        except RuntimeError as error:
            raise DataError(f"{source} is not a SentencePiece model that can be read: {error}") from None
        self.model = model
        own = [self.processor.id_to_piece(i) for i in range(size)]
        special = [self.processor.is_control(i) or self.processor.is_unknown(i) for i in range(size)]
        self.own = [name for name, is_special in zip(own, special, strict=True) if not is_special]
        """The model's pieces without its special tokens."""
        self.names = list(names) or list(numbered(self.own))
        self.vocab = {name: i for i, name in enumerate(self.names)}
        self.ids = [UNK if is_special else self.vocab[name] for name, is_special in zip(own, special, strict=True)]
        """The model's ids to ours."""
        self.scores = {name: self.processor.get_score(i) for i, name in enumerate(own) if not special[i]}

    @classmethod
    def load(cls, path: Path) -> Pieces:
        """Read a .model file."""
        try:
            return cls(path.read_bytes(), path)
        except OSError as error:
            raise DataError(explain(error, path)) from None

    def save(self, path: Path) -> None:
        """Write the .model file, byte for byte as it came."""
        with replacing(path) as temporary:
            temporary.write_bytes(self.model)

    @property
    def merges(self) -> bool:
        """Whether the pieces come of merges (BPE), which can be dropped: then scores are ranks, 0, -1, -2 …"""
        return all(float(score).is_integer() and score <= 0 for score in self.scores.values())

    def encode(self, line: str) -> list[int]:
        """Ids of a line, without EOS."""
        return [self.ids[i] for i in self.processor.encode(line)]

    def decode(self, ids: Iterable[int]) -> str:
        """A line from ids, up to the first EOS; PAD and BOS are left out."""
        text = self.processor.decode_pieces([self.names[i] for i in until_end(ids)])
        return str(text).replace(SPACE, " ").strip(" ")

    def encode_with_dropout(self, line: str, chance: float, random: Random) -> list[int]:
        """Ids of a line when each merge is skipped with a chance (BPE-dropout, Provilkov et al., 2020)."""
        if not self.merges:
            raise ConfigError("data.bpe_dropout needs merges; set it to 0, or prepare with prepare.model_type = 'bpe'")
        return [i for chunk in self.chunks(line) for i in self.drop(chunk, chance, random)]

    def chunks(self, line: str) -> list[str]:
        """The parts of a line that merges do not cross: its words, marked at their start."""
        return re.findall(f"{SPACE}?[^{SPACE}]+|{SPACE}", self.processor.normalize(line))

    def drop(self, chunk: str, chance: float, random: Random) -> list[int]:
        """Ids of one word when each merge is skipped with a chance."""
        return [i for name in self._merged(list(chunk), chance, random) for i in self._ids(name)]

    def _merged(self, names: list[str], chance: float, random: Random) -> list[str]:
        """The chunk's pieces: merge the pair of the best score that is not skipped, until none is left."""
        while len(names) > 1:
            pairs = [
                (a + b, i) for i, (a, b) in enumerate(pairwise(names)) if a + b in self.scores and random.random() >= chance
            ]
            if not pairs:
                break
            best = max(pairs, key=lambda pair: self.scores[pair[0]])[0]
            for i in reversed(disjoint(i for name, i in pairs if name == best)):
                names[i : i + 2] = [best]
        return names

    def _ids(self, name: str) -> Iterator[int]:
        """The id of a piece; of a character that is none, its bytes where the model has them."""
        spelled = [name] if name in self.vocab else [f"<0x{byte:02X}>" for byte in name.encode()]
        yield from (self.vocab[part] for part in spelled) if all(part in self.vocab for part in spelled) else [UNK]


def unite_pieces(source: Pieces, target: Pieces) -> tuple[Pieces, Pieces]:
    """Two models over one vocabulary, so that a network has one embedding table."""
    names = list(numbered([*source.own, *target.own]))
    return Pieces(source.model, names=names), Pieces(target.model, names=names)
