"""From a text to the sentences a model translates, and back: line breaks, spaces and HTML tags stay where they are.

Every scan is linear in the text: whoever may send one may send the worst one.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

BREAKS = re.compile(r"([\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+)")
"""Line breaks, all that `str.splitlines` knows."""
SENTENCE = re.compile(r"(?<=[.!?…])(?<!\b\w\.)(?<!\b\w\w\.)[\"'»“”’)\]]*(\s+)(?=[\"'«„“‘(\[]?[A-ZÀ-ÖØ-Þ\d])")
"""Space after a sentence's end: not after words of one or two letters (z. B., Dr.), and only before a capital or a digit."""
MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?:[!?]|/(?![a-zA-Z]))[^>]*(?:>|\Z)"
    r"""|<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?P<rest>(?:=\s*+(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z))|[^>])*+)(?:>|\Z)""",
    re.S,
)
"""A comment, declaration or tag, as browsers see them: one that never ends reaches to the end of the text."""
RAW = {"script", "style", "textarea", "xmp", "iframe", "noembed", "noframes"}
"""Elements whose content holds no tags: it reaches to their end tag."""
KEPT = {"code", "pre", "kbd", "samp", "svg", "math"}
"""Further elements whose text is not language."""
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
NUMBER = re.compile(r"(?<=&#)0*([0-9]+)")
"""A character's number; Python refuses to read thousands of digits, and eight are beyond every character."""
NOT_TRANSLATED = re.compile(r"\stranslate\s*+=\s*+[\"']?no\b", re.I)


@dataclass(frozen=True)
class Piece:
    """A part of a text: a sentence to translate, or something to keep as it is."""

    text: str
    translate: bool


def split_text(text: str) -> list[Piece]:
    """The sentences of plain text, and what stands between them."""
    return [piece for part in BREAKS.split(text) for piece in _sentences(part)]


def _sentences(line: str) -> Iterator[Piece]:
    start, stop = len(line) - len(line.lstrip()), len(line.rstrip())
    if start >= stop:
        yield from [Piece(line, False)] if line else []
        return
    if start:
        yield Piece(line[:start], False)
    for match in SENTENCE.finditer(line, start, stop):
        yield _sentence(line[start : match.start(1)])
        yield Piece(match[1], False)
        start = match.end(1)
    yield _sentence(line[start:stop])
    if stop < len(line):
        yield Piece(line[stop:], False)


def _sentence(text: str) -> Piece:
    """Something to translate if it has a letter or a digit."""
    return Piece(text, any(map(str.isalnum, text)))


def split_html(markup: str) -> list[Piece]:
    """The sentences of the text nodes, unescaped, and the markup between them, byte for byte."""
    pieces: list[Piece] = []
    kept = Kept()
    place = 0
    while match := MARKUP.search(markup, place):
        pieces += _text(markup[place : match.start()], bool(kept.open))
        place = match.end()
        name = (match["name"] or "").lower()
        if name in RAW and not match["end"]:
            ending = re.compile(rf"</{name}(?=[\s/>]|\Z)", re.I).search(markup, place)
            place = ending.start() if ending else len(markup)
        elif match["end"]:
            kept.close(name)
        elif name:
            kept.begin(name, match["rest"])
        pieces.append(Piece(markup[match.start() : place], False))
    return pieces + _text(markup[place:], bool(kept.open))


class Kept:
    """The open elements whose text is kept: from the first such element on, all that are open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.counts = Counter[str]()
        """How often each is open: asking the list would be quadratic."""

    def begin(self, name: str, rest: str) -> None:
        """A start tag and what it holds besides its name."""
        if name not in VOID and not rest.endswith("/") and (self.open or name in KEPT or NOT_TRANSLATED.search(rest)):
            self.open.append(name)
            self.counts[name] += 1

    def close(self, name: str) -> None:
        """An end tag: it closes what stands open inside its element, too."""
        while self.counts[name]:
            last = self.open.pop()
            self.counts[last] -= 1
            if last == name:
                return


def _text(raw: str, keep: bool) -> list[Piece]:
    """A text node's sentences; one without any stays as it is, entities included."""
    pieces = [] if keep else split_text(html.unescape(NUMBER.sub(lambda number: number[1][:8], raw)))
    if not any(piece.translate for piece in pieces):
        return [Piece(raw, False)] if raw else []
    return [piece if piece.translate else Piece(html.escape(piece.text, False), False) for piece in pieces]


def join(pieces: Sequence[Piece], translations: Iterable[str], escape: Callable[[str], str] = str) -> str:
    """The text with its sentences replaced, in their order."""
    found = iter(translations)
    return "".join(escape(next(found)) if piece.translate else piece.text for piece in pieces)
