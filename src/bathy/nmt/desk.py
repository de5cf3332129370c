"""What happens round the updates of a run: metrics, validation, checkpoints, the monitor and the watch for divergence."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bathy import console
from bathy.clinic.diagnosis import diagnose
from bathy.clinic.examination import examine
from bathy.clinic.monitor import Monitor
from bathy.errors import Diverged
from bathy.nmt import checkpoint
from bathy.nmt.batches import open_splits, ordered
from bathy.nmt.config import Config
from bathy.nmt.flops import gemm_peak
from bathy.nmt.log import Log
from bathy.nmt.precision import HALVES
from bathy.nmt.schedule import learning_rate
from bathy.nmt.state import State
from bathy.nmt.update import Meter, Update
from bathy.nmt.validate import sample_bleu, validate
from bathy.nmt.view import View
from bathy.nmt.world import World

EXAMS = ("activations", "gradients", "step_change", "source")
"""What a diverged model is examined for."""


class Desk:
    """What happens round the updates: metrics, validation, checkpoints, the monitor and the watch for divergence."""

    def __init__(self, config: Config, run: Path, world: World, state: State) -> None:
        self.config, self.run, self.world, self.state = config, run, world, state
        half = HALVES.get(config.train.precision) if world.device.type == "cuda" else None
        self.meter = Meter(peak=gemm_peak(world.device, half or torch.float32, seconds=0.1) * world.size)
        self.saved = time.monotonic()
        self._open = ExitStack()
        self._log: Log | None = None
        self._monitor: Monitor | None = None
        self.view = View(config.train.steps, quiet=not world.first)

    def __enter__(self) -> Desk:
        config, state = self.config.train, self.state
        if self.world.first:
            self._log = self._open.enter_context(Log(self.run / "metrics.jsonl", state.step, config.tensorboard))
        self._open.enter_context(self.view)
        if config.monitor:
            readings = self.run / "readings.jsonl"
            monitor = Monitor(state.model, readings, optimizer=state.optimizer, every=config.monitor_every, start=state.step)
            self._monitor = self._open.enter_context(monitor)
        if state.step:
            self.say(f"going on from update {state.step}")
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def say(self, text: str) -> None:
        """Tell the person, once for all ranks."""
        if self.world.first:
            console.err.print(text)

    def write(self, **row: Any) -> None:
        """A row for the log and the view."""
        row = {"step": self.state.step, "epoch": self.state.epochs, **row}
        if self._log:
            self._log.write(**row)
        self.view.show(**row)

    def watch_next(self) -> None:
        """Let the monitor know what the coming update reads first."""
        if self._monitor and self._monitor.due(self.state.step):
            batches = self.state.batches
            if batches.position < len(batches):
                batch = batches.batch(batches.position).to(self.world.device)
                self._monitor.watch((batch.source, batch.target_in))

    def take(self, result: Update) -> None:
        """Note an update; stop the run if it has diverged."""
        self.meter.updates.append(result)
        if self._monitor:
            self._monitor.step(result.loss, loss_scale=self.state.precision.scale)
        if result.overflow:
            scale = self.state.precision.scale
            self.write(overflow=result.overflow, scale=scale)
            self.say(f"update {self.state.step} left out: not finite at {result.overflow}; loss scale now {scale:g}")
        elif why := self.state.watch.update(self.state.step, result.nll):
            self.stop_diverged(why)

    def stop_diverged(self, why: str) -> None:
        """Say what is wrong with the model and end, if the config wants that."""
        if not self.config.train.stop_diverged:
            return
        self.write(stopped=why)
        raise Diverged(f"stopped at update {self.state.step}: {why}. {self.diagnosis()}")

    def diagnosis(self) -> str:
        """The clinic's gravest finding on the coming batch, or else what helps most; the examination stays with the run."""
        config, state = self.config, self.state
        if self.world.first and config.train.parallel == "ddp":
            batch = next(state.batches).to(self.world.device)
            rate = learning_rate(config, state.step) or None
            with state.precision.autocast():
                found = examine(state.model, (batch.source, batch.target_in), exams=EXAMS, name="run", step=state.step, lr=rate)
            found.save(self.run / "examination.jsonl")
            if findings := [f for f in diagnose(found.readings) if f.severity in ("serious", "warning")]:
                return f"{findings[0].title}: {findings[0].cause} {findings[0].advice}"
        return (
            f"Try a scheme for depth (model.encoder_scheme and model.decoder_scheme 'admin' or 'pre_ln'), a lower optim.lr "
            f"(now {config.optim.lr:g}) or a longer optim.warmup (now {config.optim.warmup}); `bathy clinic {self.run}` shows "
            "where it fails; train.stop_diverged = false trains on"
        )

    def log(self) -> None:
        """A row of metrics over the updates since the last."""
        seconds = (time.monotonic() - self.meter.started) / max(1, len(self.meter.updates))
        left = (self.config.train.steps - self.state.step) * seconds
        scale = {"scale": self.state.precision.scale} if self.config.train.precision == "float16" else {}
        self.write(lr=learning_rate(self.config, self.state.step), **scale, **self.meter.row(), eta=left)

    def validate(self) -> None:
        """Validation loss, source gap and, where asked for, BLEU; counts towards patience."""
        config, state, world = self.config.train, self.state, self.world
        split = open_splits(self.config.data, "valid")[0]
        alone = World(device=world.device) if config.parallel == "fsdp" else world  # shards need every rank in every pass
        with state.precision.autocast():
            result = validate(state.objective, ordered(split, config.tokens, alone.rank, alone.size), alone)
        state.valid = result.loss
        state.waited = 0 if result.loss < state.best else state.waited + 1
        state.best = min(state.best, result.loss)
        row = {"valid_loss": result.loss, "valid_ppl": result.ppl, "source_gap": result.source_gap}
        if config.bleu_sentences and world.first:
            row["bleu"] = sample_bleu(state.model, split, config.bleu_sentences, world.device)
        self.write(**row)
        if why := state.watch.validated(state.step, result.loss, result.source_gap):
            self.stop_diverged(why)

    def due_by_time(self) -> bool:
        """Whether train.save_minutes have passed; the ranks agree."""
        minutes = self.config.train.save_minutes
        return minutes > 0 and self.world.any(time.monotonic() - self.saved >= 60 * minutes)

    def save(self) -> None:
        """Write a checkpoint and remove those that are no longer kept."""
        state, config = self.state, self.config.train
        weights, trainer = state.weights(), state.trainer()
        if self.world.first:
            valid = state.valid if math.isfinite(state.valid) else None
            meta = {"model": state.model.config.model_dump(), "valid_loss": valid, "epoch": state.epochs}
            checkpoint.save(self.run, state.step, weights, trainer, meta)
            checkpoint.prune(self.run, config.keep_last, config.keep_best)
        self.world.wait()
        self.saved = time.monotonic()
