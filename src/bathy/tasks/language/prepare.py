"""`bathy prepare` for language modelling: text to streams of token ids.

    files ──documents──▶ train and valid ──vocabulary──▶ tokenizer.json ──encode──▶ train.ids.npy …, manifest.json

Texts are read one by one, twice: for the vocabulary and for the ids. The manifest is written last and says that all is whole;
with the same text and settings, and nothing damaged, nothing is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bathy.console import err, progress, warn
from bathy.errors import ConfigError, DataError
from bathy.files import check_folder, digest, explained, lock_folder, origin, replacing, write_json
from bathy.tasks.blocks import block_sums
from bathy.tasks.language.codec import (
    FILES,
    Codec,
    bytes_codec,
    characters_codec,
    learn_bpe,
    read_tokenizer,
)
from bathy.tasks.language.data import Manifest, SplitFacts, damaged_files, read_manifest
from bathy.tasks.language.settings import PrepareConfig, Preparing
from bathy.tasks.language.text import Reading, documents, files, find_splits

FORMAT = 1
"""Part of the key: a new number here makes all data folders be prepared again."""
TRIED = 20
"""Documents that are encoded and decoded to see whether they come back."""


def prepare(config: Preparing) -> Manifest:
    """Make `data.path` from `prepare.raw`; returns the manifest."""
    folder = Path(config.data.path)
    if not config.prepare.raw:
        raise ConfigError(
            "prepare.raw is missing; it names a file or folder of text, e.g. from `bathy corpus stdlib raw/stdlib`"
        )
    corpus = Corpus(Path(config.prepare.raw), config.prepare)
    check_folder(folder)
    with explained(folder), lock_folder(folder):
        key = preparation_key(corpus, config)
        return _current(folder, key) or _write(folder, corpus, config, key)


class Corpus:
    """The texts of a raw file or folder, split by split; a validation split is held out where there is none."""

    def __init__(self, raw: Path, config: PrepareConfig) -> None:
        self.places, self.config = find_splits(raw), config
        self.reading = Reading(config.field, config.endings, config.invalid)
        self.paths = {split: files(place, config.endings) for split, place in self.places.items()}
        self.held_out = "valid" not in self.places
        self.every = round(1 / config.valid_share)
        self.whole = self.held_out and sum(1 for _ in islice(self._documents("train"), self.every)) >= self.every
        """Whether whole documents are held out; of few, the end of each."""

    @property
    def splits(self) -> list[str]:
        """The splits, the held-out one included."""
        return [*self.places, *(["valid"] if self.held_out else [])]

    def texts(self, split: str) -> Iterator[str]:
        """The documents of a split."""
        if not self.held_out or split not in ("train", "valid"):
            yield from self._documents(split)
            return
        for number, text in enumerate(self._documents("train"), 1):
            if self.whole and (number % self.every == 0) == (split == "valid"):
                yield text
            elif not self.whole:
                cut = int(len(text) * (1 - self.config.valid_share))
                if part := text[:cut] if split == "train" else text[cut:]:
                    yield part

    def _documents(self, split: str) -> Iterator[str]:
        return documents(self.places[split], self.reading)

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie there."""
        return sum(path.stat().st_size for paths in self.paths.values() for path in paths)


def preparation_key(corpus: Corpus, config: Preparing) -> str:
    """A hash of the settings and of all files, which tells whether anything changed."""
    sums = {split: [digest(path) for path in paths] for split, paths in corpus.paths.items()}
    settings = config.prepare.model_dump(exclude={"raw", "tokenizer"}) | {"vocab": config.data.vocab}
    given = digest(Path(config.prepare.tokenizer)) if config.prepare.tokenizer else ""
    return hashlib.sha256(json.dumps([FORMAT, sums, settings, given], sort_keys=True).encode()).hexdigest()[:16]


