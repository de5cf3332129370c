"""Training: from a data folder to a run that survives anything.

Everything random in an update follows from seed, update and rank; a checkpoint holds the rest. So a run that was stopped,
killed or moved goes on as if it had never stopped.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from bathy import console
from bathy.admin import stabilise_
from bathy.errors import ConfigError, TrainingError
from bathy.files import write_text
from bathy.nmt import checkpoint
from bathy.nmt.batches import Batch, Batches, open_splits, ordered
from bathy.nmt.config import Config, read_config, to_toml
from bathy.nmt.log import Log
from bathy.nmt.objective import Objective
from bathy.nmt.optim import make_optimizer, set_learning_rate
from bathy.nmt.precision import Precision
from bathy.nmt.schedule import learning_rate
from bathy.nmt.validate import Validation, validate
from bathy.nmt.world import World
from bathy.schemes import SCHEMES
from bathy.transformer import Transformer, TransformerConfig

PROFILE_TOKENS = 8192


@dataclass
class State:
    """A run in progress: what a checkpoint holds, and the parts that work on it."""

    model: Transformer
    objective: Objective
    optimizer: Optimizer
    precision: Precision
    batches: Batches
    step: int = 0
    valid: float = math.inf
    """The newest validation loss."""
    best: float = math.inf
    """Lowest validation loss so far."""
    waited: int = 0
    """Validations since then."""

    def trainer(self) -> dict[str, Any]:
        """All but the weights, as plain containers and tensors."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
            "batches": self.batches.state_dict(),
            "step": self.step,
            "best": self.best,
            "waited": self.waited,
        }

    def restore_(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        checkpoint.put_weights(self.model, checkpoint.read_weights(folder), folder)
        saved = checkpoint.read_trainer(folder)
        self.optimizer.load_state_dict(saved["optimizer"])
        self.precision.load_state_dict(saved["precision"])
        self.batches.load_state_dict(saved["batches"])
        self.step, self.best, self.waited = saved["step"], saved["best"], saved["waited"]


@dataclass
class Stop:
    """Whether a signal asked the run to end after the current update."""

    asked: bool = False
    name: str = ""


@dataclass(frozen=True)
class Update:
    """What one update gave, over all ranks."""

    loss: float
    nll: float
    tokens: float
    efficiency: float
    norm: float


@dataclass
class Meter:
    """Updates since the last line of the log."""

    updates: list[Update] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def row(self) -> dict[str, float]:
        """Means over the updates, and tokens a second; starts anew."""
        tokens = sum(update.tokens for update in self.updates)
        seconds = time.monotonic() - self.started
        row = {
            "loss": sum(update.loss * update.tokens for update in self.updates) / tokens,
            "nll": sum(update.nll * update.tokens for update in self.updates) / tokens,
            "gradient_norm": self.updates[-1].norm,
            "efficiency": sum(update.efficiency for update in self.updates) / len(self.updates),
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }
        self.updates, self.started = [], time.monotonic()
        return row


def run_folder(config: Config, source: Path | None) -> Path:
    """Where the run goes: train.run, else runs/ and the config file's name."""
    return Path(config.train.run) if config.train.run else Path("runs") / (source.stem if source else "run")


def train(config: Config, run: Path, world: World, allow_changes: bool = False) -> State:
    """Train in the run's folder, from its newest checkpoint where there is one, until steps, epochs, patience or a signal."""
    _write_config(config, run, world, allow_changes)
    state = begin(config, run, world)
    with Log(run / "metrics.jsonl", state.step) if world.first else nullcontext() as log, _signals() as stop:
        _loop(config, run, world, state, log, stop)
    return state


def begin(config: Config, run: Path, world: World) -> State:
    """The run's state: from its newest checkpoint, else fresh, with Admin's ω set from the first batch."""
    torch.manual_seed(config.train.seed)
    splits = open_splits(config.data)
    vocab = (
        splits[0].manifest["vocab"]["size"] if isinstance(splits[0].manifest["vocab"], dict) else splits[0].manifest["vocab"]
    )
    model = Transformer(TransformerConfig(vocab=vocab, **config.model.model_dump()))
    precision = Precision(config.train.precision, world.device)
    model.to(world.device, precision.dtype).checkpoint_(config.train.checkpointing)
    batches = Batches(
        splits, config.train.tokens, config.train.seed, world.rank, world.size, config.data.weights, config.data.bpe_dropout
    )
    state = State(
        model, Objective(model, config.optim.label_smoothing), make_optimizer(model, config.optim), precision, batches
    )
    found = checkpoint.newest(run)
    if found:
        state.restore_(found)
    elif config.train.init_from:
        source = Path(config.train.init_from)
        checkpoint.put_weights(model, checkpoint.weights_of(checkpoint.load(source)), source)
    elif any(SCHEMES[config.model.scheme_name(stack)].profiled for stack in config.model.stacks):
        _stabilise(state, run, world)
    return state


def _stabilise(state: State, run: Path, world: World) -> None:
    """Set Admin's ω from rank 0's first batch, on every rank, and keep the profile."""
    batch = state.batches.batch(0).to(world.device)
    profile = stabilise_(state.model, (batch.source, batch.target_in), tokens=PROFILE_TOKENS)
    if world.first:
        profile.save(run / "profile.json")


def _loop(config: Config, run: Path, world: World, state: State, log: Log | None, stop: Stop) -> None:
    meter, saved = Meter(), time.monotonic()
    while not finished(config, state) and not world.any(stop.asked):
        state.step += 1
        meter.updates.append(update(config, state, world))
        last = finished(config, state)
        if log and (state.step % config.train.log_every == 0 or last):
            log.write(step=state.step, lr=learning_rate(config, state.step), scale=state.precision.scale, **meter.row())
        by_time = 0 < config.train.save_minutes * 60 <= time.monotonic() - saved
        saving = last or by_time or _every(state.step, config.train.save_every) or _epoch_ends(config, state)
        if saving or _every(state.step, config.train.valid_every):
            _validate(config, state, world, log)
        if saving:
            _save(config, run, world, state)
            saved = time.monotonic()
    if stop.asked:
        _save(config, run, world, state)
        console.err.print(f"{stop.name}: saved at update {state.step}; the same command goes on from here")


def update(config: Config, state: State, world: World) -> Update:
    """One update over `accumulate` batches of every rank, the loss normalised by all their target tokens."""
    torch.manual_seed(hash_seed(config.train.seed, state.step, world.rank))
    batches = [batch.to(world.device) for batch in state.batches.take(config.train.accumulate)]
    (total,) = world.sum(sum(batch.target_tokens for batch in batches))
    set_learning_rate(state.optimizer, learning_rate(config, state.step))
    state.optimizer.zero_grad(set_to_none=True)
    loss = nll = 0.0
    for number, batch in enumerate(batches):
        with no_sync(state, last=number == len(batches) - 1), state.precision.autocast():
            smoothed, plain = state.objective(batch.source, batch.target_in, batch.target_out)
            state.precision.scaler.scale(smoothed * (world.size / total)).backward()
        loss, nll = loss + float(smoothed.detach()), nll + float(plain)
    norm = state.precision.step(state.optimizer, state.model, config.optim.clip)
    loss, nll = world.sum(loss, nll)
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss of update {state.step} is {loss}: weights or activations overflow; lower optim.lr, lengthen "
            "optim.warmup or use bfloat16, then run the same command with --allow-changes to go on from the last checkpoint"
        )
    return Update(loss / total, nll / total, total, sum(batch.efficiency for batch in batches) / len(batches), norm)


