"""Downloads that survive broken connections: resumed where they stopped, checked, and remembered."""

from __future__ import annotations

import hashlib
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from lzma import LZMAError
from pathlib import Path
from shutil import copyfileobj

from typing_extensions import TypedDict

from bathy.console import progress
from bathy.errors import DataError
from bathy.files import digest, read_json, replacing, write_json

ATTEMPTS = 5
PATIENCE = 30.0
"""Seconds without a byte until a connection counts as broken."""
BLOCK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file to fetch. Size and SHA-256 only where a source that can be cited publishes them."""

    url: str
    size: int = 0
    sha256: str = ""
    published: str = ""
    """Where size and checksum are published."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def fetch(remote: Remote, folder: Path, patience: float = PATIENCE) -> Path:
    """The file in `folder`, downloaded unless it is there already, and checked either way."""
    path, part = folder / remote.name, folder / f".{remote.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        receive(remote, part, patience)
        check(remote, part, folder)
        part.replace(path)
        remember(remote, path, folder)
        return path
    check(remote, path, folder)
    return path


def receive(remote: Remote, part: Path, patience: float) -> None:
    """Fill `part`, resuming from what it holds, over as many connections as it takes while bytes still come."""
    failures = 0
    while failures < ATTEMPTS:
        before = part.stat().st_size if part.exists() else 0
        try:
            if transfer(remote, part, patience):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # nothing beyond what we hold: it is whole, or not this file
                return
            if error.code < 500:
                raise DataError(f"{remote.url} answers {error.code} {error.reason}; has it moved?") from None
            problem = f"{error.code} {error.reason}"
        except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException, ValueError) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__  # ValueError: headers that are none
        grown = part.exists() and part.stat().st_size > before
        failures = 0 if grown else failures + 1
        time.sleep(min(0.1 * 2**failures, 5) if failures else 0)
    kept = part.stat().st_size if part.exists() else 0
    raise DataError(f"{remote.url}: {problem}, {ATTEMPTS} times; {kept:,} bytes are kept, run again to resume from there")


def transfer(remote: Remote, part: Path, patience: float) -> bool:
    """One connection's worth; whether the file is complete then."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=patience) as answer:
        have = have if answer.status == 206 else 0
        total = expected(answer, have)
        with part.open("ab" if have else "wb") as file, progress(f"fetching {remote.name}", total) as advance:
            advance(have)
            while block := answer.read1(BLOCK):
                file.write(block)
                advance(len(block))
    return total is None or part.stat().st_size >= total


def expected(answer: HTTPResponse, have: int) -> int | None:
    """The whole file's size, if the server says it."""
    length = answer.headers.get("Content-Length") or ""
    return have + int(length) if length.isascii() and length.isdecimal() and len(length) < 20 else None


def check(remote: Remote, path: Path, folder: Path) -> None:
    """Compare a file with its published checksum, or with what its first download had; a wrong one is removed."""
    known = remembered(folder).get(remote.url) or Known(size=0, sha256="")
    size, sha256 = remote.size or known["size"], remote.sha256 or known["sha256"]
    source = f"published in {remote.published}" if remote.sha256 else "recorded at its first download"
    found = path.stat().st_size
    if (size and found != size) or (sha256 and digest(path) != sha256):
        path.unlink()
        what = f"{found:,} bytes instead of {size:,}" if size and found != size else "another SHA-256"
        raise DataError(f"{remote.url} has {what} than {source}; the file was removed, run again to fetch it anew")


class Known(TypedDict):
    """What a first download had."""

    size: int
    sha256: str


def remembered(folder: Path) -> dict[str, Known]:
    """What first downloads had: address to size and SHA-256."""
    path = folder / "checksums.json"
    return read_json(path, dict[str, Known], "remove it, and the files are recorded anew") if path.exists() else {}


def remember(remote: Remote, path: Path, folder: Path) -> None:
    """Record size and SHA-256 of a first download."""
    entry = {"size": path.stat().st_size, "sha256": digest(path)}
    write_json(folder / "checksums.json", {**remembered(folder), remote.url: entry})


def unpack(archive: Path, members: Iterable[str], folder: Path) -> dict[str, Path]:
    """The named members of a tar, each written under a name of our own: whatever paths it holds, none is followed."""
    wanted = {name: folder / f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{Path(name).name}" for name in members}
    missing = {name for name, path in wanted.items() if not path.exists()}
    if not missing:
        return wanted
    try:
        with tarfile.open(archive) as tar, progress(f"unpacking {archive.name}", len(missing)) as advance:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in missing and member.isfile() and (content := tar.extractfile(member)):
                    with replacing(wanted[name]) as temporary, temporary.open("wb") as file:
                        copyfileobj(content, file)
                    missing.remove(name)
                    advance()
                if not missing:
                    break
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk, not the archive
            raise
        raise DataError(f"{archive} cannot be unpacked: {error}; remove it and run again") from None
    if missing:
        raise DataError(f"{archive} has no file {sorted(missing)[0]}; has its layout changed?")
    return wanted
