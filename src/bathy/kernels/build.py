"""Compile the C files of `c/` for this processor, once: the result is kept in the user's cache.

A compiler is no requirement: without one, or where the result does not agree with torch, everything runs by torch's own
operations. BATHY_COMPILED=0 asks for that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from bathy.files import processor

SOURCES = Path(__file__).parent / "c"
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
NOW = getattr(os, "RTLD_NOW", 0)
"""All names are looked up at once: one that is missing is an error here and not later."""
SECONDS = 120
"""Longest that the compiler may take for one file."""


def load() -> ctypes.CDLL | str:
    """The compiled library, or why there is none."""
    if os.environ.get("BATHY_COMPILED", "1") == "0":
        return "switched off by BATHY_COMPILED=0"
    named = shlex.split(os.environ.get("CC", ""))
    compiler = named or [path for path in map(shutil.which, ("cc", "gcc", "clang")) if path][:1]
    if not compiler:
        return "no C compiler found (cc, gcc or clang)"
    problem = ""
    # with threads first: torch has loaded OpenMP already, which is why it is not linked to; else one thread
    for threads in ("-fopenmp", "-fopenmp-simd"):
        found = _load(compiler, threads)
        if not isinstance(found, str):
            return found
        problem = found
    return problem


def _load(compiler: list[str], threads: str) -> ctypes.CDLL | str:
    kept = _folder() / f"{_fingerprint(compiler, threads)}.so"
    try:
        if kept.exists():
            with suppress(OSError):  # damaged: built again
                return ctypes.CDLL(str(kept), mode=NOW)
        _build(compiler, threads, kept)
        return ctypes.CDLL(str(kept), mode=NOW)
    except PermissionError as error:
        return f"{error.filename} cannot be written: set XDG_CACHE_HOME to a folder that can"
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return f"{' '.join(compiler)} did not give a usable library: {said[-1] if said else error}"


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bathy" / "kernels"


def _fingerprint(compiler: list[str], threads: str) -> str:
    """Of all that decides what the compiler writes: sources, flags, compiler and processor."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[ch]"))]
    machine = [platform.machine(), platform.system(), processor("model name"), processor("flags")]
    return hashlib.sha256("\0".join([*compiler, threads, *FLAGS, *WIDE, *machine, *sources]).encode()).hexdigest()[:32]


def _build(compiler: list[str], threads: str, kept: Path) -> None:
    """Write the library beside its place and rename it, so that it is complete or absent."""
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        objects = []
        for source in sorted(SOURCES.glob("*.c")):
            objects.append(f"{place}/{source.stem}.o")
            _run([*compiler, *FLAGS, *WIDE, threads, "-c", str(source), "-o", objects[-1]])
        _run([*compiler, "-shared", *objects, "-lm", "-o", f"{place}/kernels.so"])
        Path(place, "kernels.so").replace(kept)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
