"""Between text and token ids: a standard tokenizer.json, learned or given, with the token that keeps documents apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bathy.errors import ConfigError, DataError, require
from bathy.files import check_digest, digest, read_json, write_json, write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.uint32]
END, MASK, UNKNOWN = "<|endoftext|>", "<|mask|>", "<|unknown|>"
END_NAMES = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Names under which tokenizers have a token that ends a document."""
MASK_NAMES = (MASK, "[MASK]", "<mask>")
PIECE = 1 << 18
"""Characters that are encoded together."""
BORDER = re.compile(r"\S\n(?=\S)")
FILES = ("tokenizer.json", "text.json")


class Codec:
    """Text to ids and back. Special tokens never come from text: a document that spells one is encoded letter by letter."""

    def __init__(self, tokenizer: Tokenizer, whole: bool = False) -> None:
        self.tokenizer = tokenizer
        self.whole = whole
        """Whether documents are encoded in one piece: an unknown tokenizer may not allow any other."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.end, self.mask = (_special(tokenizer, names) for names in (END_NAMES, MASK_NAMES))
        self.unknown: int | None = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
        self.lookup = Lookup.of(tokenizer)

    @property
    def vocab(self) -> int:
        """Token ids: one more than the largest."""
        return max(self.tokenizer.get_vocab().values()) + 1

    def encode(self, text: str) -> Ids:
        """The text's ids, without special tokens."""
        if self.lookup:
            return self.lookup.encode(text)
        parts = [text] if self.whole else [*pieces(text)]
        found = self.tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        return np.concatenate([np.empty(0, np.uint32), *(np.array(part.ids, np.uint32) for part in found)])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.tokenizer.decode([int(i) for i in ids])

    def stream(self) -> Any:
        """An object whose `step(tokenizer, id)` gives the text that one more id completes, or None."""
        return require("tokenizers", "language").decoders.DecodeStream([], True)

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """The codec of a data, run or model folder."""
        settings = read_json(folder / "text.json", advice="restore it, or make the folder again")
        if settings.get("kind") != "language":
            raise DataError(f"{folder} belongs to translation, not to language modelling; is [task] kind right?")
        check_digest(folder / "tokenizer.json", str(settings.get("sha256")))
        return cls(read_tokenizer(folder / "tokenizer.json"), bool(settings.get("whole")))

    def save(self, folder: Path) -> None:
        """Write the codec's files into a folder."""
        write_text(folder / "tokenizer.json", self.tokenizer.to_str())
        sha256 = digest(folder / "tokenizer.json")
        write_json(folder / "text.json", {"kind": "language", "whole": self.whole, "sha256": sha256}, seal=True)


class Lookup:
    """Ids of single characters or bytes, by table: a tokenizer without merges, many times faster."""

    def __init__(self, symbols: npt.NDArray[np.uint32], ids: Ids, encoding: str, unknown: int) -> None:
        order = np.argsort(symbols)
        self.symbols, self.ids, self.encoding, self.unknown = symbols[order], ids[order], encoding, unknown

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Lookup | None:
        """The table of a vocabulary that this module made without merges; None for any other tokenizer."""
        lib: Any = require("tokenizers", "language")
        vocab = tokenizer.get_vocab(with_added_tokens=False)
        names = [name for name in vocab if name not in (END, MASK, UNKNOWN)]
        if END not in vocab or any(len(name) != 1 for name in names) or tokenizer.normalizer is not None:
            return None
        ids = np.array([vocab[name] for name in names], np.uint32)
        unknown = tokenizer.token_to_id(UNKNOWN)
        if unknown is not None:
            return cls(np.array([ord(name) for name in names], np.uint32), ids, "utf-32-le", unknown)
        if set(names) != set(lib.pre_tokenizers.ByteLevel.alphabet()):
            return None
        table = byte_table(vocab)
        return cls(np.array(list(table), np.uint32), np.array(list(table.values()), np.uint32), "utf-8", 0)

    def encode(self, text: str) -> Ids:
        """One id per character or byte."""
        kind = np.uint8 if self.encoding == "utf-8" else np.uint32
        codes = np.frombuffer(text.encode(self.encoding), kind).astype(np.uint32)
        places = np.minimum(np.searchsorted(self.symbols, codes), len(self.symbols) - 1)
        return np.where(self.symbols[places] == codes, self.ids[places], np.uint32(self.unknown)).astype(np.uint32)


def byte_table(vocab: dict[str, int]) -> dict[int, int]:
    """Byte to id: GPT-2's alphabet stands for printable bytes as themselves, for the others by letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {byte: vocab[letter] for byte, letter in letters.items()}


def _special(tokenizer: Tokenizer, names: Sequence[str]) -> int:
    """The id of the first of these tokens that the tokenizer has; the first is added where it has none."""
    found = [name for name in names if tokenizer.token_to_id(name) is not None]
    name = found[0] if found else names[0]
    tokenizer.add_special_tokens([name])
    number = tokenizer.token_to_id(name)
    assert number is not None
    return number


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json, read."""
    lib: Any = require("tokenizers", "language")
    try:
        return lib.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"{path} is not a tokenizer.json that can be read: {str(error).splitlines()[0]}") from None


def byte_level(vocab: dict[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """A byte-level BPE tokenizer as GPT-2 has it."""
    lib: Any = require("tokenizers", "language")
    tokenizer = lib.Tokenizer(lib.models.BPE(vocab, list(merges)))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    tokenizer.add_special_tokens([END, MASK])
    return tokenizer


def learn_bpe(texts: Iterable[str], vocab: int) -> Codec:
    """Byte-level BPE (Radford et al., 2019) of so many entries."""
    lib: Any = require("tokenizers", "language")
    alphabet = sorted(lib.pre_tokenizers.ByteLevel.alphabet())
    if vocab < len(alphabet) + 2:
        raise ConfigError(f"data.vocab is {vocab}; bytes and special tokens alone are {len(alphabet) + 2}: raise it")
    trainer = lib.trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END, MASK], initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    learner = byte_level({}, [])
    learner.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    if (found := learner.get_vocab_size()) < vocab:
        raise ConfigError(f"data.vocab is {vocab}, but the training text allows {found}; ask for at most {found}")
    return Codec(lib.Tokenizer.from_str(learner.to_str()))


def bytes_codec() -> Codec:
    """A token per byte of UTF-8."""
    lib: Any = require("tokenizers", "language")
    names = [END, MASK, *sorted(lib.pre_tokenizers.ByteLevel.alphabet())]
    return Codec(byte_level({name: i for i, name in enumerate(names)}, []))


def characters_codec(texts: Iterable[str]) -> Codec:
    """A token per character of the texts; others become unknown."""
    lib: Any = require("tokenizers", "language")
    found: set[str] = set()
    for text in texts:
        found.update(text)
    names = [END, MASK, UNKNOWN, *sorted(found)]
    tokenizer = lib.Tokenizer(lib.models.BPE({name: i for i, name in enumerate(names)}, [], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Split(lib.Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = lib.decoders.Fuse()
    tokenizer.add_special_tokens([END, MASK, UNKNOWN])
    return Codec(tokenizer)


def pieces(text: str) -> Iterator[str]:
    """The text in parts of about PIECE characters, cut after a line end that no other white space touches: there, and not
    everywhere between lines, the words of the parts are those of the whole."""
    start = 0
    while (place := BORDER.search(text, start + PIECE)) and place.end() < len(text):
        yield text[start : place.end()]
        start = place.end()
    yield text[start:]
