"""Lines of text in and out: strict UTF-8, and the JSON that `translate` writes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from bathy.errors import DataError

OPENERS: dict[str, Any] = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""File ending to the function that opens it."""
BYTE_ORDER_MARK = "\ufeff"
"""What some programs put at the start of a file; it is no part of the text."""


def opened(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed if its name says so."""
    return OPENERS.get(path.suffix, open)(path, "rb")


def read_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, compressed or not, or of standard input; one that is not UTF-8 is an error that gives its number."""
    name = str(path) if path else "standard input"
    try:
        with opened(path) if path else sys.stdin.buffer as file:
            for number, line in enumerate(file, 1):
                yield _decoded(line, name, number)
    except (OSError, EOFError, zlib.error, LZMAError) as error:
        raise DataError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8").removeprefix(BYTE_ORDER_MARK).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}, byte {error.start + 1} is not UTF-8; convert it, for example with iconv"
        ) from None


def read_texts(path: Path) -> list[str]:
    """Sentences from plain text (a line each), from .jsonl as `bathy translate --json` writes it, or from a .json list."""
    if path.suffix not in (".json", ".jsonl"):
        return list(read_lines(path))
    try:
        whole = "".join(read_lines(path)) if path.suffix == ".json" else ""
        rows = json.loads(whole) if whole else [json.loads(line) for line in read_lines(path)]
        if not isinstance(rows, list):
            raise TypeError(f"it is one {type(rows).__name__}")
        return [_text(row) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        wanted = "a list of sentences" if path.suffix == ".json" else "a sentence, or an object with 'translation', a line"
        raise DataError(f"{path} is not {wanted}: {error}") from None


def _text(row: Any) -> str:
    text = row if isinstance(row, str) else row["translation"]
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    return text
