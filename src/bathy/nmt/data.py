"""A data folder, opened: memory-mapped ids and offsets, whatever its size, in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from bathy import console
from bathy.errors import DataError, nearest

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


def summary(folder: Path, manifest: dict[str, Any]) -> Table:
    """Counts, lengths and losses of a data folder, one row a split and side."""
    columns = ["split", "side", "sentences", "tokens", "mean", "median", "p99", "longest", "unknown %", "dropped", "cut"]
    rows = []
    for split, row in manifest["splits"].items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in row.get("dropped", {}).items()) or "–"
        for side in ("source", "target"):
            facts = row[side]
            lengths = [facts[name] for name in ("mean", "median", "p99", "longest")]
            counts = [row["sentences"], facts["tokens"], *lengths, round(100 * facts["unknown_rate"], 4)]
            rows.append(
                [split, side, *counts, dropped if side == "source" else "", row.get("cut", 0) if side == "source" else ""]
            )
    return console.table(f"{folder}: vocabulary {manifest['vocab']:,}", columns, rows)


def _mapped(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); prepare the folder again") from None
