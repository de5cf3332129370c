"""From downloads, or a user's own files, to a folder of plain parallel text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import unescape
from itertools import zip_longest
from lzma import LZMAError
from pathlib import Path
from typing import Any

from bathy.errors import ConfigError, DataError
from bathy.files import explained, lock_folder
from bathy.tasks.download import fetch, unpack
from bathy.tasks.lines import OPENERS, opened
from bathy.tasks.translation.corpora.layout import PairFile, describe, located
from bathy.tasks.translation.corpora.recipes import Part, Recipe

Lines = Iterator[bytes]
SEGMENT = re.compile(rb"<seg id=\"?[0-9]+\"?>\s*(.*?)\s*</seg>", re.IGNORECASE)
TED_DROPPED = (b"<url>", b"<talkid>", b"<keywords>")
TED_TAGS = re.compile(rb"</?(title|description)>")


def text(lines: Iterable[bytes]) -> Lines:
    """Plain lines."""
    for line in lines:
        yield line.rstrip(b"\r\n")


def segments(lines: Iterable[bytes]) -> Lines:
    """The segments of a test set in SGML or XML; typographic apostrophes become plain, as in the published recipes."""
    for line in lines:
        if match := SEGMENT.search(line):
            yield unescape(match[1].decode("utf-8", "replace").replace("’", "'")).encode()


def ted(lines: Iterable[bytes]) -> Lines:
    """IWSLT's training text: lines of addresses and keywords left out, titles and descriptions without their tags."""
    for line in lines:
        if not any(tag in line for tag in TED_DROPPED):
            yield TED_TAGS.sub(b"", line).strip()


FORMS: dict[str, Callable[[Iterable[bytes]], Lines]] = {"text": text, "segments": segments, "ted": ted}


def build(name: str, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Fetch a recipe's files into `folder/.downloads` and write its splits; returns what `corpus.json` says."""
    with explained(folder), lock_folder(folder):
        downloads = folder / ".downloads"
        for split, parts in recipe.splits.items():
            with PairFile(folder, split, recipe.source, recipe.target) as out:
                for part in parts:
                    append(out, *files(part, downloads), part.form)
        urls = sorted({remote.url for parts in recipe.splits.values() for part in parts for remote in part.remotes})
        return describe(folder, name, recipe.source, recipe.target, cite=recipe.cite, urls=urls)


def files(part: Part, downloads: Path) -> tuple[Path, Path]:
    """The part's two files, fetched and unpacked."""
    fetched = {remote.name: fetch(remote, downloads) for remote in part.remotes}
    if len(fetched) == 1 and (archive := next(iter(fetched.values()))).suffix in (".tgz", ".tar"):
        fetched = unpack(archive, (part.source, part.target), downloads)
    return fetched[part.source], fetched[part.target]


def append(out: PairFile, source: Path, target: Path, form: str = "text") -> None:
    """Copy two files' lines, which must be as many; a byte order mark is left out."""
    with opened(source) as a, opened(target) as b:
        for number, pair in enumerate(zip_longest(checked(a, source, form), checked(b, target, form)), 1):
            if pair[0] is None or pair[1] is None:
                short, long = (source, target) if pair[0] is None else (target, source)
                raise DataError(f"{short} ends after {number - 1:,} lines, but {long} goes on; both sides need as many")
            out.write(*(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line for line in pair))


def checked(file: Iterable[bytes], path: Path, form: str) -> Lines:
    """The lines of a form; a file that is damaged or not what its ending says is an error that names it."""
    try:
        yield from FORMS[form](file)
    except (EOFError, zlib.error, LZMAError, OSError) as error:
        raise DataError(f"{path} is damaged or not what its ending says: {error}") from None


def own(folder: Path, source: str, target: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Lay out a user's own line-aligned files. A pair is `split=stem`, for stem.de and stem.en, or `split=file,file`."""
    by_split: dict[str, list[tuple[Path, Path]]] = {}
    for pair in pairs:
        split, files = parsed(pair, source, target)
        by_split.setdefault(split, []).append(files)
    if "train" not in by_split:
        raise ConfigError("give at least one --pair train=STEM, or train=SOURCE_FILE,TARGET_FILE")
    with explained(folder), lock_folder(folder):
        for split, found in by_split.items():
            with PairFile(folder, split, source, target) as out:
                for a, b in found:
                    append(out, a, b)
                if not out.lines:
                    raise DataError(f"{found[0][0]} is empty")
        names = {split: [[str(a), str(b)] for a, b in found] for split, found in by_split.items()}
        return describe(folder, "folder", source, target, files=names)


def parsed(pair: str, source: str, target: str) -> tuple[str, tuple[Path, Path]]:
    """(split, files) of one --pair."""
    split, equals, rest = pair.partition("=")
    if not equals or not rest or not re.fullmatch(r"\w+", split):
        raise ConfigError(f"--pair {pair}: write it as train=STEM, or train=SOURCE_FILE,TARGET_FILE")
    first, comma, second = rest.partition(",")
    if comma:
        for path in (Path(first), Path(second)):
            if not path.is_file():
                raise DataError(f"{path} is not a file")
        return split, (Path(first), Path(second))
    a, b = located(Path(rest), source), located(Path(rest), target)
    if a is None or b is None:
        missing = source if a is None else target
        raise DataError(f"there is no {rest}.{missing} (plain, {', '.join(filter(None, OPENERS))})")
    return split, (a, b)
