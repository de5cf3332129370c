"""Training: from a task and a config to a run that can be stopped, killed or moved and still ends the same.

Everything random in an update follows from seed, update and rank; a checkpoint holds the rest. So a run that was stopped,
killed or moved resumes as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from bathy import console
from bathy.clinic.monitor import Monitor
from bathy.errors import Diverged, TrainingError
from bathy.files import lock_folder
from bathy.kernels.library import described, products_by
from bathy.kernels.memory import flushed, hold_memory, needs_memory
from bathy.train import checkpoint
from bathy.train.averaging import compare
from bathy.train.config import Config
from bathy.train.diagnosis import refuse_repeated_failure, stop_diverged
from bathy.train.flops import gemm_peak
from bathy.train.folder import check_config, write_config
from bathy.train.log import Log, cut_back, read_log
from bathy.train.meter import Update
from bathy.train.recovering import prepare_recovery
from bathy.train.recovery import skipped_batches
from bathy.train.saving import Saving
from bathy.train.signals import Stop, stopping
from bathy.train.state import State, begin
from bathy.train.task import Task, peek, take, to_device
from bathy.train.update import update
from bathy.train.validation import validate, validation_row
from bathy.train.view import View
from bathy.train.world import World, joined


def fit(
    task: Task,
    config: Config,
    run: str | Path,
    world: World | None = None,
    allow_changes: bool = False,
    until: int = 0,
    deadline: float = math.inf,
) -> State:
    """Train in the run's folder, from its newest checkpoint where there is one, until steps, epochs, patience or a signal.

    Under torchrun the ranks share the work. A resumed run must have the settings it was started with, but for those that move
    no weight, unless `allow_changes`. `until` ends it after that update, `deadline` at that time.monotonic(), saved, as a
    signal would.
    """
    if world is None:
        with joined() as world:
            return fit(task, config, run, world, allow_changes, until, deadline)
    run = Path(run)
    if world.device.type == "cpu":
        hold_memory()
    with _memory_explained(config), flushed(), lock_folder(run) if world.first else nullcontext():
        refuse_repeated_failure(run)
        task.check()
        check_config(config, run, allow_changes)
        if world.first:
            checkpoint.clean(run)
        while True:
            state = begin(task, config, run, world)
            if world.first:
                write_config(config, run)
                task.write_files(run)
            world.wait()
            try:
                with ExitStack() as during:
                    stop = during.enter_context(stopping())
                    during.enter_context(products_by(state.products))
                    during.enter_context(state.precision.products())
                    in_progress = during.enter_context(Run(state.config, run, world, state))
                    _loop(state.config, state, world, in_progress, stop, until, deadline)
                return state
            except Diverged as error:
                prepare_recovery(task, config, state, run, world, error)
            finally:
                # DDP's reducer must not be the last to hold the process group: it would close it while it holds the
                # interpreter's lock, for which the group's own threads may be waiting, and the rank would hang for ever.
                state.engine = state.objective


def _loop(config: Config, state: State, world: World, run: Run, stop: Stop, until: int, deadline: float) -> None:
    """Update, log, validate and save, each at its own interval."""
    start = state.step
    while not finished(config, state) and not world.any(stop.asked):
        late = deadline < math.inf and world.any(time.monotonic() > deadline)
        if late or 0 < until <= state.step:
            run.saving.save()
            return
        state.step += 1
        epochs = state.batches.epochs
        run.update()
        epoch_ended = state.batches.epochs > epochs  # perhaps in the middle of an update
        last = finished(config, state)
        if every(state.step, config.train.log_every) or last:
            run.log()
        if last or every(state.step, config.train.valid_every) or (epoch_ended and config.train.valid_epochs):
            run.validate()
        due = every(state.step, config.train.save_every) or (epoch_ended and config.train.save_epochs)
        if every(state.step, config.train.recent_interval):
            run.saving.save_recent()
        if due or run.saving.due_by_time() or finished(config, state):  # perhaps by patience
            run.saving.save()
    if finished(config, state) and state.step > start:
        run.compare_averages()
    elif world.any(stop.asked):
        run.saving.save()
        run.say(f"{stop.name or 'a signal'}: saved at update {state.step}; run the same command to resume")


def finished(config: Config, state: State) -> bool:
    """Whether steps, epochs or patience are used up."""
    over = 0 < config.train.epochs <= state.batches.epochs
    return state.step >= config.train.steps or over or 0 < config.train.patience <= state.waited


def every(step: int, interval: int) -> bool:
    """Whether a step falls on an interval; 0 is never."""
    return interval > 0 and step % interval == 0


@cache
def _peak(device: torch.device, dtype: torch.dtype) -> float:
    """What products reach here, once in a process; the best of three, since others may compute here, too."""
    return max(gemm_peak(device, dtype, seconds=0.1).speed for _ in range(3))


class Run:
    """A run while it trains: its log, its view, its monitor, and the acts of the loop."""

    def __init__(self, config: Config, run: Path, world: World, state: State) -> None:
        self.config, self.run, self.world, self.state = config, run, world, state
        state.meter.peak = _peak(world.device, state.precision.product_dtype) * world.size
        self.saving = Saving(config, run, world, state)
        self.view = View(config.train.steps, state.task.labels, quiet=not world.first)
        self._open = ExitStack()
        self._log: Log | None = None
        self._monitor: Monitor | None = None

    def __enter__(self) -> Run:
        config, state = self.config.train, self.state
        if self.world.first:
            self._log = self._open.enter_context(self._make_log())
            cut_back(self.run / "readings.jsonl", state.step)
        self._open.enter_context(self.view)
        if config.monitor:
            self._monitor = state.monitor = self._open.enter_context(self._make_monitor())
            state.monitor.load_state_dict(state.monitor_saved)
        self._note_recovery()
        if self.world.device.type == "cpu":
            self.say(f"matrix products by {described(state.products)}")
        if state.step:
            self.say(f"resuming from update {state.step}")
        return self

    def _make_log(self) -> Log:
        settings = self.config.model_dump(mode="json")
        return Log(self.run / "metrics.jsonl", self.state.step, self.config.train.loggers, settings)

    def _make_monitor(self) -> Monitor:
        """The clinic's monitor; the coming batch shows it where a model of your own has its residual connections."""
        state, readings = self.state, self.run / "readings.jsonl"
        batch = state.task.inputs(to_device(peek(state.batches), self.world.device))
        every = self.config.train.monitor_every
        return Monitor(state.model, readings, optimizer=state.optimizer, every=every, start=state.step, batch=batch)

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def say(self, text: str) -> None:
        """Tell the person, once for all ranks."""
        if self.world.first:
            console.err.print(text)

    def write(self, **row: object) -> None:
        """A row for the log and the view."""
        row = {"step": self.state.step, "epoch": self.state.batches.epochs, **row}
        if self._log:
            self._log.write(**row)
        self.view.show(**row)

    def update(self) -> None:
        """One update, watched where the monitor is due; stops the run if it has diverged."""
        state = self.state
        take(state.batches, skipped_batches(state.recoveries, state.step - 1) * self.config.train.accumulate)
        batches = take(state.batches, self.config.train.accumulate)
        if self._monitor and self._monitor.due(state.step):
            self._monitor.watch(state.task.inputs(batches[0]))
        try:
            result = update(self.config, state, self.world, batches)
        except Diverged as error:  # float16 at its smallest scale, or gradients that stay non-finite
            self.write(stopped=str(error))
            raise
        state.average_(self.config.train.ema)
        state.meter.add(result)
        if self._monitor:
            self._monitor.step(result.loss, loss_scale=state.precision.scale)
        self._note_overflow(result)
        if not result.overflow and (why := state.divergence.update(state.step, result.nll)):
            self._stop(why, sudden=state.divergence.high > 0)

    def _note_recovery(self) -> None:
        """A row for the recovery that starts here, once."""
        last = self.state.recoveries[-1] if self.state.recoveries else None
        if last and last.start == self.state.step and self._log:
            row = {"recovery": last.change, "failed_at": last.failed, "why": last.why, "settings": last.settings}
            if not any(row.items() <= seen.items() for seen in read_log(self._log.path)):
                self.write(**row)

    def _note_overflow(self, result: Update) -> None:
        if result.overflow:
            scale = self.state.precision.scale
            self.write(overflow=result.overflow, scale=scale)
            scaled = f"; loss scale now {scale:g}" if self.config.train.precision == "float16" else ""
            self.say(f"skipped update {self.state.step}: non-finite values at {result.overflow}{scaled}")

    def _stop(self, why: str, sudden: bool = False) -> None:
        """End the updates of a run that has diverged; `sudden` if it was good before."""
        if self.config.train.on_divergence == "recover":
            raise Diverged(why, sudden=sudden)
        if self.config.train.on_divergence == "stop":
            self.write(stopped=why)
            stop_diverged(self.config, self.run, self.world, self.state, why)

    def log(self) -> None:
        """A row of metrics over the updates since the last."""
        state = self.state
        left = (self.config.train.steps - state.step) * state.meter.seconds_per_update()
        scale = {"scale": state.precision.scale} if self.config.train.precision == "float16" else {}
        self.write(lr=state.learning_rate(self.config), **scale, **state.meter.row(), eta=left)

    def validate(self) -> None:
        """The task's readings over held-out data; counts towards patience, and stops a run that fails."""
        state = self.state
        readings = validate(self.config, state, self.world)
        if not readings:
            return
        state.valid = readings["loss"]
        state.waited = 0 if state.valid < state.best else state.waited + 1
        state.best = min(state.best, state.valid)
        self.write(**validation_row(self.config, state, readings, self.world))
        if why := state.divergence.validated(state.step, state.valid, state.task.failing(readings)):
            self._stop(why)

    def compare_averages(self) -> None:
        """At the end: whether averaged weights are better than the last; what is written is what is used later."""
        loss = lambda: validate(self.config, self.state, self.world).get("loss")  # noqa: E731
        row = compare(self.config, self.state, self.run, self.world, loss) if math.isfinite(self.state.valid) else None
        if row:
            self.write(**row)
            others = ", ".join(
                f"{name.removeprefix('valid_loss_')} {value:.4f}" for name, value in row.items() if name != "best_weights"
            )
            self.say(
                f"validation loss: last weights {self.state.valid:.4f}, {others}; {row['best_weights']} is used from here on"
            )


@contextmanager
def _memory_explained(config: Config) -> Iterator[None]:
    """A block in which memory that runs out is an error of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not needs_memory(error):
            raise
        raise TrainingError(
            f"a batch of {config.train.tokens} tokens does not fit in memory; halve train.tokens and double train.accumulate "
            f"(now {config.train.accumulate}), or set train.checkpointing = true, and resume with --allow-changes"
        ) from error
