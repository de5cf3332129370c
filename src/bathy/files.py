"""Files that are whole or not there: written under a temporary name, then renamed; folders held alone; what made them."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bathy.errors import DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which takes `path`'s place when the block ends and is removed if it raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses (no space, no permission) into a DataError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left for {folder}; free some and run again, finished parts are kept") from None
        if error.filename is None:
            raise
        raise DataError(f"{error.filename}: {error.strerror}") from None


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `path` when the block ends and is removed if it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A block in which no other process may hold the folder; a process that ends, however it ends, lets go."""
    if fcntl is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process works in {folder}; wait until it ends, or take another folder") from None
        yield


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, all of it or none."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, all of it or none."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def origin(**settings: Any) -> dict[str, Any]:
    """What made a result: the command (of absolute paths the last name), versions, the machine's kind, the given settings."""
    versions = {"python": platform.python_version()}
    for package in ("bathy", "torch", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m bathy
    command = " ".join([name, *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])])
    return {
        "command": command,
        "versions": versions,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **settings,
    }
