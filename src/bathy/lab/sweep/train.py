"""The runs of a sweep: one worker, or several processes on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bathy.console import ending, err
from bathy.errors import ConfigError, TrainingError
from bathy.lab.runs import Outcome, differences, identity, train_if_needed
from bathy.lab.sweep.grid import Point, changes
from bathy.lab.sweep.study import Sweep, connect, shown, work
from bathy.settings import change
from bathy.tasks import read_config


def run_all(sweep: Sweep, config: Path, settings: Sequence[str], workers: int) -> None:
    """Train every point; with several workers, in as many processes that share the cores."""
    points = [read_config(config, [*settings, *changes(point)]) for point in sweep.grid.points]
    _check_settings(sweep, points[0])
    threads = max(1, torch.get_num_threads() // workers)
    if workers == 1:
        work_here(sweep, config, settings, threads)
        return
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work_apart, args=(sweep, config, settings, threads)) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    dead = sum(process.exitcode != 0 for process in processes)
    if dead == workers:
        raise TrainingError("every worker of the sweep ended early; run the same command to resume")
    if dead:
        err.print(f"{dead} of {workers} workers ended early; the others took over")


def _check_settings(sweep: Sweep, config: Any) -> None:
    """Refuse runs of other settings, or of another text, than those the study has: it would take the one for the other."""
    study = connect(sweep)
    axes = [part for key in sweep.grid.axes for part in key.split("+")]
    if not (known := study.user_attrs.get("runs")):
        study.set_user_attr("runs", {**identity(config), "axes": axes})
    elif changed := differences(config, known, {*axes, *known["axes"]}):
        place = f"--storage {shown(sweep.storage)}" if sweep.storage else f"--out {sweep.out}"
        what = f"{place} holds runs that differ in more than their grid"
        raise ConfigError(f"{what}: {', '.join(changed)}; choose a different one")


def _work_apart(sweep: Sweep, config: Path, settings: Sequence[str], threads: int) -> None:
    """One worker in a process of its own, which ends as a command does."""
    with ending():
        work_here(sweep, config, settings, threads)


def work_here(sweep: Sweep, config: Path, settings: Sequence[str], threads: int) -> None:
    """One worker."""
    torch.set_num_threads(threads)

    points = sweep.grid.points

    def run(point: Point, folder: Path) -> Outcome:
        place = f"{points.index(point) + 1} of {len(points)}" if point in points else "of an earlier grid"
        err.print(f"run {place}: {folder.name}", markup=False)
        return train_if_needed(read_config(config, [*settings, *changes(point), change("train.run", folder)])).outcome

    work(sweep, run)
