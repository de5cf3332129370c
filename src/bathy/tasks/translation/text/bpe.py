"""Byte-pair encoding (Sennrich et al., 2016) as standard `tokenizers` files: learned, or replayed from published codes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bathy.errors import ConfigError, DataError, require
from bathy.files import write_text
from bathy.tasks.special_tokens import BOS, EOS, PAD, SPECIALS, UNK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "</w>"
"""Marks the last subword of a word, as subword-nmt's codes do."""
SPACE = "▁"
"""Stands before each word of raw text, as in SentencePiece."""
REMEMBERED = 1 << 17
"""Words whose subwords are kept; memory stays constant on any corpus."""
LONGEST_CHUNK = 1000
"""Characters without a space that BPE learns from together."""
MIN_COUNT = 2
"""A pair of subwords must occur this often to be merged (subword-nmt's default)."""


def assemble(vocab: dict[str, int], merges: Sequence[tuple[str, str]], raw: bool) -> Tokenizer:
    """A whole tokenizer: merges, what splits words, what joins them, and the end-of-sentence token (EOS)."""
    lib: Any = require("tokenizers", "translation")
    options = {} if raw else {"end_of_word_suffix": END}
    tokenizer = lib.Tokenizer(lib.models.BPE(vocab, list(merges), unk_token=SPECIALS[UNK], **options))
    tokenizer.add_special_tokens(SPECIALS)
    if raw:
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
        tokenizer.decoder = lib.decoders.Metaspace(SPACE, prepend_scheme="always")
    else:  # WhitespaceSplit would also split at no-break spaces
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Split(" ", "removed")
        tokenizer.decoder = lib.decoders.BPEDecoder(suffix=END)
    ending = lib.processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", EOS)])
    tokenizer.post_processor = ending
    return tokenizer


def learn(texts: Iterable[list[str]], characters: Iterable[str], vocab: int, merges: int = 0, raw: bool = False) -> Tokenizer:
    """BPE from lists of tokenised lines: a vocabulary of `vocab` entries, or `merges` merges whatever the alphabet.

    `characters` is the alphabet, each with its form at the end of a word; others become unknown. Given in advance and
    numbered in order, it makes ties between pairs, and so the whole result, the same in every run.
    """
    lib: Any = require("tokenizers", "translation")
    tokenizer = assemble({}, [], raw)
    plain = sorted(set(characters) - {" "} | ({SPACE} if raw else set()))
    ends = [] if raw else [char + END for char in plain]
    alphabet = [*plain, *ends]
    trainer = lib.trainers.BpeTrainer(
        vocab_size=len(SPECIALS) + len(alphabet) + merges if merges else vocab,
        special_tokens=[*SPECIALS, *ends],
        initial_alphabet=plain,
        limit_alphabet=len(plain),
        min_frequency=MIN_COUNT,
        show_progress=False,
        **({} if raw else {"end_of_word_suffix": END}),
    )
    if not raw:  # the same words as `Split`, found without a regular expression
        tokenizer.pre_tokenizer = lib.pre_tokenizers.CharDelimiterSplit(" ")
    # text by text: of whatever comes, 256 items are in memory at a time
    tokenizer.train_from_iterator((text for lines in texts for text in joined(with_short_chunks(lines))), trainer)
    known = set(alphabet)
    learned = [merge for merge in parts(tokenizer)[1] if "".join(merge) not in known]
    found = len(SPECIALS) + len(alphabet) + len(learned)
    if merges:
        check_merges(merges, len(learned))
    else:
        check_vocab(vocab, found, len(alphabet))
    return assemble(numbered([*alphabet, *map("".join, learned)]), learned, raw)


def with_short_chunks(lines: list[str]) -> list[str]:
    """The lines with chunks beyond LONGEST_CHUNK characters cut: the trainer's time is quadratic in a chunk's length."""
    if max(map(len, lines), default=0) <= LONGEST_CHUNK:
        return lines
    chunks = ((chunk[i : i + LONGEST_CHUNK] for chunk in line.split(" ") for i in range(0, len(chunk), LONGEST_CHUNK))
              for line in lines)  # fmt: skip
    return [" ".join(parts) for parts in chunks]


def joined(lines: list[str], together: int = 100) -> list[str]:
    """The lines in longer pieces, which cost less to hand over one by one."""
    return [" ".join(lines[i : i + together]) for i in range(0, len(lines), together)]


def check_merges(wanted: int, found: int) -> None:
    """An error where the text has fewer pairs to merge than asked for."""
    if found < wanted:
        raise ConfigError(f"prepare.merges is {wanted}, but the training text allows {found}; ask for at most {found}")


