"""One update: the gradient of `accumulate` batches on every rank, normalised by all their target tokens, then a step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from bathy.nmt.batches import Batch
from bathy.nmt.config import Config
from bathy.nmt.flops import batch_flops
from bathy.nmt.optim import gradient_norm, set_learning_rate
from bathy.nmt.overflow import first_overflow
from bathy.nmt.schedule import learning_rate
from bathy.nmt.state import State
from bathy.nmt.world import World, accumulating


@dataclass(frozen=True)
class Update:
    """What one update gave, over all ranks."""

    loss: float
    """Smoothed loss for each target token."""
    nll: float
    tokens: float
    """Target tokens."""
    efficiency: float
    """Real tokens among all."""
    norm: float
    """The gradient's norm, not finite where the update was left out."""
    flops: float
    """Operations that the real tokens need."""
    overflow: str = ""
    """Where an overflow began."""


def update(config: Config, state: State, world: World) -> Update:
    """Take one update; a gradient that is not finite changes nothing but the loss scale."""
    batches = [batch.to(world.device) for batch in state.batches.take(config.train.accumulate)]
    (total,) = world.sum(sum(batch.target_tokens for batch in batches))
    set_learning_rate(state.optimizer, learning_rate(config, state.step))
    seed = (config.train.seed, state.step)
    world.seed(*seed)
    loss, nll = _backward(state, state.engine, batches, state.precision.scale * world.size / total)
    norm = _step(config, state)
    overflow = ""
    if not math.isfinite(norm):
        world.seed(*seed)
        overflow = first_overflow(state.model, lambda: _backward(state, state.objective, batches, state.precision.scale))
    state.optimizer.zero_grad(set_to_none=True)
    state.precision.update(math.isfinite(norm))
    state.precision.check(overflow)
    flops = sum(_flops(state, batch) for batch in batches)
    efficiency = sum(batch.efficiency for batch in batches) / len(batches)
    loss, nll, flops, efficiency = world.sum(loss, nll, flops, efficiency)
    return Update(loss / total, nll / total, total, efficiency / world.size, norm, flops, overflow)


def _backward(state: State, engine: nn.Module, batches: Sequence[Batch], factor: float) -> tuple[float, float]:
    """Gradients of the batches' losses times `factor`; the sums of loss and NLL."""
    loss = nll = 0.0
    for number, batch in enumerate(batches, 1):
        with accumulating(engine, last=number == len(batches)):
            with state.precision.autocast():
                smoothed, plain = engine(batch.source, batch.target_in, batch.target_out)
            (smoothed * factor).backward()
        loss, nll = loss + float(smoothed.detach()), nll + float(plain)
    return loss, nll


def _step(config: Config, state: State) -> float:
    """Unscale, clip and, if all is finite, step; returns the norm of the unscaled gradient."""
    parameters = list(state.model.parameters())
    if state.precision.scale != 1:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / state.precision.scale)
    norm = gradient_norm(parameters)
    if config.optim.clip:
        nn.utils.clip_grads_with_norm_(parameters, config.optim.clip, norm)
    if math.isfinite(norm):
        state.optimizer.step()
    return float(norm)


def _flops(state: State, batch: Batch) -> float:
    config = state.model.config
    lengths = (tokens.ne(config.pad).sum(1) for tokens in (batch.source, batch.target_out))
    return batch_flops(config, config.vocab, *lengths)


@dataclass
class Meter:
    """Updates since the last row of the log."""

    peak: float
    """Operations a second that all ranks could reach."""
    updates: list[Update] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def row(self) -> dict[str, float]:
        """Means over the updates, and speed; starts anew."""
        good = [update for update in self.updates if math.isfinite(update.loss)]
        tokens = sum(update.tokens for update in good)
        seconds = max(time.monotonic() - self.started, 1e-9)
        nll = sum(update.nll * update.tokens for update in good) / tokens if good else math.nan
        row = {
            "loss": sum(update.loss * update.tokens for update in good) / tokens if good else math.nan,
            "nll": nll,
            "ppl": math.exp(min(nll, 700.0)),
            "gradient_norm": self.updates[-1].norm,
            "skipped": sum(not math.isfinite(update.norm) for update in self.updates),
            "efficiency": sum(update.efficiency for update in self.updates) / len(self.updates),
            "tokens_per_second": sum(update.tokens for update in self.updates) / seconds,
            "mfu": sum(update.flops for update in self.updates) / seconds / self.peak,
        }
        self.updates, self.started = [], time.monotonic()
        return row
