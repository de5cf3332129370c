"""Data and corpus folders of translation, checked whole: every checksum, every id, every line count."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from bathy.errors import BathyError
from bathy.files import digest, read_json
from bathy.tasks.special_tokens import EOS
from bathy.tasks.translation.corpora.layout import count_lines
from bathy.tasks.translation.data import Manifest, Side, Split, read_manifest
from bathy.tasks.translation.settings import DataConfig, PrepareConfig, Preparing
from bathy.tasks.translation.text.codec import Codec
from bathy.tasks.verify.fault import Fault, attempt

AGAIN = "prepare the folder again"
FETCH = "make the corpus again with `bathy corpus`, or restore a copy"


def check_data(folder: Path) -> Iterator[Fault]:
    """Manifest, tokenizer, and every array: checksums, lengths, ids within the vocabulary, EOS at each end."""
    faults = attempt(folder / "manifest.json", partial(read_manifest, folder))
    yield from faults
    yield from attempt(folder / "text.json", partial(_check_vocab, folder, None if faults else read_manifest(folder)), AGAIN)
    if not faults:
        manifest = read_manifest(folder)
        for split, facts in manifest["splits"].items():
            for name, value in {**facts["source"]["sha256"], **facts["target"]["sha256"]}.items():
                if not (folder / name).is_file():
                    yield Fault(folder / name, "missing", AGAIN)
                elif digest(folder / name) != value:
                    yield Fault(folder / name, "damaged (its checksum is not the manifest's)", AGAIN)
            yield from attempt(folder / split, partial(_check_split, folder, split))


def _check_vocab(folder: Path, manifest: Manifest | None) -> None:
    codec = Codec.load(folder)
    if manifest is not None and codec.vocab != manifest["vocab"]:
        raise BathyError(f"the tokenizer has {codec.vocab} entries, the manifest says {manifest['vocab']}")


def _check_split(folder: Path, name: str) -> None:
    split = Split(folder, name)
    for side in (split.source, split.target):
        _check_side(side)


def _check_side(side: Side) -> None:
    """Read everything, which verifies every block and id; then the ends of the sentences."""
    offsets, _ = np.asarray(side.offsets), side.lengths
    ends = np.asarray(side.ids)[offsets[1:] - 1]
    if len(wrong := np.flatnonzero(ends != EOS)):
        raise BathyError(f"sentence {int(wrong[0]) + 1} does not end with EOS; {AGAIN}")


def repair_data(folder: Path) -> Iterator[str]:
    """Prepare the folder again from its raw text, where the manifest still says how and the text is still what it was."""
    try:
        settings = read_manifest(folder)["settings"]
        config = Preparing(data=DataConfig(path=str(folder), **settings["data"]), prepare=PrepareConfig(**settings["prepare"]))
    except BathyError:
        yield f"{folder} cannot be repaired: its manifest is damaged; run the `bathy prepare` that made it"
        return
    if changed := [row["path"] for row in read_manifest(folder)["inputs"] if not _unchanged(row)]:
        yield f"{folder} cannot be repaired: {changed[0]} is no longer the text it was prepared from"
        return
    from bathy.tasks.translation.prepare import prepare

    prepare(config)
    yield f"prepared {folder} again from {config.prepare.raw}"


def _unchanged(row: dict[str, Any]) -> bool:
    from bathy.tasks.translation.prepare.inputs import inspect

    path = Path(row["path"])
    try:
        return path.is_file() and inspect(path).sha256 == row["sha256"]
    except BathyError:
        return False


class CorpusSplit(BaseModel):
    """What corpus.json says of a split."""

    lines: int
    sha256: dict[str, str]


class Corpus(BaseModel):
    """corpus.json, as far as it can be checked."""

    corpus: str
    source: str
    target: str
    splits: dict[str, CorpusSplit]


def check_corpus(folder: Path) -> Iterator[Fault]:
    """corpus.json, and every file's checksum and line count."""
    path = folder / "corpus.json"
    faults = attempt(path, partial(read_json, path, Corpus), FETCH)
    yield from faults
    if faults:
        return
    corpus: Corpus = read_json(path, Corpus)
    for row in corpus.splits.values():
        for name, value in row.sha256.items():
            yield from _check_file(folder / name, value, row.lines)


def _check_file(path: Path, sha256: str, lines: int) -> Iterator[Fault]:
    if not path.is_file():
        yield Fault(path, "missing", FETCH)
        return
    try:
        found = count_lines(path)
    except (OSError, EOFError, zlib.error, LZMAError) as error:
        yield Fault(path, f"cannot be read ({error})", FETCH)
        return
    if found != lines:
        yield Fault(path, f"has {found:,} lines, corpus.json says {lines:,}", FETCH)
    elif digest(path) != sha256:
        yield Fault(path, "damaged (its checksum is not that of corpus.json)", FETCH)
