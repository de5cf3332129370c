"""A data folder, opened: memory-mapped ids and offsets, whatever its size, in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bathy.errors import DataError, nearest
from bathy.nmt.corpora.layout import digest

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished data folder."""
    path = folder / "manifest.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "its preparation is not finished; run it again" if (folder / ".work").exists() else "`bathy prepare` writes one"
        raise DataError(f"{folder} is not a data folder: {hint}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


class Side:
    """One side of a split: sentence i is `ids[offsets[i]:offsets[i + 1]]`, its end mark included."""

    def __init__(self, folder: Path, split: str, side: str) -> None:
        self.ids: Ids = _mapped(folder / f"{split}.{side}.ids.npy")
        self.offsets: npt.NDArray[np.int64] = _mapped(folder / f"{split}.{side}.offsets.npy")
        if not len(self.offsets) or self.offsets[-1] != len(self.ids):
            raise DataError(f"{folder / split}.{side}: ids and offsets do not belong together; prepare the folder again")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sentence, end mark included."""
        return np.diff(self.offsets).astype(np.int32)


class Split:
    """A split of a data folder, both sides."""

    def __init__(self, folder: Path, split: str) -> None:
        manifest = read_manifest(folder)
        if split not in manifest["splits"]:
            known = ", ".join(manifest["splits"])
            raise DataError(f"{folder} has no split {split}; it has {known}.{nearest(split, manifest['splits'])}")
        self.folder, self.name, self.manifest = folder, split, manifest
        self.source, self.target = Side(folder, split, "source"), Side(folder, split, "target")
        if len(self.source) != len(self.target):
            raise DataError(f"{folder}: {split} has {len(self.source)} source and {len(self.target)} target sentences")

    def __len__(self) -> int:
        return len(self.source)


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """An error for the first file whose checksum is not the manifest's."""
    sums = {
        name: value
        for row in manifest["splits"].values()
        for side in ("source", "target")
        for name, value in row[side]["sha256"].items()
    }
    for name, value in sums.items():
        if digest(folder / name) != value:
            raise DataError(f"{folder / name} is not what was prepared (its checksum differs); prepare the folder again")


def _mapped(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); prepare the folder again") from None
