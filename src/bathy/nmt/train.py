"""Training: from a data folder to a run that survives anything.

Everything random in an update follows from seed, update and rank; a checkpoint holds the rest. So a run that was stopped,
killed or moved goes on as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from bathy import console
from bathy.clinic.monitor import Monitor
from bathy.errors import ConfigError, Diverged, TrainingError
from bathy.files import write_text
from bathy.nmt import checkpoint
from bathy.nmt.batches import open_splits, ordered
from bathy.nmt.config import Config, read_config, to_toml
from bathy.nmt.flops import gemm_peak
from bathy.nmt.log import Log
from bathy.nmt.memory import hold_memory
from bathy.nmt.precision import HALVES
from bathy.nmt.schedule import learning_rate
from bathy.nmt.signals import Stop, stopping
from bathy.nmt.state import State, begin
from bathy.nmt.text.codec import Codec
from bathy.nmt.update import Meter, Update, update
from bathy.nmt.validate import sample_bleu, validate
from bathy.nmt.view import View
from bathy.nmt.world import World

FREE = {
    "run", "steps", "epochs", "log_every", "valid_every", "save_every", "save_epochs", "save_minutes", "keep_last", "keep_best",
    "patience", "bleu_sentences", "monitor", "monitor_every", "tensorboard", "stop_diverged",
}  # fmt: skip
"""Settings of [train] that may change in a resumed run: they move no weight."""


def run_folder(config: Config, source: Path | None) -> Path:
    """Where the run goes: train.run, else runs/ and the config file's name."""
    return Path(config.train.run) if config.train.run else Path("runs") / (source.stem if source else "run")


def train(config: Config, run: Path, world: World, allow_changes: bool = False) -> State:
    """Train in the run's folder, from its newest checkpoint where there is one, until steps, epochs, patience or a signal."""
    if world.device.type == "cpu":
        hold_memory()
    with _memory_explained(config):
        _write_config(config, run, world, allow_changes)
        state = begin(config, run, world)
        with stopping() as stop, Desk(config, run, world, state) as desk:
            _loop(config, state, world, desk, stop)
    return state


def _loop(config: Config, state: State, world: World, desk: Desk, stop: Stop) -> None:
    """Update, log, validate and save, each in its rhythm."""
    while not finished(config, state) and not world.any(stop.asked):
        state.step += 1
        desk.watch_next()
        desk.take(update(config, state, world))
        last = finished(config, state)
        if every(state.step, config.train.log_every) or last:
            desk.log()
        saving = last or desk.due_by_time() or every(state.step, config.train.save_every) or _epoch_ends(config, state)
        if saving or every(state.step, config.train.valid_every):
            desk.validate()
        if saving:
            desk.save()
    if world.any(stop.asked):
        desk.save()
        desk.say(f"{stop.name or 'a signal'}: saved at update {state.step}; the same command goes on from here")


def finished(config: Config, state: State) -> bool:
    """Whether steps, epochs or patience are used up."""
    over = 0 < config.train.epochs <= state.epochs
    return state.step >= config.train.steps or over or 0 < config.train.patience <= state.waited


def every(step: int, rhythm: int) -> bool:
    """Whether a step falls on a rhythm; 0 is none."""
    return rhythm > 0 and step % rhythm == 0


def _epoch_ends(config: Config, state: State) -> bool:
    return config.train.save_epochs and state.batches.position >= len(state.batches)


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
        """What can be done, from what the run has shown."""
        if self.state.valid < math.inf and self.world.first:
            self.say(f"last validation loss {self.state.valid:.3f}")
        return (
            f"Try a scheme for depth (model.encoder_scheme and model.decoder_scheme 'admin' or 'pre_ln'), a lower optim.lr "
            f"(now {self.config.optim.lr:g}) or a longer optim.warmup (now {self.config.optim.warmup}); `bathy clinic "
            f"{self.run}` shows where it fails; train.stop_diverged = false trains on"
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


def _write_config(config: Config, run: Path, world: World, allow_changes: bool) -> None:
    """Keep config and tokenizer with the run; a run goes on only under the config it began with, unless told."""
    path = run / "config.toml"
    if path.exists() and not allow_changes and (changed := differences(read_config(path), config)):
        raise ConfigError(
            f"{run} was begun with another config ({'; '.join(changed)}); "
            "take another train.run, or --allow-changes to go on with the new one"
        )
    if world.first:
        codec = Codec.load(open_splits(config.data)[0].folder)
        write_text(path, to_toml(config))
        codec.save(run)
    world.wait()


def differences(old: Config, new: Config) -> list[str]:
    """Settings that changed and matter to training."""
    return [
        f"{section}.{key} was {value!r}, is {getattr(getattr(new, section), key)!r}"
        for section in ("data", "model", "optim", "train")
        for key, value in getattr(old, section)
        if getattr(getattr(new, section), key) != value and not (section == "train" and key in FREE)
    ]


@contextmanager
def _memory_explained(config: Config) -> Iterator[None]:
    """A block in which memory that runs out is an error of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not memory:
            raise
        tokens, accumulate = config.train.tokens, config.train.accumulate
        raise TrainingError(
            f"a batch of {tokens} tokens does not fit in memory; halve train.tokens and double train.accumulate (now "
            f"{accumulate}), or set train.checkpointing = true, and go on from the last checkpoint with --allow-changes"
        ) from error
