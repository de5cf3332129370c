"""Replays: the run again from one of its checkpoints, with one change, in a folder of its own."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bathy.errors import Diverged
from bathy.files import read_json, write_json
from bathy.lab.postmortem.failure import Failure, find_failure
from bathy.train import checkpoint
from bathy.train.config import Config
from bathy.train.log import read_log
from bathy.train.loop import fit
from bathy.train.recovery import FILE, RECENT, Recovery
from bathy.train.task import Task

OUTCOME = "replay.json"
SETTINGS = [
    "train.epochs=0", "train.patience=0", "train.log_every=1", "train.valid_every=0", "train.save_every=0",
    "train.save_epochs=false", "train.save_minutes=2", "train.keep_last=1", "train.keep_best=0",
    "train.on_divergence=continue", "train.recent_every=0", "train.loggers=[]",
]  # fmt: skip
"""Every update is in the log, and nothing stops the replay: how far it falls is part of the answer."""
ALIKE = 1e-9
"""Relative difference of two losses below which the replays have not parted."""


@dataclass(frozen=True)
class Replay:
    """What came of one change."""

    name: str
    start: int
    end: int
    failed: bool
    why: str
    loss: float
    """At its last update."""
    parted: int | None = None
    """First update at which its loss is not the control's."""
    seconds: float = 0.0


def points(run: Path) -> dict[int, Path]:
    """Intact checkpoints that a replay can start from, by update."""
    found = [*checkpoint.checkpoints(run / RECENT), *checkpoint.checkpoints(run)]
    return {step: folder for step, folder in found if checkpoint.intact(folder)}


def replay(
    run: Path, name: str, task: Task, config: Config, failure: Failure, start: int, attempt: Recovery | None, folder: Path
) -> Replay:
    """Train from update `start` to where the failure was found, or take the finished replay's outcome.

    `attempt` is what recovery would change there; other changes are in the config.
    """
    if (folder / OUTCOME).exists():
        return Replay(**read_json(folder / OUTCOME))
    began = time.monotonic()
    if start and not checkpoint.checkpoints(folder):
        _copy(points(run)[start], folder)
    if attempt:
        write_json(folder / FILE, [asdict(attempt)])
    why = ""
    try:
        fit(task, config, folder, allow_changes=True, until=failure.found)
    except Diverged as error:
        why = str(error)
    result = _outcome(run, name, start, folder, task.chance(), why)
    result = replace(result, seconds=time.monotonic() - began)
    write_json(folder / OUTCOME, asdict(result))
    return result


def _outcome(run: Path, name: str, start: int, folder: Path, chance: float, why: str) -> Replay:
    """Whether the run's rows up to `start` and the replay's own show a failure."""
    rows = read_log(folder / "metrics.jsonl")
    before = [row for row in read_log(run / "metrics.jsonl") if row["step"] <= start and "nll" in row]
    found = find_failure([*before, *rows], chance)
    losses = [row["nll"] for row in rows if row.get("nll") is not None]
    end = max((row["step"] for row in rows), default=start)
    why = why or (found.why if found else "")
    return Replay(name, start, end, bool(why), why, losses[-1] if losses else math.nan)


def _copy(source: Path, folder: Path) -> None:
    target = folder / "checkpoints" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    temporary.rename(target)


def parted(control: Path, other: Path) -> int | None:
    """First update at which two replays' losses differ."""
    first = {row["step"]: row["nll"] for row in read_log(control / "metrics.jsonl") if "nll" in row}
    for row in read_log(other / "metrics.jsonl"):
        if "nll" in row and row["step"] in first:
            a, b = first[row["step"]], row["nll"]
            if (a is None) != (b is None) or (a is not None and abs(a - b) > ALIKE * max(abs(a), 1.0)):
                return int(row["step"])
    return None
