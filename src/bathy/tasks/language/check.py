"""Data and corpus folders of language models, checked whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from bathy.errors import BathyError
from bathy.files import digest, read_json
from bathy.tasks.language.codec import Codec
from bathy.tasks.language.data import TextStream, damaged_files, read_manifest
from bathy.tasks.language.prepare import Corpus, preparation_key, prepare
from bathy.tasks.language.settings import DataConfig, PrepareConfig, Preparing
from bathy.tasks.verify.fault import Fault, attempt

AGAIN = "prepare the folder again"
FETCH = "make the corpus again with `bathy corpus`, or restore a copy"


def check_data(folder: Path) -> Iterator[Fault]:
    """Manifest, tokenizer, and every stream: checksums, lengths, ids within the vocabulary, documents between their ends."""
    faults = attempt(folder / "manifest.json", partial(read_manifest, folder))
    codec = attempt(folder / "text.json", partial(Codec.load, folder), AGAIN)
    yield from faults + codec
    if faults:
        return
    manifest = read_manifest(folder)
    for name in damaged_files(folder, manifest):
        yield Fault(folder / name, "missing or damaged (its checksum is not the manifest's)", AGAIN)
    for split in manifest["splits"] if not codec else []:
        yield from attempt(folder / split, partial(_check_split, folder, split))


def _check_split(folder: Path, split: str) -> None:
    """Read everything, which verifies every block and id; then where documents end."""
    stream = TextStream(folder, split)
    assert stream.codec
    if not np.array_equal(np.flatnonzero(np.asarray(stream.ids) == stream.codec.end), stream.starts):
        raise BathyError(f"documents do not begin where {split}.offsets.npy says; {AGAIN}")


def repair_data(folder: Path) -> Iterator[str]:
    """Prepare the folder again from its raw text, where the manifest still says how and the text is still what it was."""
    try:
        manifest = read_manifest(folder)
        settings = manifest["settings"]
        config = Preparing(data=DataConfig(path=str(folder), **settings["data"]), prepare=PrepareConfig(**settings["prepare"]))
        if preparation_key(Corpus(Path(config.prepare.raw), config.prepare), config) != manifest["key"]:
            raise BathyError(f"{config.prepare.raw} is no longer the text it was prepared from")
        prepare(config)
    except BathyError as error:
        yield f"{folder} cannot be repaired: {error}; run the `bathy prepare` that made it"
        return
    yield f"prepared {folder} again from {config.prepare.raw}"


class CorpusSplit(BaseModel):
    """What corpus.json says of a split."""

    documents: int
    sha256: str


class CorpusFacts(BaseModel):
    """corpus.json, as far as it can be checked."""

    corpus: str
    splits: dict[str, CorpusSplit]


def check_corpus(folder: Path) -> Iterator[Fault]:
    """corpus.json, and every file's checksum."""
    path = folder / "corpus.json"
    faults = attempt(path, partial(read_json, path, CorpusFacts), FETCH)
    yield from faults
    corpus: CorpusFacts | None = None if faults else read_json(path, CorpusFacts)
    for split, row in corpus.splits.items() if corpus else ():
        file = folder / f"{split}.jsonl"
        if not file.is_file():
            yield Fault(file, "missing", FETCH)
        elif digest(file) != row.sha256:
            yield Fault(file, "damaged (its checksum is not that of corpus.json)", FETCH)
