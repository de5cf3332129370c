"""Moses tokenisation, several times faster: the same rules, applied to each distinct chunk of text once.

The tokeniser of the Moses toolkit (Koehn et al., 2007) is a chain of some twenty substitutions over a line; sacremoses is
its Python port. Nearly all rules look at one whitespace-free chunk only. Two look further: a full stop stays with an
abbreviation depending on the word that follows, and quotes and commas at a chunk's edge depend on their neighbours. So
chunks are tokenised alone and remembered, per kind of next word where that matters; a line in which a quote or comma
opens or closes a chunk in an unusual way takes the whole chain. The result is sacremoses' own, which tests hold it to.
"""

from __future__ import annotations

import re
from functools import lru_cache

from bathy.errors import require

REMEMBERED = 1 << 17
"""Chunks that are kept; memory stays constant on any corpus."""
CONTROL = "".join(map(chr, range(32)))


class Moses:
    """Splits a line of one language into words, and joins them again."""

    def __init__(self, language: str, aggressive: bool = False, escape: bool = False) -> None:
        sacremoses = require("sacremoses", "translation")
        self.chain = sacremoses.MosesTokenizer(language)
        self.joiner = sacremoses.MosesDetokenizer(language)
        self.options = {"aggressive_dash_splits": aggressive, "escape": escape, "return_str": True}
        letters = "".join(c for c in map(chr, range(0x250)) if c in self.chain.IsAlnum)
        hyphen = "" if aggressive else r"\-"
        self.plain = re.compile(rf"([{letters}{hyphen}]+)([,;:!?.]?)")
        self.entangled = re.compile(rf"(^|\s)[',]|'(\s|$)|[{CONTROL}]")
        self.digits = re.compile("[0-9]")
        self.lower = frozenset(self.chain.IsLower)
        self.numeric = frozenset(self.chain.NUMERIC_ONLY_PREFIXES)
        self.abbreviations = frozenset(self.chain.NONBREAKING_PREFIXES) - self.numeric
        self.known: dict[str, str] = {}
        self.chunk = lru_cache(REMEMBERED)(self._chunk)

    def split(self, line: str) -> str:
        """The words of a line, one space between them."""
        if self.entangled.search(line):
            return self.whole(line)
        chunks = line.split()
        known = self.known
        try:
            return " ".join([known[chunk] for chunk in chunks])
        except KeyError:
            pairs = zip(chunks, [*chunks[1:], ""], strict=True)
            return " ".join([known.get(chunk) or self._learn(chunk, after) for chunk, after in pairs])

    def _learn(self, chunk: str, after: str) -> str:
        """The words of a chunk not met before; those with a full stop depend on what follows."""
        if "." in chunk:
            return self.chunk(chunk, self._following(after))
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        self.known[chunk] = words = self._chunk(chunk, "X")
        return words

    def whole(self, line: str) -> str:
        """The full chain of rules over a whole line."""
        return " ".join(self.chain.tokenize(line, **self.options).split())

    def join(self, words: str) -> str:
        """A natural line from words: detokenisation, entities resolved."""
        return str(self.joiner.detokenize(words.split()))

    def _following(self, chunk: str) -> str:
        """A stand-in for the next chunk: what the rules for full stops ask of it."""
        if not chunk:
            return ""
        if chunk[0] in self.lower:
            return "x"
        return "0" if self.digits.match(chunk) else "X"

    def _chunk(self, chunk: str, after: str) -> str:
        if match := self.plain.fullmatch(chunk):
            word, mark = match.groups()
            whole = not mark or (mark == "." and self._abbreviated(word, after))
            return chunk if whole else f"{word} {mark}"
        words = self.whole(f"X {chunk} {after}")
        return words[2:-2] if after else words[2:]

    def _abbreviated(self, word: str, after: str) -> bool:
        """Whether the full stop belongs to the word: an abbreviation, or the sentence goes on in lower case."""
        return word in self.abbreviations or after == "x" or (word in self.numeric and after == "0")


class Spaces:
    """For text that is tokenised already: words are what stands between white space."""

    def split(self, line: str) -> str:
        return " ".join(line.split())

    def join(self, words: str) -> str:
        return words


class Normaliser:
    """Moses' punctuation normalisation, with a short way past the lines in which nothing can match."""

    def __init__(self, language: str) -> None:
        self.chain = require("sacremoses", "translation").MosesPunctNormalizer(language, perl_parity=True)
        self.untouched = re.compile(r"[0-9A-Za-zÀ-ÖØ-öø-ÿ ,.!?/-]*")

    def __call__(self, line: str) -> str:
        if "  " not in line and self.untouched.fullmatch(line):
            return line
        return str(self.chain.normalize(line))
