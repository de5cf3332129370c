"""`bathy postmortem RUN`: find the failure, replay it, name the cause, write the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bathy import console
from bathy.errors import BathyError, CheckpointError
from bathy.files import origin, write_json
from bathy.lab.postmortem.evidence import can_be_watched, moved_first, odd_batches
from bathy.lab.postmortem.failure import Failure, find_failure
from bathy.lab.postmortem.rates import join, rate_of, segments
from bathy.lab.postmortem.replay import SETTINGS, Plan, Replay, folder_of, parted, replay
from bathy.lab.postmortem.verdict import Verdict, judge
from bathy.tasks import make_task, read_config
from bathy.train.changes import BATCHES, CHANGES, STEADY, Change, longer
from bathy.train.evidence import Evidence, Raise, depth, find_raise
from bathy.train.log import read_log
from bathy.train.recovery import MARGIN, Recovery, effective, points, read_recoveries
from bathy.train.task import Task

FOLDER = "postmortem"
SAMPLES = 30
"""How often the unchanged replay is sampled by the monitor."""
OVER = "the time was over; the same command again resumes"
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
    note: str = ""
    """What to set next time, where there was no checkpoint to start from."""


def postmortem(run: Path, minutes: float = 30.0, read: Read = read_config, make: Make = make_task) -> Postmortem:
    """Replay a failed run with one change each until `minutes` are over; what is done is kept for the next time.

    A run of a task of your own: `read(path, changes)` gives its config, `make(config)` its task.
    """
    return Examiner(run, time.monotonic() + 60 * minutes, read, make).conclude()


class Examiner:
    """A post-mortem in progress."""

    def __init__(self, run: Path, deadline: float, read: Read, make: Make) -> None:
        self.run, self.deadline, self.read, self.make = run, deadline, read, make
        self.config = read(run / "config.toml", [])
        self.task = make(self.config)
        self.rows = read_log(run / "metrics.jsonl")
        self.failure = find_failure(self.rows, self.task.chance())
        self.folders = folder_of(["control", *CHANGES], run)
        self.raised: Raise | None = None
        self.start, self.suspects = 0, list[int]()
        if self.failure:
            self.raised = find_raise(self.rows, self.failure.found)
            if self.raised and self.raised.step <= self.failure.onset:
                self.failure = replace(self.failure, onset=self.raised.step - 1)
            self.start = max((step for step, _ in points(run) if step <= self.failure.onset), default=0)

    def conclude(self) -> Postmortem:
        """Replay, judge and write postmortem.json."""
        if self.failure is None:
            none = Verdict("", "no failure found: the loss neither rose nor stayed at guessing", "", [])
            return Postmortem(None, none, {}, {})
        replays, left_out = self._replay_all(self.failure)
        first = ""
        if "control" in replays:
            first = moved_first(self.folders["control"], self.failure)
            for name in replays.keys() - {"control"}:
                replays[name] = replace(replays[name], parted=parted(self.folders["control"], self.folders[name]))
        evidence = Evidence(self.suspects, self.raised, depth(self.config, self.task), self.failure.kind == "overflow")
        verdict = judge(self.config, self.failure, replays, evidence, [name for name, why in left_out.items() if why == OVER])
        result = Postmortem(self.failure, verdict, replays, left_out, first, self._note())
        write_json(self.run / FOLDER / "postmortem.json", asdict(result) | {"origin": origin()})
        return result

    def _replay_all(self, failure: Failure) -> tuple[dict[str, Replay], dict[str, str]]:
        """The unchanged replay, then every change that applies; if the first does not fail, the others say nothing."""
        replays: dict[str, Replay] = {}
        left_out: dict[str, str] = {}
        with console.progress("replays", 1 + len(CHANGES)) as advance:
            for name in ["control", *CHANGES]:
                plan = self._plan(name, failure)
                if plan is None:
                    left_out[name] = "it does not apply to this run"
                elif name != "control" and "control" in replays and not replays["control"].failed:
                    left_out[name] = "the unchanged replay did not fail"
                elif outcome := self._replay(name, plan, failure, left_out):
                    replays[name] = outcome
                if name == "control" and name in replays and replays[name].failed:
                    folder = self.folders[name]
                    self.suspects = odd_batches(self.run, self.task, self.config, failure, self.start, folder)
                advance(1, name)
        return replays, left_out

    def _replay(self, name: str, plan: Plan, failure: Failure, left_out: dict[str, str]) -> Replay | None:
        folder = self.folders[name]
        try:
            if time.monotonic() > self.deadline and not (folder / "replay.json").exists():
                found = None
            else:
                config = self.read(self.run / "config.toml", [*plan.changes, *SETTINGS, *self._watching(name, plan, failure)])
                found = replay(self.run, name, plan, self.make(config), config, failure, folder, self.deadline)
        except (BathyError, RuntimeError, TypeError, ValueError) as error:
            if name == "control":
                raise
            left_out[name] = f"it cannot be run here: {error}"
            return None
        if found is None:
            left_out[name] = OVER
        return found

    def _watching(self, name: str, plan: Plan, failure: Failure) -> list[str]:
        """Settings that let the unchanged replay be watched, and all be validated where only that shows the failure."""
        settings = [f"train.valid_every={failure.found}"] if failure.kind == "task" else []
        if name == "control" and can_be_watched(self.task):
            settings += ["train.monitor=true", f"train.monitor_every={max(1, (plan.until - plan.start) // SAMPLES)}"]
        return settings

    def _plan(self, name: str, failure: Failure) -> Plan | None:
        """What a change means for this run; nothing where it does not apply."""
        change = CHANGES.get(name, Change("", ""))
        settings = change.settings(self.config)
        others = {"control": True, BATCHES: failure.onset > 0, STEADY: self.raised is not None}
        if not settings and not others.get(name, change.factor != 1):
            return None
        start = 0 if change.from_start else self.start
        until = failure.found
        if name == "longer warm-up":  # at its full rate as long as it took to rise
            until = max(until, min(2 * longer(self.config), self.config.train.steps))
        return Plan(settings, start, until, self._recoveries(name, change, start, until, failure))

    def _recoveries(self, name: str, change: Change, start: int, until: int, failure: Failure) -> list[Recovery]:
        """The run's own recoveries up to `start`, then the rates of the log, changed, and the batches to skip."""
        known = [one for one in effective(read_recoveries(self.run)) if one.start <= start]
        own = rate_of(self.config, self.rows)
        raised = self.raised

        def wanted(step: int) -> float:
            if name == STEADY and raised and step >= raised.step:
                return min(own(step), raised.before)
            return change.factor * own(step)

        found = join(known, segments(self.config, wanted, start, until))
        if name == BATCHES:
            first, last = (self.suspects[0], self.suspects[-1]) if self.suspects else _round(failure, start)
            base = found.pop() if found else Recovery(failure.found, failure.why, start, BATCHES)
            found.append(replace(base, skip=base.skip + last - first + 1, at=first - 1))
        return found

    def _note(self) -> str:
        """What to set next time."""
        if points(self.run) and (self.start or not self.failure or not self.failure.onset):
            return ""
        return "there is no checkpoint before the failure: every replay started at update 0; set train.recent_every next time"


def _round(failure: Failure, start: int) -> tuple[int, int]:
    """First and last update round the failure's beginning."""
    return max(start + 1, failure.onset - MARGIN), failure.onset + MARGIN


def check_run(run: Path) -> None:
    """Refuse a folder that is no run, or one that cannot be replayed, saying what to set next time."""
    if not (run / "config.toml").exists():
        raise CheckpointError(f"{run} is not a run: it has no config.toml; `bathy train` writes one")
    if not points(run):
        console.warn(
            f"{run} has no intact checkpoint: every replay starts at update 0; set train.recent_every (e.g. 100) next time"
        )
