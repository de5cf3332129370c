"""The live monitor: readings every k updates of any training loop, and warnings before the loss shows a failure.

    with bathy.Monitor(model, "run/readings.jsonl", optimizer=optimizer) as monitor:
        for batch in batches:
            ...                       # forward, backward, optimizer.step(), as usual
            monitor.step(loss)        # once per update

It listens through hooks that are there on sampled updates only, draws no random numbers, changes no tensor and calls no
collective, so that training is bit by bit the same. The first process of several listens: to its own part of the batch
under DDP, to its own rows of the matrices under FSDP2.
"""

from __future__ import annotations

import inspect
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
import torch.distributed as dist
from rich.markup import escape
from torch import Tensor, nn
from torch.optim import Optimizer

from bathy.clinic import rules
from bathy.clinic.diagnosis import KEPT, new_findings
from bathy.clinic.findings import Finding
from bathy.clinic.probe import Labelled, Unwatched, discover, unwatched
from bathy.clinic.readings import Reading, append
from bathy.clinic.sample import Sample, outside
from bathy.console import err
from bathy.errors import ConfigError
from bathy.files import origin
from bathy.sites.batch import Batch
from bathy.sites.real_tokens import RealTokens
from bathy.sites.site import Site

LOSSES, FEWEST = 100, 16
"""Losses against which a spike is compared, at most and at least: the first ones of a run are not steady."""

OnWarning = Callable[[Finding], object]
Level = tuple[float, float]
"""Median of some losses in a row, and a standard error."""


