"""Preparing text: CPU time against sacremoses and subword-nmt, wall time on one core and all, peak memory."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from bathy import console
from bathy.errors import DataError

MERGES = 10_000
PAIRS, QUICK_PAIRS = (200_000, 2_000_000), (20_000, 200_000)
"""Sentence pairs of the smaller and the larger generated corpus."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Ours and theirs on the same text; then one core against all; then a small and a ten times larger corpus."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        raw = data or toy(folder / "toy", (QUICK_PAIRS if quick else PAIRS)[0])
        merges = min(MERGES, 1_000 if quick or data is None else MERGES)
        result = {"text": str(data or "toy corpus"), "merges": merges, **speed(raw, folder, merges), **memory(folder, quick)}
    console.out.print(console.table(f"preparing {result['text']}, {merges:,} merges", ["measure", "value"], rows(result)))
    return result


def rows(result: dict[str, Any]) -> list[list[object]]:
    """The figures, named for a reader."""
    return [[name.replace("_", " "), value] for name, value in result.items() if isinstance(value, int | float)]


def speed(raw: Path, folder: Path, merges: int) -> dict[str, Any]:
    """CPU seconds of both ways, wall seconds of ours on one core and on all."""
    first = min(os.sched_getaffinity(0))
    theirs = child("theirs", raw, folder / "theirs", merges)
    alone = child("ours", raw, folder / "one", merges, cores={first})
    together = child("ours", raw, folder / "all", merges)
    return {
        "cpu_seconds": together["cpu"],
        "cpu_seconds_sacremoses_subword_nmt": theirs["cpu"],
        "cpu_ratio": together["cpu"] / theirs["cpu"],
        "wall_seconds_one_core": alone["wall"],
        "wall_seconds": together["wall"],
        "cores": len(os.sched_getaffinity(0)),
        "wall_ratio": alone["wall"] / together["wall"],
    }


def memory(folder: Path, quick: bool) -> dict[str, Any]:
    """Peak megabytes of all processes together, for a generated corpus and one ten times as large."""
    small, large = QUICK_PAIRS if quick else PAIRS
    peaks = {}
    for size in (small, large):
        raw = toy(folder / f"toy-{size}", size)
        peaks[size] = child("ours", raw, folder / f"data-{size}", min(MERGES, 1_000))["megabytes"]
    return {
        f"megabytes_at_{small}_pairs": peaks[small],
        f"megabytes_at_{large}_pairs": peaks[large],
        "memory_ratio": peaks[large] / peaks[small],
    }


def toy(folder: Path, size: int) -> Path:
    """The toy corpus of a size."""
    from bathy.tasks.translation.corpora.toy import write_toy

    write_toy(folder, size)
    return folder


def child(what: str, raw: Path, out: Path, merges: int, cores: set[int] | None = None) -> dict[str, float]:
    """Do one thing in a process of its own, on some of the cores, and return what it cost."""
    command = [sys.executable, "-m", __name__, what, str(raw), str(out), str(merges)]
    with use_cores(cores):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DataError(f"measuring {what} on {raw} failed; the lines above say why")
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def use_cores(cores: set[int] | None) -> Iterator[None]:
    """Let processes started inside the block use these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ours(raw: Path, out: Path, merges: int) -> None:
    """`bathy prepare`."""
    from bathy.tasks.translation.prepare import prepare
    from bathy.tasks.translation.settings import DataConfig, PrepareConfig, Preparing

    prepare(Preparing(data=DataConfig(path=str(out)), prepare=PrepareConfig(raw=str(raw), merges=merges)))


def theirs(raw: Path, out: Path, merges: int) -> None:
    """sacremoses, then subword-nmt's learn and apply, on the same training text."""
    import sacremoses
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    from bathy.tasks.lines import opened
    from bathy.tasks.translation.corpora.layout import splits

    out.mkdir(parents=True)
    for language, path in zip(("de", "en"), splits(raw, "de", "en")["train"], strict=True):
        moses = sacremoses.MosesTokenizer(language)
        with opened(path) as lines, (out / f"tok.{language}").open("w", encoding="utf-8") as file:
            for line in io.TextIOWrapper(lines, encoding="utf-8", newline="\n"):
                file.write(moses.tokenize(line, return_str=True, escape=False) + "\n")
    text = "".join((out / f"tok.{language}").read_text(encoding="utf-8") for language in ("de", "en"))
    codes = io.StringIO()
    with redirect_stderr(io.StringIO()):
        learn_bpe(io.StringIO(text), codes, merges)
    bpe = BPE(io.StringIO(codes.getvalue()))
    with (out / "bpe").open("w", encoding="utf-8") as file:
        file.writelines(bpe.process_line(line) for line in io.StringIO(text))


WAYS: dict[str, Callable[[Path, Path, int], None]] = {"ours": ours, "theirs": theirs}


def main(what: str, raw: str, out: str, merges: str) -> None:
    """Do one thing and print its cost: wall and CPU seconds, and the megabytes of parent and workers at their peaks."""
    from bathy.tasks.pool import cores

    start = time.monotonic()
    WAYS[what](Path(raw), Path(out), int(merges))
    wall = time.monotonic() - start
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in (own, workers))
    megabytes = (peak() + cores() * workers.ru_maxrss) / 1024
    print(json.dumps({"wall": wall, "cpu": cpu, "megabytes": megabytes}))  # noqa: T201


def peak() -> int:
    """This process' own peak, in kilobytes (its `ru_maxrss` begins at the peak of the process that started it)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
