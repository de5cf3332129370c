"""Saving: when a checkpoint is due, what goes into it, and which ones stay."""

from __future__ import annotations

import math
import time
from pathlib import Path

from bathy.train import checkpoint
from bathy.train.config import Config
from bathy.train.recovery import RECENT
from bathy.train.state import State
from bathy.train.world import World


class Saving:
    """Writes a run's checkpoints."""

    def __init__(self, config: Config, run: Path, world: World, state: State) -> None:
        self.config, self.run, self.world, self.state = config, run, world, state
        self.saved, self.step = time.monotonic(), state.step
        """When the last checkpoint was written, and of which update it is."""

    def due_by_time(self) -> bool:
        """Whether train.save_minutes have passed; the ranks agree."""
        minutes = self.config.train.save_minutes
        return minutes > 0 and self.world.any(time.monotonic() - self.saved >= 60 * minutes)

    def save(self) -> None:
        """Write a checkpoint, unless this update's stands already, and remove those that are no longer kept."""
        state, config = self.state, self.config.train
        if state.step == self.step:
            return
        self._write(self.run, config.keep_last, config.keep_best)
        self.saved, self.step = time.monotonic(), state.step

    def save_recent(self) -> None:
        """Write a checkpoint for recovery and post-mortems, apart from those that are kept."""
        self._write(self.run / RECENT, self.config.train.recent_keep, 0)

    def _write(self, folder: Path, last: int, best: int) -> None:
        state = self.state
        weights, trainer = state.weights(), state.trainer()
        if self.world.first:
            valid = state.valid if math.isfinite(state.valid) else None
            meta = {"model": state.task.describe(state.model), "valid_loss": valid, "epoch": state.batches.epochs}
            checkpoint.save(folder, state.step, weights, trainer, meta, state.ema)
            checkpoint.prune(folder, last, best)
        self.world.wait()
