"""Batches that stand out by their own loss, under weights from before they were trained on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import torch

from bathy.train.config import Config
from bathy.train.state import State
from bathy.train.task import take, to_device
from bathy.train.world import World

STANDS_OUT = 12.0
"""How many times the distance from the median to the upper quartile (8 deviations of normal noise) a batch must lie above, …"""
LEAST = 0.1
"""… and by how large a share of the median at least."""
MANY = 0.2
"""Share of the batches above which those that stand out are no burst."""
BURST = 60
"""Updates between the first and the last suspect at most; more are no burst but the data themselves."""
MOST = 400
"""Updates that are looked at, at most."""


def own_losses(config: Config, state: State, world: World, last: int) -> dict[int, float]:
    """Loss per token of every update's batches from the coming one to `last`, under the weights as they are now.

    Nothing is trained, and the stream stands afterwards where it stood. All ranks get the same numbers.
    """
    position, mode = state.batches.state_dict(), state.model.training
    state.engine.eval()
    losses = {}
    try:
        with torch.no_grad(), state.precision.autocast():
            for step in range(state.step + 1, min(last, state.step + MOST) + 1):
                batches = [to_device(batch, world.device) for batch in take(state.batches, config.train.accumulate)]
                loss = sum(float(state.objective.plain(batch)[1]) for batch in batches)
                total, count = world.sum(loss, sum(state.task.tokens(batch) for batch in batches))
                losses[step] = total / count if math.isfinite(total) else math.inf
    finally:
        state.engine.train(mode)
        state.batches.load_state_dict(position)
    return losses


def suspects(losses: Mapping[int, float]) -> list[int]:
    """The updates whose batches stand out, in order; none where they are too many, or too far apart, to be a burst."""
    if len(losses) < 5:
        return []
    middle = statistics.median(losses.values())
    if not math.isfinite(middle):
        return []
    upper = sorted(losses.values())[len(losses) * 3 // 4]
    limit = middle + max(STANDS_OUT * (upper - middle), LEAST * abs(middle))
    found = [step for step, loss in losses.items() if loss > limit]
    return found if found and found[-1] - found[0] < BURST and len(found) <= max(1, MANY * len(losses)) else []
