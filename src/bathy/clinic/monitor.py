"""The live monitor: readings every k updates of any training loop, and warnings before the loss shows a failure.

    with bathy.Monitor(model, "run/readings.jsonl", optimizer=optimizer) as monitor:
        for batch in batches:
            ...                       # forward, backward, optimizer.step(), as ever
            monitor.step(loss)        # once an update

It listens through hooks that are there on sampled updates only, draws no random numbers, changes no tensor and calls no
collective, so that training is bit by bit the same. The first process of several listens: to its own part of the batch
under DDP, to its own rows of the matrices under FSDP2.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
import torch.distributed as dist
from rich.markup import escape
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bathy.clinic.diagnosis import LIVE
from bathy.clinic.exams.activations import site_rows, statistics
from bathy.clinic.findings import Finding
from bathy.clinic.probe import Labelled, discover, watching
from bathy.clinic.readings import Reading, append
from bathy.console import err
from bathy.errors import ConfigError
from bathy.files import origin
from bathy.residual import Matrix
from bathy.sites.batch import Batch
from bathy.sites.positions import Positions
from bathy.sites.site import Moment, Site

MOST_NUMBERS = 2**16
"""Entries of a matrix whose update is followed; a larger matrix is followed in evenly spaced rows."""

KEPT = 4
"""Samples, beside the first, from which warnings are drawn."""


class Monitor:
    """Samples readings at updates 1, 2, 4, 8, … below `every`, then at its multiples, and after an overflow.

    `optimizer` adds gradient norms and the learning rate; `batch` is needed to find the sites of a model that is not bathy's.
    `findings` holds every warning; `readings` every row, or, where they are written to `out`, those of the first and the last
    samples, which is what warnings are drawn from.
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
    ) -> None:
        if every < 1:
            raise ConfigError(f"Monitor's every is {every}; it must be at least 1")
        self.model, self.optimizer, self.every, self.name, self.done = unwrapped(model), optimizer, every, name, start
        self.out = None if out is None else Path(out)
        self._samples: list[list[Reading]] = []
        self.findings: list[Finding] = []
        self._batch = batch
        self._sites: Sequence[Site] = []
        self._open = ExitStack()
        self._file: IO[str] | None = None
        self._sample: Sample | None = None
        self._steps_taken = self._skipped = 0

    @property
    def readings(self) -> list[Reading]:
        """The rows of the samples that are held."""
        return [row for rows in self._samples for row in rows]

    @property
    def active(self) -> bool:
        """Whether this process is the one that listens."""
        return not (dist.is_available() and dist.is_initialized() and dist.get_rank())

    def __enter__(self) -> Self:
        if not self.active:
            return self
        self._sites = discover(self.model, self._batch)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open.enter_context(self.out.open("a", encoding="utf-8"))
            append(self._file, [], origin(name=self.name, every=self.every))
        hook = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self._open.callback(hook.remove)
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
            self._sample.positions = Positions(self.model, batch, self._sites)

    def step(self, loss: float | Tensor | None = None, *, loss_scale: float | None = None) -> list[Finding]:
        """Say that an update is over; returns the warnings that it gave rise to, each kind once in a run."""
        if not self.active:
            return []
        self.done += 1
        self._skipped += int(self.optimizer is not None and not self._steps_taken)
        self._steps_taken = 0
        new = self._finish(loss, loss_scale) if self._sample else []
        self._prepare()
        return new

    def _prepare(self) -> None:
        """Listen to the next update if it is due."""
        if self.due(self.done + 1):
            self._sample = Sample(self._sites)

    def _finish(self, loss: float | Tensor | None, loss_scale: float | None) -> list[Finding]:
        """Keep the rows of the update that was sampled; the warnings they give."""
        assert self._sample
        numbers = {"loss": loss, "loss_scale": loss_scale, "skipped": float(self._skipped)}
        if self.optimizer:
            numbers["lr"] = float(self.optimizer.param_groups[0]["lr"])
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

    def _warn(self) -> list[Finding]:
        """Findings of kinds that this run has not had before, also said on standard error."""
        known = {finding.name for finding in self.findings}
        recent = [row for rows in (self._samples[:1] + self._samples[1:][-KEPT:]) for row in rows]
        found = [finding for rule in LIVE if (finding := rule(recent)) and finding.name not in known]
        new = [replace(finding, model=self.name, step=self.done) for finding in found]
        for finding in new:
            err.print(f"[bold yellow]{self.name} update {self.done}[/] {escape(str(finding))}")
        self.findings += new
        return new

    def _close_sample(self) -> None:
        if self._sample:
            self._sample.close()
        self._sample = None

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._sample and self._sample.positions is None:
            self.watch(dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments))

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps_taken += 1
        if self._sample:
            self._sample.hear_gradients()


