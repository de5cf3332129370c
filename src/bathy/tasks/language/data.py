"""A data folder of language modelling, opened: streams of token ids that are memory-mapped, and verified when they are read.

    manifest.json  tokenizer.json  text.json
    train.ids.npy       ␄ document ␄ document … ␄, uint16 or uint32; ␄ is the end-of-document token
    train.offsets.npy   where each document's ␄ stands, the last one included

A folder with nanoGPT's train.bin and val.bin (uint16 or uint32, no header) can be read too, with data.vocab ids; its meta.pkl
is never opened: a pickle can run anything. A tokenizer.json beside them makes samples and packed documents possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from bathy.errors import DataError, nearest
from bathy.files import digest, read_json
from bathy.tasks.blocks import BlockArray
from bathy.tasks.language.codec import Codec, read_tokenizer
from bathy.tasks.language.settings import DataConfig

AGAIN = "prepare the folder again"
HEAD = 1 << 14
"""Bytes of a .bin file that tell uint16 from uint32."""
BIN = {"train": "train.bin", "valid": "val.bin", "test": "test.bin"}
"""Split to nanoGPT's name for it."""


class SplitFacts(TypedDict):
    """What the manifest says of a split."""

    documents: int
    tokens: int
    """Document ends included, but for the one at the very start."""
    characters: int
    bytes: int
    unknown: int
    sha256: dict[str, str]
    blocks: dict[str, str]
    """File name to the checksums of its blocks."""


@with_config(ConfigDict(extra="forbid"))
class Manifest(TypedDict):
    """`manifest.json`: what a data folder holds and what made it."""

    format: int
    kind: str
    vocab: int
    splits: dict[str, SplitFacts]
    round_trip: float
    settings: dict[str, dict[str, Any]]
    key: str
    origin: dict[str, Any]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished data folder."""
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"{folder} is not a data folder: `bathy prepare` writes one (or put train.bin and val.bin there)")
    return read_json(path, Manifest, AGAIN)


def fingerprint(folders: Iterable[Path]) -> list[str]:
    """What tells whether the folders hold the same data: the key of their preparation, or a file's checksum."""
    return [
        read_manifest(folder)["key"] if (folder / "manifest.json").exists() else digest(folder / BIN["train"])
        for folder in folders
    ]


class BinArray:
    """nanoGPT's stream of uint16 ids, or one of uint32, mapped; ids beyond the vocabulary are an error where they are read."""

    def __init__(self, path: Path, below: int) -> None:
        if not path.is_file():
            raise DataError(f"{path} is missing; nanoGPT's prepare.py writes it")
        kind = _bin_kind(path, below)
        if not path.stat().st_size or path.stat().st_size % kind.itemsize:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, which are no {kind} token ids; write it again")
        self.path, self.below = path, below
        self.array: npt.NDArray[Any] = np.memmap(path, kind, mode="r")

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, places: Any) -> Any:
        found = self.array[places]
        if np.size(found) and int(np.max(found)) >= self.below:
            raise DataError(f"{self.path} has the id {int(np.max(found))}; set data.vocab above its largest (now {self.below})")
        return found


def _bin_kind(path: Path, below: int) -> np.dtype[Any]:
    """uint16, as nanoGPT has it; uint32 where the vocabulary needs it, or where every second half of the file's head is 0."""
    with path.open("rb") as file:
        content = np.frombuffer(file.read(HEAD), np.uint8)
    wide = len(content) % 4 == 0 and len(content) >= 64 and not content.reshape(-1, 4)[:, 2:].any() and bool(content.any())
    return np.dtype(np.uint32 if wide or below > 1 << 16 else np.uint16)


class TextStream:
    """A split of a data folder: one long stream of ids."""

    def __init__(self, folder: Path, split: str, vocab: int = 0) -> None:
        self.folder, self.name = folder, split
        self.codec = _codec(folder)
        self.ids: BlockArray | BinArray
        self.facts: SplitFacts | None
        if (folder / "manifest.json").exists() or not (folder / BIN["train"]).exists():
            self.facts, self.vocab = _facts(folder, split)
            self.ids = self._open("ids", self.vocab)
            if len(self.ids) != self.facts["tokens"] + 1:
                raise DataError(f"{folder}: {split}.ids.npy has {len(self.ids):,} ids, not as many as prepared; {AGAIN}")
        else:
            self.facts, self.vocab = None, vocab
            self.ids = BinArray(folder / BIN.get(split, f"{split}.bin"), vocab)

    def _open(self, what: str, below: int | None = None) -> BlockArray:
        assert self.facts
        name = f"{self.name}.{what}.npy"
        return BlockArray(self.folder / name, self.facts["blocks"].get(name), below=below)

    def __len__(self) -> int:
        """Tokens that can be predicted: all but the first."""
        return len(self.ids) - 1

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text for each token; 0 where nobody counted them."""
        return self.facts["bytes"] / len(self) if self.facts else 0.0

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each document begins, and the end of the last."""
        if self.facts:
            return np.asarray(self._open("offsets"), np.int64)
        if self.codec is None:
            raise DataError(
                f"{self.folder} has no tokenizer.json, so nothing says where documents end; put one there, or set "
                "data.windows = 'random'"
            )
        found = np.flatnonzero(np.asarray(self.ids[:]) == self.codec.end)
        return np.unique(np.concatenate([[0], found, [len(self.ids) - 1]]))


def open_stream(config: DataConfig, split: str) -> TextStream:
    """The split of the config's data folder."""
    return TextStream(Path(config.path), split, config.vocab)


def _facts(folder: Path, split: str) -> tuple[SplitFacts, int]:
    manifest = read_manifest(folder)
    if split not in manifest["splits"]:
        known = ", ".join(manifest["splits"])
        raise DataError(f"{folder} has no split {split}; it has {known}.{nearest(split, manifest['splits'])}")
    return manifest["splits"][split], manifest["vocab"]


def _codec(folder: Path) -> Codec | None:
    if (folder / "text.json").exists():
        return Codec.load(folder)
    return Codec(read_tokenizer(folder / "tokenizer.json"), whole=True) if (folder / "tokenizer.json").exists() else None


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """The files of a data folder that are missing or not what was prepared, by name."""
    expected = {name: value for row in manifest["splits"].values() for name, value in row["sha256"].items()}
    return [name for name, value in expected.items() if not (folder / name).is_file() or digest(folder / name) != value]


def verify(folder: Path, manifest: Manifest) -> None:
    """An error for the first file whose checksum is not the manifest's."""
    if wrong := damaged_files(folder, manifest):
        raise DataError(f"{folder / wrong[0]} is not what was prepared (its checksum differs); {AGAIN}")
