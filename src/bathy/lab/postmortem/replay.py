"""Replays: the run again from one of its checkpoints, with one change, in a folder of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bathy.errors import Diverged
from bathy.files import read_json, write_json
from bathy.lab.postmortem.failure import IMPROVEMENT, Failure, Rows, final_loss, find_failure
from bathy.train import checkpoint
from bathy.train.config import Config
from bathy.train.log import read_log
from bathy.train.loop import fit
from bathy.train.recovery import FILE, Recovery, copy_checkpoint, points
from bathy.train.task import Task

OUTCOME = "replay.json"
SETTINGS = [
    "train.epochs=0", "train.patience=0", "train.log_every=1", "train.valid_every=0", "train.save_every=0",
    "train.save_epochs=false", "train.save_minutes=2", "train.keep_last=1", "train.keep_best=0",
    "train.on_divergence=continue", "train.recent_every=0", "train.loggers=[]", "train.monitor=false",
]  # fmt: skip
"""Every update is in the log, and nothing stops the replay: how far it falls is part of the answer."""
ALIKE = 1e-9
"""Relative difference of two losses below which the replays have not parted."""


@dataclass(frozen=True)
class Plan:
    """What one replay does differently, and from where to where."""

    changes: list[str] = field(default_factory=list)
    """Of the config, section.key=value."""
    start: int = 0
    until: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    """Of the rate and the batches."""


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


def replay(
    run: Path, name: str, plan: Plan, task: Task, config: Config, failure: Failure, folder: Path, deadline: float
) -> Replay | None:
    """Train as planned, or take the finished replay's outcome; nothing where the time was over first: it resumes next time."""
    if (folder / OUTCOME).exists():
        return Replay(**read_json(folder / OUTCOME))
    began = time.monotonic()
    if plan.start and not checkpoint.checkpoints(folder):
        copy_checkpoint(dict(points(run))[plan.start], folder)
    if plan.recoveries:
        write_json(folder / FILE, [asdict(one) for one in plan.recoveries])
    why = ""
    try:
        state = fit(task, config, folder, allow_changes=True, until=plan.until, deadline=deadline)
        if state.step < min(plan.until, config.train.steps):
            return None
    except Diverged as error:
        why = str(error)
    before = [row for row in read_log(run / "metrics.jsonl") if row["step"] <= plan.start and "nll" in row]
    result = outcome(name, plan.start, before, read_log(folder / "metrics.jsonl"), failure, task, why)
    result = replace(result, seconds=time.monotonic() - began)
    write_json(folder / OUTCOME, asdict(result))
    return result


def outcome(name: str, start: int, before: Rows, rows: Rows, failure: Failure, task: Task, why: str = "") -> Replay:
    """Whether the run's rows up to `start` and the replay's own show the failure."""
    own = [row["nll"] for row in rows if "nll" in row]
    end = max((row["step"] for row in rows), default=start)
    why = why or _problem([*before, *rows], failure, task)
    return Replay(name, start, end, bool(why), why, own[-1] if own and own[-1] is not None else math.nan)


def _problem(rows: Rows, failure: Failure, task: Task) -> str:
    """What is wrong at the end of a replay; a run that never improved on guessing must do so, not just fall towards it."""
    found, end, chance = find_failure(rows, task.chance()), final_loss(rows), task.chance()
    if failure.kind == "guessing" and not end < chance - IMPROVEMENT:
        return f"the loss, {end:.2f} nats, is that of guessing ({chance:.2f})"
    if failure.kind == "task":
        readings = next((row for row in reversed(rows) if "valid_loss" in row), None)
        return "" if readings is None else task.failing({**readings, "loss": readings["valid_loss"]})
    return found.why if found and (found.kind != "guessing" or failure.kind == "guessing") else ""


def parted(control: Path, other: Path) -> int | None:
    """First update at which two replays' losses differ."""
    first = {row["step"]: row["nll"] for row in read_log(control / "metrics.jsonl") if "nll" in row}
    for row in read_log(other / "metrics.jsonl"):
        if "nll" in row and row["step"] in first:
            a, b = first[row["step"]], row["nll"]
            if (a is None) != (b is None) or (a is not None and abs(a - b) > ALIKE * max(abs(a), 1.0)):
                return int(row["step"])
    return None


def folder_of(names: Sequence[str], run: Path) -> dict[str, Path]:
    """Where each replay of a run lies."""
    return {name: run / "postmortem" / name.replace(" ", "_") for name in names}
