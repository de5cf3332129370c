"""Checksums of an exported folder: `checksums.json`, file name to SHA-256, written last, checked before the folder is used."""

from __future__ import annotations

from pathlib import Path

from bathy.errors import CheckpointError, DataError
from bathy.files import digest, read_json, write_json

SUMS = "checksums.json"

_checked: dict[Path, object] = {}
"""Folders found intact, with the sizes and times of their files then: each is read once per process."""


def write_sums(folder: Path) -> None:
    """Write the checksums of all files of the folder, subfolders included."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    write_json(folder / SUMS, {"sha256": {name: digest(folder / name) for name in names}}, seal=True)


def check_sums(folder: Path) -> None:
    """Refuse a folder with a file that is not what was written; folders of version 0.1 have no checksums and pass."""
    if not (folder / SUMS).exists():
        return
    stamp = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))]
    if _checked.get(folder.resolve()) == stamp:
        return
    if fault := _fault(folder):
        raise CheckpointError(f"{folder} is damaged ({fault}); restore a copy, or export it again")
    _checked[folder.resolve()] = stamp


def _fault(folder: Path) -> str:
    try:
        sums = read_json(folder / SUMS, dict[str, dict[str, str]]).get("sha256", {})
        wrong = [name for name, value in sums.items() if digest(folder / name) != value]
    except DataError:
        return f"{SUMS} is not what was written"
    except OSError as error:
        return f"{Path(error.filename or SUMS).name} cannot be read"
    return f"{wrong[0]} is not what was written" if wrong else "" if sums else f"{SUMS} lists no file"
