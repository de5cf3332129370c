"""The learning rate of every update."""

from __future__ import annotations

import math

from bathy.nmt.config import Config, OptimConfig


def learning_rate(config: Config, step: int) -> float:
    """The rate of update `step`, from 1: linear warm-up, then lr·√(warmup/step), a line or a cosine to 0, or lr."""
    optim, steps = config.optim, config.train.steps
    if optim.name == "radam" and optim.hold_unrectified and rectification(step, optim.beta2) <= 5:
        return 0.0
    if step < optim.warmup:
        return optim.warmup_from + (optim.lr - optim.warmup_from) * step / optim.warmup
    return optim.lr * _decay(optim, step, steps)


def _decay(optim: OptimConfig, step: int, steps: int) -> float:
    """The factor after warm-up."""
    done = min(1.0, (step - optim.warmup) / max(1, steps - optim.warmup))
    if optim.schedule == "linear":
        return 1 - done
    if optim.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if optim.schedule == "inverse_sqrt":
        return math.sqrt(max(1, optim.warmup) / step)
    return 1.0


def rectification(step: int, beta2: float) -> float:
    """ρ_t = ρ_∞ − 2tβ₂ᵗ/(1 − β₂ᵗ), ρ_∞ = 2/(1 − β₂) − 1: RAdam rectifies where it is above 5 (Liu et al., 2019)."""
    power = beta2**step
    return 2 / (1 - beta2) - 1 - 2 * step * power / (1 - power)