class Monitor:
    """Samples readings at updates 1, 2, 4, 8, … below `every`, then at its multiples, and after an overflow.

    `optimizer` adds gradient norms and the learning rate; `batch` is needed to find the sites of a model that is not bathy's.
    `findings` holds every warning; `readings` every row, or, where they are written to `out`, those of the first and the last
    samples, which is what warnings are drawn from. `without` switches rules off by name. `on_warning` is called with each new
    finding; without it, warnings go to standard error. `unwatched` lists what cannot be watched, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        out: str | Path | None = None,
        *,
        optimizer: Optimizer | None = None,
        every: int = 50,
        name: str = "run",
        batch: Batch | None = None,
        start: int = 0,
        without: Iterable[str] = (),
        on_warning: OnWarning | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"Monitor's every is {every}; it must be at least 1")
        self.model, self.optimizer, self.every, self.name, self.done = unwrapped(model), optimizer, every, name, start
        self.out = None if out is None else Path(out)
        self.without, self.on_warning = tuple(without), on_warning or self._print
        rules.chosen(self.without)  # an unknown rule is an error at once
        self._samples: list[list[Reading]] = []
        self.findings: list[Finding] = []
        self._batch = batch
        self._sites: Sequence[Site] = []
        self._outside: dict[str, nn.Parameter] = {}
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._lowest: Level | None = None
        self._new: list[float | Tensor] = []
        """Losses since the last sample, left on their device."""
        self.unwatched: list[Unwatched] = []
        self._open = ExitStack()
        self._file: IO[str] | None = None
        self._sample: Sample | None = None
        self._steps_taken = self._skipped = 0

    @property
    def readings(self) -> list[Reading]:
        """The rows of the samples that are held."""
        return [row for rows in self._samples for row in rows]

    @property
    def latest(self) -> list[Reading]:
        """The rows of the last sample."""
        return self._samples[-1] if self._samples else []

    @property
    def active(self) -> bool:
        """Whether this process is the one that listens."""
        return not (dist.is_available() and dist.is_initialized() and dist.get_rank())

    def __enter__(self) -> Self:
        if not self.active:
            return self
        self._sites = discover(self.model, self._batch)
        self._outside, self.unwatched = outside(self.model, self._sites), unwatched(self._sites)
        self._say_unwatched()
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open.enter_context(self.out.open("a", encoding="utf-8"))
            if not self.out.stat().st_size:  # a resumed run's rows follow the earlier ones
                append(self._file, [], origin(name=self.name, every=self.every))
        hook = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self._open.callback(hook.remove)
        self._open.callback(self.model.register_forward_hook(self._after_forward).remove)
        if self.optimizer:
            self._open.callback(self.optimizer.register_step_pre_hook(self._before_update).remove)
        self._prepare()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_sample()
        self._open.close()

    def due(self, step: int) -> bool:
        """Whether this update is sampled."""
        return step % self.every == 0 or (step < self.every and step & (step - 1) == 0) or self._skipped > 0

    def watch(self, batch: Batch) -> None:
        """Say what the coming forward pass reads, where the model is not called as a whole; padding is then left out."""
        if self._sample:
            self._sample.real = RealTokens(self.model, batch, self._sites)

    def step(self, loss: float | Tensor | None = None, *, loss_scale: float | None = None) -> list[Finding]:
        """Say that an update is over; returns the warnings that it gave rise to, each kind once in a run."""
        if not self.active:
            return []
        self.done += 1
        if loss is not None:
            self._new.append(loss.detach().float().reshape(()) if isinstance(loss, Tensor) else loss)
        self._skipped += int(self.optimizer is not None and not self._steps_taken)
        self._steps_taken = 0
        new = self._finish(loss, loss_scale) if self._sample else []
        self._prepare()
        return new

    def state_dict(self) -> dict[str, Any]:
        """What the next sample depends on besides the model: enough to resume as if it had never stopped."""
        new = [float(loss) for loss in self._new]
        return {"losses": list(self._losses), "new": new, "skipped": self._skipped, "lowest": self._lowest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from what `state_dict` gave."""
        self._losses = deque(state.get("losses", []), maxlen=LOSSES)
        self._new, self._skipped, self._lowest = list(state.get("new", [])), state.get("skipped", 0), state.get("lowest")
        self._close_sample()
        self._prepare()

    def _prepare(self) -> None:
        """Listen to the next update if it is due."""
        if self.due(self.done + 1):
            self._sample = Sample(self._sites, self._outside)

    def _finish(self, loss: float | Tensor | None, loss_scale: float | None) -> list[Finding]:
        """Keep the rows of the update that was sampled; the warnings they give."""
        assert self._sample
        numbers = {"loss": loss, "loss_scale": loss_scale, "skipped": float(self._skipped), **self._spread()}
        if self.optimizer:
            numbers["lr"] = float(self.optimizer.param_groups[0]["lr"])
            numbers["usual_update"] = self._sample.usual_update(self.optimizer)
        label = Labelled(label={"model": self.name, "step": self.done})
        rows = [label.reading("monitor", name, value) for name, value in numbers.items() if value is not None]
        rows += self._sample.rows_of(label)
        self._close_sample()
        self._skipped = 0
        self._samples.append(rows)
        if self._file:
            append(self._file, rows)
            self._file.flush()
            self._samples[1:-KEPT] = []
        return self._warn()

    def _spread(self) -> dict[str, float | Tensor | None]:
        """The largest loss since the last sample against those before it, and the latest ones against the lowest so far."""
        tensors = [loss for loss in self._new if isinstance(loss, Tensor)]
        read = iter(torch.stack(tensors).tolist() if tensors else [])  # one wait for the device, not one for each update
        before, new = list(self._losses), [next(read) if isinstance(loss, Tensor) else loss for loss in self._new]
        self._new = []
        self._losses.extend(loss for loss in new if math.isfinite(loss))  # a spread needs finite numbers
        now, lowest = level(self._losses), self._lowest
        self._lowest = min(filter(None, (now, lowest)), default=None)
        return dict(spread(before, new) | risen(now, lowest))

    def _warn(self) -> list[Finding]:
        """Findings of kinds that this run has not had before."""
        found = new_findings(self._samples, self.findings, self.without)
        new = [replace(finding, model=self.name, step=self.done) for finding in found]
        for finding in new:
            self.on_warning(finding)
        self.findings += new
        return new

    def _print(self, finding: Finding) -> None:
        """The warning as one line on standard error: where, what, on what evidence, and the first thing to do."""
        evidence = "; ".join(map(str, finding.evidence))
        err.print(f"[bold yellow]{escape(finding.place)}[/] {escape(f'{finding.title} ({evidence}). First: {finding.first}.')}")

    def _say_unwatched(self) -> None:
        """One line on what cannot be watched, and which findings that weakens."""
        if self.unwatched:
            count, first = len({each.site for each in self.unwatched}), self.unwatched[0]
            weak = ", ".join(rules.weakened(each.moment for each in self.unwatched))
            err.print(escape(f"{self.name}: {count} sites cannot be watched completely ({first.reason}); weaker: {weak}"))

    def _close_sample(self) -> None:
        if self._sample:
            self._sample.close()
        self._sample = None

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._sample and self._sample.real is None and torch.is_grad_enabled():
            self.watch(dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments))

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._sample:
            self._sample.hear_output(output)

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps_taken += 1
        if self._sample:
            self._sample.hear_gradients()


def spread(before: Sequence[float], new: Sequence[float]) -> dict[str, float]:
    """The largest of the new losses, with mean and standard deviation of those before; nothing where they are too few."""
    if len(before) < FEWEST or not new:
        return {}
    return {"loss_peak": max(new), "loss_mean": statistics.fmean(before), "loss_deviation": statistics.pstdev(before)}


def level(losses: Sequence[float]) -> Level | None:
    """Median of the latest losses, which one spike does not move, and a standard error; nothing where they are too few."""
    last = list(losses)[-FEWEST:]
    return (statistics.median(last), statistics.pstdev(last) / math.sqrt(FEWEST)) if len(last) == FEWEST else None


def risen(now: Level | None, lowest: Level | None) -> dict[str, float]:
    """The level of the loss now, beside the lowest of the samples before, and the larger of their errors."""
    if not (now and lowest):
        return {}
    return {"loss_level": now[0], "lowest_level": lowest[0], "level_error": max(now[1], lowest[1])}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
