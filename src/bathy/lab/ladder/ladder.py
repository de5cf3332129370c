"""A ladder as a sweep: its axes, what it will cost, and its runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bathy import console
from bathy.core.schemes import find_scheme
from bathy.errors import ConfigError
from bathy.lab.sweep import Grid, Sweep
from bathy.lab.sweep.grid import changes
from bathy.lab.sweep.train import run_all
from bathy.tasks import make_task, read_config
from bathy.train.state import begin
from bathy.train.task import take
from bathy.train.update import update
from bathy.train.world import World

TIMED = 3
"""Updates that a plan times for each depth and scheme."""


@dataclass(frozen=True)
class Ladder:
    """Depths × schemes × rates × seeds of one config."""

    config: Path
    depths: tuple[int, ...]
    schemes: tuple[str, ...]
    rates: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.schemes:
            find_scheme(name)
        if not (self.depths and self.schemes and self.rates and self.seeds):
            raise ConfigError("a ladder needs at least one depth, scheme, rate and seed")

    def axes(self) -> dict[str, tuple[str, ...]]:
        """The ladder's settings: layers and scheme of whatever stacks the config has."""
        stacks = read_config(self.config, self.settings).model.stacks
        layers = "+".join(f"model.{stack}_layers" for stack in stacks)
        scheme = "+".join(f"model.{stack}_scheme" for stack in stacks)
        return {
            layers: tuple(map(str, self.depths)),
            scheme: self.schemes,
            "optim.lr": self.rates,
            "train.seed": tuple(map(str, self.seeds)),
        }

    def sweep(self, storage: str = "", name: str = "ladder") -> Sweep:
        """The sweep that trains it."""
        return Sweep(Grid(self.axes()), self.out, storage, name)


def climb(ladder: Ladder, storage: str = "", workers: int = 1) -> None:
    """Train every run of the ladder that is not done."""
    run_all(ladder.sweep(storage), ladder.config, list(ladder.settings), workers)


def plan(ladder: Ladder) -> list[dict[str, Any]]:
    """What each depth costs for each scheme: CPU-seconds of an update, measured on a few, and hours of all runs.

    The hours have the validations in them."""
    rows = []
    runs = len(ladder.rates) * len(ladder.seeds)
    for point in console.track([p for p in ladder.sweep().grid.points if _first(p, ladder)], "timing"):
        config = read_config(ladder.config, [*ladder.settings, *changes(point)])
        seconds, validation = _seconds(config)
        layers, scheme = list(point.values())[:2]
        hours = (seconds * config.train.steps + validation) * runs / 3600
        rows.append({"layers": int(layers), "scheme": scheme, "seconds": seconds, "runs": runs, "hours": hours})
    return rows


def _first(point: dict[str, str], ladder: Ladder) -> bool:
    return point["optim.lr"] == ladder.rates[0] and point["train.seed"] == str(ladder.seeds[0])


def _seconds(config: Any) -> tuple[float, float]:
    """CPU-seconds of an update with one thread, the first left out, and of all validations."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:  # a profile is written there
        state = begin(make_task(config), config, Path(folder), World())
    taken = []
    for _ in range(TIMED + 1):
        state.step += 1
        batches = take(state.batches, config.train.accumulate)
        start = time.process_time()
        update(config, state, World(), batches)
        taken.append(time.process_time() - start)
    return sum(taken[1:]) / TIMED, _validations(config) * _validation(state)


def _validations(config: Any) -> int:
    """Validations of a run: those on the way, and the last one."""
    return math.ceil(config.train.steps / (config.train.valid_every or config.train.steps))


def _validation(state: Any) -> float:
    """CPU-seconds of a validation, from its first batch."""
    held_out = iter(state.task.held_out(0, 1))
    first = next(held_out, None)
    if first is None:
        return 0.0
    start = time.process_time()
    with torch.no_grad():
        state.task.measure(state.model, first)
    return (time.process_time() - start) * (1 + sum(1 for _ in held_out))


def numbers(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers with commas between, as an option gives them."""
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"--{option} is {text!r}; write whole numbers with commas between, for example 6,12,24")
    return tuple(map(int, parts))
