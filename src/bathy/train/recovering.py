"""From a failure to the next attempt: what is known of the failure, where the run goes back to, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bathy import console
from bathy.errors import Diverged
from bathy.train.changes import CHANGES
from bathy.train.config import Config
from bathy.train.diagnosis import stop_diverged
from bathy.train.evidence import Evidence, Raise, depth, find_raise
from bathy.train.log import read_log
from bathy.train.recovery import MARGIN, go_back, next_recovery, next_start, write_recovery
from bathy.train.state import State, begin
from bathy.train.suspects import own_losses, suspects
from bathy.train.task import Task
from bathy.train.world import World


def prepare_recovery(task: Task, config: Config, state: State, run: Path, world: World, error: Diverged) -> None:
    """Prepare the next attempt of a run that recovers; end any other run with its error.

    Every rank takes part and decides the same: all read the same files, and what they measure is summed over them.
    """
    if config.train.on_divergence != "recover":
        raise error
    world.wait()  # until the log is complete
    good = state.divergence.last_good if error.sudden else 0
    raised = recent_raise(run, config, good, state.step)
    good = min(good, raised.step - 1) if raised else good
    start = next_start(run, good)
    evidence = Evidence((), raised, 0.0 if start else _depth(task, config, world), error.overflow)
    if next_recovery(run, config, state.step, good, str(error), evidence) is None:
        stop_diverged(state.config, run, world, state, f"{error}; {len(state.recoveries)} recoveries did not help")
    world.wait()
    if world.first:
        go_back(run, start)
    world.wait()
    if start:
        again = begin(task, config, run, world)
        evidence = replace(evidence, suspects=suspects(own_losses(again.config, again, world, good + MARGIN)))
    attempt = next_recovery(run, config, state.step, good, str(error), evidence)
    assert attempt  # suspects bring a change forward, and take none away
    world.wait()
    if world.first:
        how = f" ({', '.join(attempt.settings)})" if attempt.settings else ""
        console.warn(f"update {state.step}: {error}; going back to update {start} with {attempt.change}{how}")
        write_recovery(run, attempt)
    world.wait()


def recent_raise(run: Path, config: Config, good: int, failed: int) -> Raise | None:
    """A sudden raise of the rate after which the run soon failed; none for a run that was never good."""
    raised = find_raise(read_log(run / "metrics.jsonl"), failed) if good else None
    return raised if raised and raised.step > good - config.train.divergence_window else None


def _depth(task: Task, config: Any, world: World) -> float:
    """The depth of a model that can be built as Admin, measured by the first rank for all.

    A model that is not ours keeps its parameters: ω among them would surprise who loads its weights.
    """
    possible = hasattr(config, "model") and bool(CHANGES["Admin"].settings(config))
    return world.sum(depth(config, task) if world.first and possible else 0.0)[0]
