"""Validation: the task's readings over its held-out batches, summed over all ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from bathy.train.config import Config
from bathy.train.meter import perplexity
from bathy.train.state import State
from bathy.train.task import Readings, to_device
from bathy.train.world import World


def validate(config: Config, state: State, world: World) -> Readings:
    """The mean of each reading over the held-out batches, dropout off; nothing where the task has none."""
    alone = config.train.parallel == "fsdp"  # shards need every rank in every pass
    rank, size = (0, 1) if alone else (world.rank, world.size)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    mode = state.model.training
    state.engine.eval()
    try:
        with torch.no_grad(), state.precision.autocast():
            for batch in state.task.held_out(rank, size):
                for name, (total, weight) in state.objective.measure(to_device(batch, world.device)).items():
                    sums[name][0] += total
                    sums[name][1] += weight
    finally:
        state.engine.train(mode)
    names = list(sums) if alone else world.union(sums)  # a rank may have no held-out batch
    flat = [value for name in names for value in sums[name]]
    flat = flat if alone else world.sum(*flat)
    return {name: flat[2 * i] / max(flat[2 * i + 1], 1e-9) for i, name in enumerate(names)}


def validation_row(config: Config, state: State, readings: Readings, world: World) -> dict[str, Any]:
    """A row of the log: loss and perplexity, the task's other readings and, where a rank has the whole model, what it shows."""
    row: dict[str, Any] = {"valid_loss": readings["loss"], "valid_ppl": perplexity(readings["loss"])}
    row |= {name: value for name, value in readings.items() if name != "loss"}
    if world.first and (config.train.parallel == "ddp" or world.size == 1):
        mode = state.model.training
        state.model.eval()
        try:
            with torch.no_grad():
                row |= state.task.show(state.model)
        finally:
            state.model.train(mode)
    return row
