"""Several runs at once, watched side by side: each a process with one thread, as many at a time as there are cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.live import Live
from rich.table import Table

from bathy import console
from bathy.errors import TrainingError
from bathy.train.log import read_log

LOOK_EVERY, SAY_EVERY = 0.5, 15.0
"""Seconds between looks at the runs, and between lines where there is no terminal."""


@dataclass
class Runner:
    """One run of the race."""

    name: str
    folder: Path
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the run, or resume one that an earlier race left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.output().open("wb") as output:
            threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, env=os.environ | threads)

    def output(self) -> Path:
        """What the process printed."""
        return self.folder / "output.txt"

    def rows(self) -> list[dict[str, Any]]:
        """The run's metrics so far."""
        return read_log(self.folder / "metrics.jsonl")

    def latest(self, key: str) -> float | None:
        """The newest value of a metric."""
        return next((row[key] for row in reversed(self.rows()) if key in row), None)

    def state(self) -> str:
        """waiting, running, stopped early or done."""
        if self.process is None:
            return "waiting"
        if self.process.poll() is None:
            return "running"
        return "stopped early" if stopped(self.folder) else "done"


def stopped(run: Path) -> str:
    """Why divergence detection ended a run; nothing if it did not."""
    return next((str(row["stopped"]) for row in reversed(read_log(run / "metrics.jsonl")) if "stopped" in row), "")


def race(config: Path, runs: Mapping[str, Sequence[str]], folder: Path, at_once: int) -> dict[str, Path]:
    """Train `config` with each run's changes, in folders of their names; returns the folders when all have ended."""
    runners = [Runner(name, folder / name, _command(config, folder / name, changes)) for name, changes in runs.items()]
    with _stop_at_the_end(runners), _view(runners) as show:
        while any(runner.process is None or runner.process.poll() is None for runner in runners):
            running = sum(runner.state() == "running" for runner in runners)
            for runner in [runner for runner in runners if runner.process is None][: at_once - running]:
                runner.start()
            show()
            time.sleep(LOOK_EVERY)
        show()
    for runner in runners:
        if runner.process and runner.process.returncode and not stopped(runner.folder):
            last = (runner.output().read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
            raise TrainingError(f"the run in {runner.folder} ended with code {runner.process.returncode}: {last}")
    return {runner.name: runner.folder for runner in runners}


def _command(config: Path, run: Path, changes: Sequence[str]) -> list[str]:
    sets = [part for change in changes for part in ("--set", change)]
    return [sys.executable, "-m", "bathy", "train", str(config), "--run", str(run), *sets]


@contextmanager
def _stop_at_the_end(runners: Sequence[Runner]) -> Iterator[None]:
    """A block after which no process is left: one that still runs is asked to save and stop."""
    try:
        yield
    finally:
        alive = [runner.process for runner in runners if runner.process and runner.process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            process.wait()


@contextmanager
def _view(runners: Sequence[Runner]) -> Iterator[Any]:
    """`show()` draws the table anew on a terminal, and prints one line per run now and then elsewhere."""
    if console.err.is_terminal:
        with Live(_table(runners), console=console.err, transient=True) as live:
            yield lambda: live.update(_table(runners))
        return
    said = time.monotonic()

    def say() -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            _lines(console.err.file, runners)

    yield say


def _lines(file: IO[str], runners: Sequence[Runner]) -> None:
    cells = [f"{runner.name}: update {runner.latest('step') or 0}, loss {_number(runner.latest('nll'))}" for runner in runners]
    file.write("   ".join(cells) + "\n")


def _table(runners: Sequence[Runner]) -> Table:
    rows = [
        (
            runner.name,
            runner.state(),
            f"{runner.latest('step') or 0}",
            _number(runner.latest("nll")),
            _number(runner.latest("valid_loss")),
            _number(runner.latest("source_gap")),
            console.spark([row["nll"] for row in runner.rows() if "nll" in row]),
        )
        for runner in runners
    ]
    return console.table("training", ["scheme", "state", "update", "loss", "valid", "source gap", "loss over time"], rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