def hash_seed(seed: int, step: int, rank: int) -> int:
    """A seed for the dropout of one update on one rank."""
    return (seed * 1_000_003 + step) * 1_009 + rank


def no_sync(state: State, last: bool) -> AbstractContextManager[None]:
    """Where DDP leaves gradients on their rank: all but the last batch of an update, forward and backward."""
    if last or not hasattr(state.objective, "no_sync"):
        return nullcontext()
    return state.objective.no_sync()  # type: ignore[operator]


def finished(config: Config, state: State) -> bool:
    """Whether steps, epochs or patience are used up."""
    epochs = config.train.epochs
    over = bool(epochs) and state.batches.epoch + (state.batches.position >= len(state.batches)) >= epochs
    return state.step >= config.train.steps or over or 0 < config.train.patience <= state.waited


def _every(step: int, rhythm: int) -> bool:
    return rhythm > 0 and step % rhythm == 0


def _epoch_ends(config: Config, state: State) -> bool:
    return config.train.save_epochs and state.batches.position >= len(state.batches)


def _validate(config: Config, state: State, world: World, log: Log | None) -> Validation:
    split = open_splits(config.data, "valid")[0]
    batches: Iterator[Batch] = ordered(split, config.train.tokens, world.rank, world.size)
    with state.precision.autocast():
        result = validate(state.objective, batches, world)
    state.valid = result.loss
    state.waited = 0 if result.loss < state.best else state.waited + 1
    state.best = min(state.best, result.loss)
    if log:
        log.write(step=state.step, valid_loss=result.loss, valid_ppl=result.ppl, source_gap=result.source_gap)
    return result


def _save(config: Config, run: Path, world: World, state: State) -> None:
    """Write a checkpoint and remove those that are no longer kept."""
    if world.first:
        settings = state.model.config.model_dump()
        meta = {"model": settings, "valid_loss": state.valid, "epoch": state.batches.epoch}
        checkpoint.save(run, state.step, checkpoint.weights_of(state.model), state.trainer(), meta)
        checkpoint.prune(run, config.train.keep_last, config.train.keep_best)
    world.wait()


def _write_config(config: Config, run: Path, world: World, allow_changes: bool) -> None:
    """Keep the resolved config with the run; a run goes on only under the config it began with, unless told."""
    path = run / "config.toml"
    if path.exists() and not allow_changes and (changed := differences(read_config(path), config)):
        raise ConfigError(
            f"{run} was begun with another config ({'; '.join(changed)}); "
            "take another train.run, or --allow-changes to go on with the new one"
        )
    if world.first:
        write_text(path, to_toml(config))


FREE = {
    "run",
    "steps",
    "epochs",
    "log_every",
    "valid_every",
    "save_every",
    "save_epochs",
    "save_minutes",
    "keep_last",
    "keep_best",
    "patience",
}
"""Settings of [train] that may change in a resumed run: they move no weight."""


def differences(old: Config, new: Config) -> list[str]:
    """Settings that changed and matter to training."""
    return [
        f"{section}.{key} was {value!r}, is {getattr(getattr(new, section), key)!r}"
        for section in ("data", "model", "optim", "train")
        for key, value in getattr(old, section)
        if getattr(getattr(new, section), key) != value and not (section == "train" and key in FREE)
    ]


@contextmanager
def _signals() -> Iterator[Stop]:
    """Inside the block SIGINT and SIGTERM ask for a stop after the current update; a second one ends at once."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked, stop.name = True, signal.Signals(number).name

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
