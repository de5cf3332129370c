"""From a text to the sentences a model translates, and back: line breaks, spaces and HTML tags stay where they are."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

SENTENCE = re.compile(r"(?<=[.!?…])(?<!\b\w\.)(?<!\b\w\w\.)[\"'»“”’)\]]*(\s+)(?=[\"'«„“‘(\[]?[A-ZÀ-ÖØ-Þ\d])")
"""Space after a sentence's end: not after words of one or two letters (z. B., Dr.), and only before a capital or a digit."""
KEPT = {"script", "style", "code", "pre", "kbd", "samp", "textarea", "svg", "math"}
"""Elements whose text is not language."""


@dataclass(frozen=True)
class Piece:
    """A part of a text: a sentence to translate, or something to keep as it is."""

    text: str
    translate: bool


def split_text(text: str) -> list[Piece]:
    """The sentences of plain text, and what stands between them."""
    return [piece for part in re.split(r"(\s*[\r\n]+\s*)", text) for piece in _sentences(part)]


def _sentences(line: str) -> Iterator[Piece]:
    if not line.strip():
        yield from [Piece(line, False)] if line else []
        return
    start = len(line) - len(line.lstrip())
    if start:
        yield Piece(line[:start], False)
    stop = len(line.rstrip())
    for match in SENTENCE.finditer(line, start, stop):
        yield Piece(line[start : match.start(1)], True)
        yield Piece(match[1], False)
        start = match.end(1)
    yield Piece(line[start:stop], True)
    if stop < len(line):
        yield Piece(line[stop:], False)


class _Pieces(HTMLParser):
    """Splits HTML: tags, comments and the text of some elements are kept byte for byte, other text is split into sentences."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=False)
        self.pieces: list[Piece] = []
        self.kept: list[str] = []
        self.text = ""
        self.place = 0
        self.lines = [0, *(match.end() for match in re.finditer("\n", markup))]
        self.markup = markup
        self.feed(markup)
        self.close()
        self._flush(len(markup))

    def _here(self) -> int:
        line, column = self.getpos()
        return self.lines[line - 1] + column

    def _flush(self, until: int) -> None:
        """What came since the last tag is text."""
        raw, self.place = self.markup[self.place : until], until
        if not raw:
            return
        if self.kept:
            self.pieces.append(Piece(raw, False))
        else:
            self.pieces += [
                Piece(piece.text if piece.translate else html.escape(piece.text, False), piece.translate)
                for piece in split_text(html.unescape(raw))
            ]

    def _keep(self, raw: str) -> None:
        start = self._here()
        self._flush(start)
        self.place = start + len(raw)
        self.pieces.append(Piece(raw, False))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(self.get_starttag_text() or "")
        if (tag in KEPT or dict(attrs).get("translate") == "no" or self.kept) and tag not in VOID:
            self.kept.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        start = self._here()
        end = self.markup.find(">", start) + 1 or len(self.markup)
        self._keep(self.markup[start:end])
        if tag in self.kept:
            while self.kept.pop() != tag:
                pass

    def handle_comment(self, data: str) -> None:
        self._keep_until("-->")

    def handle_decl(self, decl: str) -> None:
        self._keep_until(">")

    def handle_pi(self, data: str) -> None:
        self._keep_until(">")

    def unknown_decl(self, data: str) -> None:
        self._keep_until(">")

    def _keep_until(self, end: str) -> None:
        start = self._here()
        stop = self.markup.find(end, start)
        self._keep(self.markup[start : stop + len(end) if stop >= 0 else len(self.markup)])


VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


def split_html(markup: str) -> list[Piece]:
    """The sentences of the text nodes, unescaped, and the markup between them."""
    return _Pieces(markup).pieces


def join(pieces: Sequence[Piece], translations: Iterable[str], escape: Callable[[str], str] = str) -> str:
    """The text with its sentences replaced, in their order."""
    found = iter(translations)
    return "".join(escape(next(found)) if piece.translate else piece.text for piece in pieces)