def check_vocab(wanted: int, found: int, alphabet: int) -> None:
    """An error where the text cannot fill the vocabulary, or its characters alone overfill it."""
    if found < wanted:
        raise ConfigError(f"data.vocab is {wanted}, but the training text allows {found}; ask for at most {found}")
    if found > wanted:
        least = alphabet + len(SPECIALS)
        raise ConfigError(
            f"data.vocab is {wanted}, but characters and special tokens are {least}; raise it, or limit prepare.characters"
        )


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges of a subword-nmt codes file, in order."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the BPE codes {path} cannot be read: {error}") from None
    if not lines or not lines[0].startswith("#version: 0.2"):
        raise DataError(f"{path} does not begin with '#version: 0.2'; codes of another version mark word ends differently")
    merges = [tuple(line.split(" ")) for line in lines[1:] if line.strip()]
    wrong = [i for i, merge in enumerate(merges) if len(merge) != 2]
    if wrong:
        raise DataError(f"{path}, line {wrong[0] + 2}: a merge is two subwords with a space between")
    return merges  # type: ignore[return-value]


def from_codes(path: Path, characters: Iterable[str]) -> Tokenizer:
    """The tokenizer that replays published codes; `characters` are those that the training text has."""
    merges = list(dict.fromkeys(read_codes(path)))
    alphabet = {symbol for merge in merges for symbol in merge if len(symbol.removesuffix(END)) == 1}
    alphabet |= {form for char in set(characters) - {" "} for form in (char, char + END)}
    return assemble(numbered([*sorted(alphabet), *map("".join, merges)]), merges, raw=False)


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    """Token to id: the four special tokens first, each token once."""
    return {token: i for i, token in enumerate(dict.fromkeys([*SPECIALS, *tokens]))}


def unite(source: Tokenizer, target: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    """Two tokenizers with their own merges over one vocabulary, so that a model has one embedding table."""
    both = [sorted(t.get_vocab(), key=t.get_vocab().__getitem__) for t in (source, target)]
    vocab = numbered([*both[0], *both[1]])
    first, second = (assemble(vocab, parts(t)[1], is_raw(t)) for t in (source, target))
    return first, second


def parts(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """(vocabulary, merges in order)."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def is_raw(tokenizer: Tokenizer) -> bool:
    """Whether words are marked at their start (raw text) or at their end."""
    return json.loads(tokenizer.to_str())["model"]["end_of_word_suffix"] is None


class Subwords:
    """A tokenizer that remembers words: a sentence costs one look-up per word."""

    merges = True
    """Whether subwords come of merges, which can be dropped."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab, learned = parts(tokenizer)
        self.rank = {merge: i for i, merge in enumerate(learned)}
        self.raw = is_raw(tokenizer)
        self.names = [name for name, _ in sorted(self.vocab.items(), key=lambda item: item[1])]
        self.known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def load(cls, path: Path) -> Subwords:
        """Read a tokenizer file."""
        lib: Any = require("tokenizers", "translation")
        try:
            return cls(lib.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises a bare Exception
            raise DataError(f"{path} is not a tokenizer that can be read: {error}") from None

    def save(self, path: Path) -> None:
        """Write the tokenizer file."""
        write_text(path, self.tokenizer.to_str(pretty=False))

    def encode(self, words: str) -> list[int]:
        """Ids of space-separated words, without EOS."""
        known = self.known
        return [i for word in words.split(" ") if word for i in known.get(word) or self._learn(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """Words from ids, up to the first EOS; PAD and BOS are left out."""
        names = [self.names[i] for i in until_end(ids)]
        return "".join(names).replace(SPACE if self.raw else END, " ").strip(" ")

    def encode_with_dropout(self, words: str, chance: float, random: Random) -> list[int]:
        """Ids of words when each merge is skipped with a chance (BPE-dropout, Provilkov et al., 2020)."""
        return [i for word in self.chunks(words) for i in self.drop(word, chance, random)]

    def chunks(self, words: str) -> list[str]:
        """The parts of a line that merges do not cross: its words."""
        return words.split(" ")

    def drop(self, word: str, chance: float, random: Random) -> list[int]:
        """Ids of one word when each merge is skipped with a chance."""
        return [self.vocab.get(name, UNK) for name in self._merged(word, chance, random)]

    def _learn(self, word: str) -> tuple[int, ...]:
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        pieces = self.tokenizer.model.tokenize(SPACE + word if self.raw else word)
        self.known[word] = ids = tuple(piece.id for piece in pieces)
        return ids

    def _merged(self, word: str, chance: float, random: Random) -> list[str]:
        """The word's subwords: merge the earliest learned pair that is not skipped, until none is left."""
        names = list(SPACE + word) if self.raw else [*word[:-1], word[-1:] + END]
        draw, rank = random.random, self.rank
        while len(names) > 1:
            pairs = [(rank[pair], i) for i, pair in enumerate(pairwise(names)) if pair in rank and draw() >= chance]
            if not pairs:
                break
            first, _ = min(pairs)
            for i in reversed(disjoint(i for r, i in pairs if r == first)):
                names[i : i + 2] = [names[i] + names[i + 1]]
        return names


def disjoint(positions: Iterable[int]) -> list[int]:
    """The positions from the left that do not overlap: aaa merges once."""
    chosen: list[int] = []
    for i in positions:
        if not chosen or i > chosen[-1] + 1:
            chosen.append(i)
    return chosen


def until_end(ids: Iterable[int]) -> Iterator[int]:
    """The ids before the first EOS, PAD and BOS left out."""
    for i in ids:
        if i == EOS:
            return
        if i not in (PAD, BOS):
            yield int(i)
