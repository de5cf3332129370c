"""Files that are whole or not there, and what made them.

with replacing(path) as temporary: ...      # written beside, synced, renamed; devices and FIFOs are written to directly
with replacing_folder(path) as folder: ...  # the same for a folder
check_output(path); check_folder(path)      # before work begins: can it be written at all?
with lock_folder(path): ...                 # alone in a folder; what a killed process left there is removed
write_json(path, value, seal=True); read_json(path, kind)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bathy.errors import DataError, InUse, explain, redact, redact_words

SEAL = "seal"
"""The key under which a sealed JSON file keeps the checksum of everything else in it."""


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, sha256: str) -> None:
    """An error unless the file is there and has the SHA-256 that was recorded when it was written."""
    with explained(path):
        if digest(path) != sha256:
            raise DataError(f"{path} is damaged: it is not what was written (its checksum differs); restore or make it again")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the file system refuses (no space, no permission) into a DataError of one line."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise DataError(explain(error, path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to: a temporary file that takes `path`'s place when the block ends and is removed if it raises.

    A link keeps pointing to its file, which is replaced; what is not a regular file (a device, a FIFO) is written to.
    """
    path = _followed(path)
    if _special(path):
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that the user knows
        raise


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `path` when the block ends and is removed if it raises."""
    temporary = _temporary(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _followed(path: Path) -> Path:
    """What a link leads to, whether it is there or not; one that leads back to itself stays and fails when it is opened."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _special(path: Path) -> bool:
    """Whether something is there that is neither a regular file nor a folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name[:40]}.{platform.node()[:20]}.{os.getpid()}.tmp")


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files and folders for `path` that killed processes of this machine left beside it."""
    if os.name == "nt":
        return
    start = f".{path.name[:40]}.{platform.node()[:20]}."
    with suppress(OSError):  # a folder that cannot be listed
        for left in path.parent.iterdir():
            if left.name.startswith(start) and abandoned(left):
                remove(left)


def abandoned(path: Path) -> bool:
    """Whether a name is one of `_temporary`, of a process that no longer runs: others' `.tmp` files are none of ours."""
    named = re.fullmatch(r"\.(?P<name>.+)\.(?P<process>\d{1,9})\.tmp", path.name)
    return named is not None and not (named["name"].endswith(platform.node()[:20]) and _alive(int(named["process"])))


def _alive(process: int) -> bool:
    if os.name == "nt":  # os.kill would end the process it asks about
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_output(*paths: Path | None) -> None:
    """An error for the first file that could not be written, found by trying; what killed processes left there is removed."""
    for path in filter(None, paths):
        with explained(path):
            place = _followed(path)
            _remove_leftovers(place)
            if _special(place):
                if not os.access(place, os.W_OK):
                    raise DataError(f"{path} cannot be written to; choose a different file")
            elif place.is_dir():
                raise DataError(f"{path} is a folder; give the name of a file")
            else:
                _try_in(place.parent)
                if place.exists() and not os.access(place, os.W_OK):
                    raise DataError(f"{path} is write-protected; choose a different file, or change its permissions")


def check_folder(*paths: Path | None) -> None:
    """An error for the first folder that could not be written, found by trying; what killed processes left is removed."""
    for path in filter(None, paths):
        with explained(path):
            _remove_leftovers(path)
            if path.exists() and not path.is_dir():
                raise DataError(f"{path} is not a folder; choose a different place")
            _try_in(path)


def _try_in(folder: Path) -> None:
    """Make the folder and a file in it, then remove what was made."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    trial = _temporary(folder / "trial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
    finally:
        trial.unlink(missing_ok=True) if folder.is_dir() else None
        for place in missing:
            with suppress(OSError):
                place.rmdir()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """A block in which no other process may lock the folder; what killed ones left there unfinished is removed first.

    A process that ends, however it ends, gives its lock back.
    """
    from filelock import FileLock, Timeout

    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise InUse(f"{folder} is in use by another process; wait until it ends, or choose a different folder") from None
    try:
        for left in filter(abandoned, [*folder.rglob(".*.tmp")]):
            remove(left)
        yield
    finally:
        lock.release()


def when_free(act: Callable[[], object]) -> None:
    """Do what locks a folder, as soon as no other process has it."""
    while True:
        try:
            act()
            return
        except InUse:
            time.sleep(1.0)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, all of it or none."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any, seal: bool = False) -> None:
    """Write `value` as readable JSON, all of it or none; sealed, a changed byte is noticed when it is read."""
    value = {**value, SEAL: _seal(value)} if seal else value
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _seal(value: dict[str, Any]) -> str:
    rest = {key: part for key, part in value.items() if key != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def is_sealed(path: Path) -> bool:
    """Whether a JSON file says that it has a seal, whatever else is wrong with it."""
    return path.is_file() and f'"{SEAL}":'.encode() in path.read_bytes()


def read_json(path: Path, kind: Any = dict[str, Any], advice: str = "") -> Any:
    """The JSON file as `kind` (a type that pydantic knows), its seal checked; anything else is a DataError with advice."""
    from pydantic import TypeAdapter, ValidationError

    way_out = f"; {advice}" if advice else ""
    try:
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{explain(error, path)}{way_out}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, numbers of thousands of digits, nested too deep
        raise DataError(f"{path} is not JSON that can be read ({type(error).__name__}: {error}){way_out}") from None
    if isinstance(value, dict) and SEAL in value and value.pop(SEAL) != _seal(value):
        raise DataError(f"{path} is damaged: it is not what was written (its seal differs){way_out}")
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise DataError(f"{path} is not what it should be: {place}: {first['msg']}{way_out}") from None


def origin(**settings: Any) -> dict[str, Any]:
    """What made a result: the command (of absolute paths the last name; no secrets), versions, the machine, the settings."""
    versions = {"python": platform.python_version()}
    for package in ("bathy", "torch", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m bathy
    words = redact_words(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    return {
        "command": redact(" ".join([name, *words])),
        "versions": versions,
        "machine": ", ".join(filter(None, [processor("model name"), platform.machine(), f"{os.cpu_count()} cores"])),
        **settings,
    }


@cache
def processor(what: str) -> str:
    """What the processor says of itself, such as its vendor_id, or nothing where that is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(what)), "")
