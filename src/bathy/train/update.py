"""One update: the gradient of `accumulate` batches on every rank, normalised by all their tokens, then a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bathy.train.config import Config
from bathy.train.meter import Update
from bathy.train.optim import gradient_norm, set_learning_rate
from bathy.train.overflow import first_overflow
from bathy.train.state import State
from bathy.train.task import to_device
from bathy.train.world import World, accumulating


def update(config: Config, state: State, world: World, batches: Sequence[Any]) -> Update:
    """Take one update; a gradient that is not finite changes nothing but the loss scale."""
    task = state.task
    batches = [to_device(batch, world.device) for batch in batches]
    (total,) = world.sum(sum(task.tokens(batch) for batch in batches))
    set_learning_rate(state.optimizer, state.learning_rate(config))
    seed = (config.train.seed, state.step)
    world.seed(*seed)
    loss, nll = _backward(state, state.engine, batches, state.precision.scale * world.size / total)
    norm = _step(config, state)
    overflow = ""
    if not math.isfinite(norm):
        world.seed(*seed)
        plain = lambda batch: task.loss(state.model, batch)  # noqa: E731, neither compiled nor wrapped: hooks see every site
        overflow = first_overflow(state.model, lambda: _backward(state, plain, batches, state.precision.scale))
    state.optimizer.zero_grad(set_to_none=True)
    state.precision.update(math.isfinite(norm))
    state.precision.check(overflow)
    flops = sum(task.flops(state.model, batch) for batch in batches)
    efficiency = sum(task.efficiency(batch) for batch in batches) / len(batches)
    loss, nll, flops, efficiency = world.sum(loss, nll, flops, efficiency)
    return Update(loss / total, nll / total, total, efficiency / world.size, norm, flops, overflow)


def _backward(
    state: State, losses: Callable[[Any], tuple[Tensor, Tensor]], batches: Sequence[Any], factor: float
) -> tuple[float, float]:
    """Gradients of the batches' losses times `factor`; the sums of loss and NLL."""
    loss = nll = 0.0
    for number, batch in enumerate(batches, 1):
        with accumulating(losses, last=number == len(batches)):
            with state.precision.autocast():
                minimised, plain = losses(batch)
            (minimised * factor).backward()
        loss, nll = loss + float(minimised.detach()), nll + float(plain.detach())
    return loss, nll


def _step(config: Config, state: State) -> float:
    """Unscale, clip and, if all is finite, step; returns the norm of the unscaled gradient."""
    # the optimiser's lists, not the model's, which would be gathered anew from thousands of modules
    parameters = [p for group in state.optimizer.param_groups for p in group["params"] if p.grad is not None]
    if state.precision.scale != 1:
        torch._foreach_mul_([p.grad for p in parameters], 1 / state.precision.scale)
    norm = gradient_norm(parameters)
    if config.optim.clip:
        nn.utils.clip_grads_with_norm_(parameters, config.optim.clip, norm)
    if math.isfinite(norm):
        state.optimizer.step()
    return float(norm)
