"""`bathy postmortem RUN`: find the failure, replay it, name the cause, write the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bathy import console
from bathy.admin.profile import profile
from bathy.errors import BathyError, CheckpointError
from bathy.files import origin, write_json
from bathy.lab.postmortem.changes import CHANGES
from bathy.lab.postmortem.failure import Failure, find_failure, jump
from bathy.lab.postmortem.replay import SETTINGS, Replay, parted, points, replay
from bathy.lab.postmortem.verdict import Verdict, judge
from bathy.tasks import make_task, read_config
from bathy.train.log import read_log
from bathy.train.task import Task, peek

FOLDER = "postmortem"
Read = Callable[[Path, Sequence[str]], Any]
Make = Callable[[Any], Task]


@dataclass(frozen=True)
class Postmortem:
    """What was found out about a run."""

    failure: Failure | None
    verdict: Verdict
    replays: dict[str, Replay]
    left_out: dict[str, str]
    """Changes that were not tried, and why."""
    moved_first: str = ""


def postmortem(run: Path, minutes: float = 30.0, read: Read = read_config, make: Make = make_task) -> Postmortem:
    """Replay a failed run with one change each until `minutes` are over; finished replays are kept for the next time.

    A run of a task of your own: `read(path, changes)` gives its config, `make(config)` its task.
    """
    config, end = read(run / "config.toml", []), time.monotonic() + 60 * minutes
    task = make(config)
    rows = read_log(run / "metrics.jsonl")
    failure = find_failure(rows, task.chance())
    if failure is None:
        return Postmortem(None, Verdict("", "no failure found: the loss neither rose nor stayed at guessing", "", []), {}, {})
    found = points(run)
    start = max((step for step in found if step <= failure.onset), default=0)
    replays: dict[str, Replay] = {}
    left_out: dict[str, str] = {}
    plan = _plan(config, failure, start)
    with console.progress("replays", len(plan)) as advance:
        for name, (change, begin) in plan.items():
            if time.monotonic() > end and not (run / FOLDER / _slug(name) / "replay.json").exists():
                left_out[name] = f"--minutes {minutes:g} were over; run it again to go on"
                continue
            try:
                changed = read(run / "config.toml", [*(change.settings(config) if change else []), *SETTINGS])
                attempt = change.recovery(failure, begin) if change and change.recovery else None
                replays[name] = replay(run, name, make(changed), changed, failure, begin, attempt, run / FOLDER / _slug(name))
            except (BathyError, RuntimeError, TypeError, ValueError) as error:
                if change is None:
                    raise
                left_out[name] = f"it cannot be run here: {error}"
            advance(1, name)
    left_out |= {name: "it does not apply to this run" for name in CHANGES if name not in plan}
    return _conclude(run, config, task, failure, replays, left_out)


def _plan(config: Any, failure: Failure, start: int) -> dict[str, tuple[Any, int]]:
    """What is replayed from where: the control first, then every change that applies."""
    plan: dict[str, tuple[Any, int]] = {"control": (None, start)}
    for name, change in CHANGES.items():
        if change.recovery and (name != "batches skipped" or failure.onset):
            plan[name] = (change, start)
        elif change.settings(config):
            plan[name] = (change, 0 if change.from_start else start)
    return plan


def _conclude(
    run: Path, config: Any, task: Any, failure: Failure, replays: dict[str, Replay], left_out: dict[str, str]
) -> Postmortem:
    control = run / FOLDER / _slug("control")
    rows = read_log(control / "metrics.jsonl")
    spike = jump(rows, max(0, failure.onset - 20), failure.found)
    verdict = judge(failure, replays, spike, _depth(config, task), config.optim.warmup)
    marked = {
        name: Replay(**asdict(one) | {"parted": None if name == "control" else parted(control, run / FOLDER / _slug(name))})
        for name, one in replays.items()
    }
    result = Postmortem(failure, verdict, marked, left_out, _moved_first(rows, failure))
    write_json(run / FOLDER / "postmortem.json", asdict(result) | {"origin": origin()})
    return result


def _depth(config: Any, task: Any) -> float:
    """The largest Σβ² of a stack of the fresh model on the first batch; 0 where it cannot be profiled."""
    torch.manual_seed(config.train.seed)
    try:
        result = profile(task.build(), task.inputs(peek(task.batches(0, 1))))
        return max(result.change(stack) for stack in {site.stack for site in result.sites})
    except (BathyError, RuntimeError, TypeError, ValueError):  # a model of the user's own that cannot be profiled
        return 0.0


def _moved_first(rows: list[dict[str, Any]], failure: Failure) -> str:
    """Whether the gradient grew before the loss, in the control."""
    gradients = [(row["step"], row["gradient_norm"]) for row in rows if row.get("gradient_norm") is not None]
    calm = sorted(value for step, value in gradients if step <= failure.onset) or [value for _, value in gradients[:5]]
    if not calm:
        return ""
    usual = calm[len(calm) // 2]
    first = next((step for step, value in gradients if value > 5 * usual and step > failure.onset - 20), None)
    if first is None:
        return "the loss moved; the gradient's norm never exceeded five times its usual value"
    return f"the gradient's norm exceeded five times its usual value ({usual:.3g}) at update {first}"


def check_run(run: Path) -> None:
    """Refuse a folder that is no run, or one that cannot be replayed, saying what to set next time."""
    if not (run / "config.toml").exists():
        raise CheckpointError(f"{run} is not a run: it has no config.toml; `bathy train` writes one")
    if not points(run):
        console.warn(
            f"{run} has no intact checkpoint: every replay starts at update 0; set train.recent_every (e.g. 100) next time"
        )


def _slug(name: str) -> str:
    return name.replace(" ", "_")