def _current(folder: Path, key: str) -> Manifest | None:
    """The manifest, if it has this key and all its files are what was written."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        manifest = read_manifest(folder)
        if manifest["key"] != key:
            return None
        Codec.load(folder)
        wrong = damaged_files(folder, manifest)
    except DataError as error:
        err.print(f"preparing the folder again: {error}", markup=False)
        return None
    if wrong:
        err.print(f"preparing the folder again: {folder / wrong[0]} is damaged or missing", markup=False)
    return None if wrong else manifest


def _write(folder: Path, corpus: Corpus, config: Preparing, key: str) -> Manifest:
    for split in corpus.splits:
        if next(corpus.texts(split), None) is None:
            raise DataError(
                f"{config.prepare.raw} has no text for the {split} split; give it more, or change prepare.valid_share"
            )
    codec = make_codec(corpus.texts("train"), config)
    if not any(len(codec.encode(text)) for text in islice(corpus.texts("train"), TRIED)):
        raise DataError(f"{config.prepare.tokenizer} finds no token in the text; give a tokenizer whose vocabulary fits it")
    _remove_old(folder)
    codec.save(folder)
    splits = {split: _encode(folder, split, corpus, codec) for split in corpus.splits}
    share = round_trip(codec, corpus.texts("train"))
    if share < 1:
        warn(
            f"{1 - share:.0%} of {TRIED} documents do not come back exactly from {config.prepare.tokenizer or 'the vocabulary'}"
        )
    manifest: Manifest = {
        "format": FORMAT,
        "kind": "language",
        "vocab": codec.vocab,
        "splits": splits,
        "round_trip": share,
        "settings": {"data": {"vocab": config.data.vocab}, "prepare": config.prepare.model_dump(mode="json")},
        "key": key,
        "origin": origin(),
    }
    write_json(folder / "manifest.json", dict(manifest), seal=True)
    return manifest


def make_codec(texts: Iterable[str], config: Preparing) -> Codec:
    """The vocabulary that the config asks for, learned from the texts where it has to be."""
    if config.prepare.tokenizer:
        return Codec(read_tokenizer(Path(config.prepare.tokenizer)), whole=True)
    match config.prepare.vocabulary:
        case "byte":
            return bytes_codec()
        case "character":
            return characters_codec(texts)
        case _:
            return learn_bpe(texts, config.data.vocab)


def round_trip(codec: Codec, texts: Iterable[str]) -> float:
    """Share of the first documents that decoding gives back exactly."""
    tried = [text[:10_000] for text in islice(texts, TRIED)]
    return sum(codec.decode(codec.encode(text)) == text for text in tried) / max(1, len(tried))


def _encode(folder: Path, split: str, corpus: Corpus, codec: Codec) -> SplitFacts:
    """Write a split's ids and offsets; what the manifest says of them."""
    kind = np.uint16 if codec.vocab <= 1 << 16 else np.uint32
    counts = dict.fromkeys(("documents", "characters", "bytes", "unknown"), 0)
    offsets, length = [0], 1
    end = np.array([codec.end], kind)
    paths = [folder / f"{split}.{what}.npy" for what in ("ids", "offsets")]
    with replacing(paths[0]) as temporary, temporary.open("wb") as file, progress(f"encoding {split}") as advance:
        _header(file, kind, 0)
        file.write(end.tobytes())
        for text in corpus.texts(split):
            ids = np.concatenate([codec.encode(text).astype(kind), end])
            file.write(ids.tobytes())
            length += len(ids)
            offsets.append(length - 1)
            unknown = 0 if codec.unknown is None else int((ids == codec.unknown).sum())
            found = {"documents": 1, "characters": len(text), "bytes": len(text.encode()), "unknown": unknown}
            counts = {name: value + found[name] for name, value in counts.items()}
            advance()
        file.seek(0)
        _header(file, kind, length)
    with replacing(paths[1]) as temporary, temporary.open("wb") as file:
        np.save(file, np.array(offsets, np.int64))
    sums = {path.name: digest(path) for path in paths}
    blocks = {path.name: block_sums(path) for path in paths}
    return SplitFacts(tokens=length - 1, sha256=sums, blocks=blocks, **counts)  # type: ignore[typeddict-item]


def _header(file: BinaryIO, kind: npt.DTypeLike, length: int) -> None:
    """The head of a .npy file; NumPy pads it so that any length fits in the same place."""
    description: dict[str, Any] = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**description, "shape": (length,)})


def _remove_old(folder: Path) -> None:
    """Remove the files of an earlier preparation, the manifest first."""
    for path in [
        folder / "manifest.json",
        *(folder / name for name in FILES),
        *folder.glob("*.ids.npy"),
        *folder.glob("*.offsets.npy"),
    ]:
        with suppress(FileNotFoundError):
            path.unlink()