class Sample:
    """One update, listened to from its forward pass to the new weights.

    What comes first counts: the first micro-batch of several, and the first of the two forward passes that activation
    checkpointing makes. Its gradients are taken from whichever pass autograd goes back through.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = sites
        self.positions: Positions | None = None
        self.before = {(site, m.role): part.clone() for site in sites for m in site.matrices if (part := held(m)) is not None}
        self.seen: dict[tuple[Site, Moment], Tensor] = {}
        self.limits: dict[Site, float] = {}
        self.gradients: dict[Site, Tensor] = {}
        self.weight_gradients: dict[tuple[Site, str], Tensor] = {}
        self._hooks = ExitStack()
        self._hooks.enter_context(watching(sites, self._hear, "branch", "sum", "output"))

    def close(self) -> None:
        """Stop listening."""
        self._hooks.close()

    @torch.no_grad()
    def _hear(self, site: Site, moment: Moment, x: Tensor) -> None:
        if (site, moment) not in self.seen:
            self.seen[site, moment] = statistics(x, self.positions.of(site, x) if self.positions else None)
            self.limits[site] = torch.finfo(x.dtype).max
        if moment == "output" and x.requires_grad and site not in self.gradients:
            self.gradients[site] = x.new_full((), math.nan)
            x.register_hook(lambda grad: self.gradients.__setitem__(site, grad.detach().float().norm()))

    def hear_gradients(self) -> None:
        """Take the norms of the matrices' gradients, just before the optimiser reads them."""
        for site in self.sites:
            for matrix in site.matrices:
                if (part := held(matrix, gradient=True)) is not None:
                    self.weight_gradients[site, matrix.role] = whole(matrix, part)

    def rows_of(self, label: Labelled) -> list[Reading]:
        """All rows, after the update."""
        result = []
        seen = dict(zip(self.seen, torch.stack(list(self.seen.values())).tolist(), strict=True)) if self.seen else {}
        for site in self.sites:
            found = {moment: seen[site, moment] for moment in MOMENTS if (site, moment) in seen}
            if len(found) == len(MOMENTS):
                result += site_rows(label, site, found, self.limits[site])
            if site in self.gradients:
                result.append(label.reading("gradients", "gradient", self.gradients[site], site))
            for matrix in site.matrices:
                result += self._matrix_rows(label, site, matrix)
        return result

    def _matrix_rows(self, label: Labelled, site: Site, matrix: Matrix) -> Iterator[Reading]:
        before, after = self.before.get((site, matrix.role)), held(matrix)
        if before is not None and after is not None:
            yield label.reading("updates", "weight", whole(matrix, before), site, role=matrix.role)
            yield label.reading("updates", "weight_update", whole(matrix, after - before), site, role=matrix.role)
        if (site, matrix.role) in self.weight_gradients:
            norm = self.weight_gradients[site, matrix.role]
            yield label.reading("gradients", "weight_gradient", norm, site, role=matrix.role)


MOMENTS: tuple[Moment, ...] = ("branch", "sum", "output")


def held(matrix: Matrix, gradient: bool = False) -> Tensor | None:
    """Evenly spaced rows of the matrix, or of its gradient, that this process holds; nothing where it holds none."""
    tensor = matrix.parameter.grad if gradient else matrix.parameter
    if tensor is None:
        return None
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor  # the first process holds the first rows
    start, stop = _span(matrix)
    rows = (local.detach().T if matrix.transposed else local.detach())[start:stop]
    return rows[:: max(1, math.ceil(rows.numel() / MOST_NUMBERS))].float() if rows.numel() else None


def whole(matrix: Matrix, part: Tensor) -> Tensor:
    """The norm of the whole matrix, estimated from a part of it."""
    start, stop = _span(matrix)
    inputs = matrix.parameter.shape[0 if matrix.transposed else 1]
    return part.norm() * math.sqrt((stop - start) * inputs / part.numel())


def _span(matrix: Matrix) -> tuple[int, int]:
    """First row of the matrix and the row after its last."""
    return matrix.rows.indices(matrix.parameter.shape[1 if matrix.transposed else 0])[:2]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
