"""The learning rate of every update: linear warm-up, then a row of SCHEDULES."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bathy.errors import ConfigError, unknown

if TYPE_CHECKING:
    from bathy.train.config import Config, OptimConfig


def learning_rate(config: Config, step: int) -> float:
    """The rate of update `step`, from 1."""
    optim, steps = config.optim, config.train.steps
    if optim.name == "radam" and optim.hold_unrectified and rectification(step, optim.beta2) <= 5:
        return 0.0
    if step < optim.warmup:
        return optim.warmup_from + (optim.lr - optim.warmup_from) * step / optim.warmup
    return find_schedule(optim.schedule).rate(optim, step, steps)


def inverse_sqrt(optim: OptimConfig, step: int, steps: int) -> float:
    """lr · √(warmup/step)."""
    return optim.lr * math.sqrt(max(1, optim.warmup) / step)


def linear(optim: OptimConfig, step: int, steps: int) -> float:
    """A line from lr to lr_floor at train.steps."""
    return _between(optim, 1 - _done(optim, step, steps))


def cosine(optim: OptimConfig, step: int, steps: int) -> float:
    """Half a cosine from lr to lr_floor at train.steps (Loshchilov and Hutter, 2017)."""
    return _between(optim, 0.5 * (1 + math.cos(math.pi * _done(optim, step, steps))))


def wsd(optim: OptimConfig, step: int, steps: int) -> float:
    """lr until the last decay_share of train.steps, then a line to lr_floor: warm-up, stable, decay (Hu et al., 2024)."""
    length = max(1.0, optim.decay_share * steps)
    return _between(optim, min(1.0, max(0.0, (steps - step) / length)))


def constant(optim: OptimConfig, step: int, steps: int) -> float:
    """lr."""
    return optim.lr


def _done(optim: OptimConfig, step: int, steps: int) -> float:
    """The share of the updates after warm-up that are over."""
    return min(1.0, (step - optim.warmup) / max(1, steps - optim.warmup))


def _between(optim: OptimConfig, share: float) -> float:
    """lr_floor plus a share of what lies between it and lr."""
    return optim.lr * share if not optim.lr_floor else optim.lr_floor + (optim.lr - optim.lr_floor) * share


@dataclass(frozen=True)
class Schedule:
    """A row: the rate after warm-up, and whether it ends at train.steps."""

    rate: Callable[[OptimConfig, int, int], float]
    ends: bool = False


SCHEDULES: dict[str, Schedule] = {
    "inverse_sqrt": Schedule(inverse_sqrt),
    "linear": Schedule(linear, ends=True),
    "cosine": Schedule(cosine, ends=True),
    "wsd": Schedule(wsd, ends=True),
    "constant": Schedule(constant),
}


def find_schedule(name: str) -> Schedule:
    """The schedule of that name, or an error that names the nearest."""
    if name not in SCHEDULES:
        raise ConfigError(unknown("schedule", name, SCHEDULES))
    return SCHEDULES[name]


def rectification(step: int, beta2: float) -> float:
    """ρ_t = ρ_∞ − 2tβ₂ᵗ/(1 − β₂ᵗ), ρ_∞ = 2/(1 − β₂) − 1: RAdam rectifies where it is above 5 (Liu et al., 2019)."""
    power = beta2**step
    return 2 / (1 - beta2) - 1 - 2 * step * power / (1 - power)
