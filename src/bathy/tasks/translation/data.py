"""A data folder, opened: memory-mapped ids and offsets, whatever its size, in milliseconds; read, they are verified."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from bathy.errors import DataError, nearest
from bathy.files import digest, read_json
from bathy.tasks.blocks import BlockArray

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
AGAIN = "prepare the folder again"


class SideFacts(TypedDict):
    """What the manifest says of one side of a split."""

    tokens: int
    unknown: int
    unknown_rate: float
    mean: float
    median: int
    p99: int
    longest: int
    sha256: dict[str, str]
    blocks: NotRequired[dict[str, str]]
    """File name to the checksums of its blocks; folders of version 0.1 have none."""


class SplitFacts(TypedDict):
    """What the manifest says of a split."""

    sentences: int
    source: SideFacts
    target: SideFacts
    lines: NotRequired[int]
    dropped: NotRequired[dict[str, int]]
    cut: NotRequired[int]


@with_config(ConfigDict(extra="forbid"))
class Manifest(TypedDict):
    """`manifest.json`: what a data folder holds and what made it."""

    format: int
    vocab: int
    splits: dict[str, SplitFacts]
    round_trip: dict[str, float]
    settings: dict[str, dict[str, Any]]
    inputs: list[dict[str, Any]]
    keys: dict[str, str]
    origin: dict[str, Any]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished data folder."""
    path = folder / "manifest.json"
    if not path.exists():
        unfinished = (folder / ".work").exists()
        hint = "its preparation is not finished; run it again" if unfinished else "`bathy prepare` writes one"
        raise DataError(f"{folder} is not a data folder: {hint}")
    return read_json(path, Manifest, AGAIN)


def fingerprint(folders: Iterable[Path]) -> list[dict[str, str]]:
    """What tells whether the folders hold the same data: the keys of their preparation."""
    return [read_manifest(folder)["keys"] for folder in folders]


class Side:
    """One side of a split: sentence i is `ids[offsets[i]:offsets[i + 1]]`, EOS included."""

    def __init__(self, folder: Path, split: str, side: str, facts: SideFacts, vocab: int) -> None:
        self.name = f"{folder / split}.{side}"
        self.ids = self._open(folder / f"{split}.{side}.ids.npy", facts, vocab)
        self.offsets = self._open(folder / f"{split}.{side}.offsets.npy", facts)
        if len(self.ids) != facts["tokens"] or not len(self.offsets) or self.offsets[-1] != len(self.ids):
            raise DataError(f"{self.name}: ids and offsets do not belong together; {AGAIN}")

    def _open(self, path: Path, facts: SideFacts, below: int | None = None) -> BlockArray:
        return BlockArray(path, facts.get("blocks", {}).get(path.name), facts["sha256"].get(path.name, ""), below)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sentence, EOS included."""
        lengths = np.diff(self.offsets)
        if len(lengths) and lengths.min() < 1:
            raise DataError(f"{self.name}: sentence {int(lengths.argmin()) + 1} has no tokens; {AGAIN}")
        return lengths.astype(np.int32)


class Split:
    """A split of a data folder, both sides."""

    def __init__(self, folder: Path, split: str) -> None:
        manifest = read_manifest(folder)
        if split not in manifest["splits"]:
            known = ", ".join(manifest["splits"])
            raise DataError(f"{folder} has no split {split}; it has {known}.{nearest(split, manifest['splits'])}")
        self.folder, self.name, self.manifest = folder, split, manifest
        facts, vocab = manifest["splits"][split], manifest["vocab"]
        self.source = Side(folder, split, "source", facts["source"], vocab)
        self.target = Side(folder, split, "target", facts["target"], vocab)
        if len(self.source) != len(self.target) or len(self.source) != facts["sentences"]:
            raise DataError(f"{folder}: {split} has {len(self.source)} source and {len(self.target)} target sentences; {AGAIN}")

    def __len__(self) -> int:
        return len(self.source)


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """The files of a data folder that are missing or not what was prepared, by name."""
    sides = [facts for row in manifest["splits"].values() for facts in (row["source"], row["target"])]
    expected = {name: value for facts in sides for name, value in facts["sha256"].items()}
    return [name for name, value in expected.items() if not (folder / name).is_file() or digest(folder / name) != value]


def verify(folder: Path, manifest: Manifest) -> None:
    """An error for the first file whose checksum is not the manifest's."""
    if wrong := damaged_files(folder, manifest):
        raise DataError(f"{folder / wrong[0]} is not what was prepared (its checksum differs); {AGAIN}")
