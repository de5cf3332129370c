"""Training: from a data folder to a run that survives anything.

Everything random in an update follows from seed, update and rank; a checkpoint holds the rest. So a run that was stopped,
killed or moved goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from bathy.errors import ConfigError, TrainingError
from bathy.files import held, write_text
from bathy.nmt.batches import open_splits
from bathy.nmt.config import Config, read_config, to_toml
from bathy.nmt.cpu import flushed, hold_memory
from bathy.nmt.desk import Desk
from bathy.nmt.signals import Stop, stopping
from bathy.nmt.state import State, begin
from bathy.nmt.text.codec import Codec
from bathy.nmt.update import update
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
    data = open_splits(config.data)[0].folder
    with _memory_explained(config), flushed(), held(run) if world.first else nullcontext():
        _write_config(config, run, data, world, allow_changes)
        state = begin(config, run, world)
        with stopping() as stop, state.precision.products(), Desk(config, run, world, state) as desk:
            _loop(config, state, world, desk, stop)
    return state


def _loop(config: Config, state: State, world: World, desk: Desk, stop: Stop) -> None:
    """Update, log, validate and save, each in its rhythm."""
    while not finished(config, state) and not world.any(stop.asked):
        state.step += 1
        epochs = state.epochs
        desk.watch_next()
        desk.take(update(config, state, world))
        last = finished(config, state)
        if every(state.step, config.train.log_every) or last:
            desk.log()
        epoch_ended = config.train.save_epochs and state.epochs > epochs  # perhaps in the middle of an update
        saving = last or desk.due_by_time() or every(state.step, config.train.save_every) or epoch_ended
        if saving or every(state.step, config.train.valid_every):
            desk.validate()
        if saving or finished(config, state):  # by patience
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


def _write_config(config: Config, run: Path, data: Path, world: World, allow_changes: bool) -> None:
    """Keep config and tokenizer with the run; a run goes on only under the config it began with, unless told."""
    path = run / "config.toml"
    if path.exists() and not allow_changes and (changed := differences(read_config(path), config)):
        raise ConfigError(
            f"{run} was begun with another config ({'; '.join(changed)}); "
            "take another train.run, or --allow-changes to go on with the new one"
        )
    if world.first:
        codec = Codec.load(data)
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
