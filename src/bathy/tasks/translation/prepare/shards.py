"""Finished work that can be trusted: files whose checksums stand in a sealed JSON file, which is written last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bathy.errors import DataError
from bathy.files import digest, read_json, write_json


def finish(folder: Path, name: str, files: Sequence[str], **account: Any) -> None:
    """Say that the files are whole: `name`.json with their checksums and whatever else is to be said of them."""
    sums = {file: digest(folder / file) for file in files}
    write_json(folder / f"{name}.json", {**account, "sha256": sums}, seal=True)


def account(folder: Path, name: str) -> dict[str, Any]:
    """What finished work says of itself."""
    return read_json(folder / f"{name}.json", advice="run the same command again")


def is_finished(folder: Path, name: str) -> bool:
    """Whether the work was finished and all its files are still what was written."""
    if not (folder / f"{name}.json").exists():
        return False
    try:
        sums = account(folder, name)["sha256"]
        return all(digest(folder / file) == value for file, value in sums.items())
    except (DataError, OSError, KeyError, AttributeError):
        return False
