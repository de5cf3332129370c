"""A rehearsal: a few real updates at one learning rate on a copy of the model, and what moves in it.

Readings come from the updates' own forward passes: those of step k are of the model after k updates. Afterwards the copy has
its first weights again, so that one copy serves every rate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bathy.clinic.exams.activations import site_rows, statistics
from bathy.clinic.losses import Loss, default_loss
from bathy.clinic.outputs import output_rows, source_influence
from bathy.clinic.probe import Labelled, discover, own_gradients, own_weights, watching
from bathy.clinic.readings import Reading, groups, select
from bathy.clinic.rules.rows import amplified
from bathy.errors import ConfigError, ModelError
from bathy.sites.batch import Batch, call, on_device_of, undisturbed
from bathy.sites.real_tokens import RealTokens
from bathy.sites.site import Moment, Site

Objective = Callable[[nn.Module, Any], Tensor]
"""The training loss as a function of the model and one item of `batches`."""
MakeOptimizer = Callable[[nn.Module, float], Optimizer]
"""An optimiser for a model at a learning rate."""
RECTIFIED = 2.0
"""Times 1 / (1 − β2): updates of the linear warm-up that RAdam's own is like (Ma & Yarats, 2021)."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: its batches, its loss and its optimiser."""

    batches: Sequence[Any]
    objective: Objective
    make_optimizer: MakeOptimizer
    inputs: Callable[[Any], Batch]
    """What the model's forward takes of an item of `batches`."""


def objective_from(loss: Loss | None) -> Objective:
    """The objective of items that are what the model's forward takes; without a loss, the output's own or the next token's."""

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        batch = on_device_of(model, batch)
        output = call(model, batch)
        return (loss or default_loss)(output, batch)

    return objective


@dataclass(frozen=True)
class Rehearsal:
    """What some updates at one rate did."""

    lr: float
    losses: list[float]
    readings: list[Reading] = field(repr=False)

    def at(self, step: int, quantity: str) -> list[float]:
        """The values of a quantity after that many updates."""
        return [row.value for row in select(self.readings, quantity, step=step)]

    @property
    def points(self) -> list[Point]:
        """What moves, one point for each number of updates from 0 on."""
        by_step = {step: rows for (step,), rows in groups(self.readings, "step")}
        return [point_of(by_step.get(step, []), loss) for step, loss in enumerate(self.losses)]


@dataclass(frozen=True)
class Point:
    """What a rehearsal reads of the model after some updates: few numbers, which a forecast rests on."""

    loss: float
    stacks: dict[str, list[float]]
    """By stack: Σβ², token variance at the last site, the lowest at any site, at the stack's input (1 where unknown)."""
    output: float | None = None
    """Token variance of what the model returns."""
    information: float | None = None
    """Nats by which what it returns depends on what it is given."""
    gradient: float | None = None
    """Norm of the gradient."""
    influence: float | None = None
    """How much the loss depends on the source relative to the target, where there is one."""
    drift: float = 0.0
    """Mean over the matrices of ‖W − W_0‖/‖W_0‖."""


def point_of(rows: Sequence[Reading], loss: float) -> Point:
    """The point of one step's rows."""
    own = {row.quantity: row.value for row in rows if not row.site}
    shares = amplified(select(rows, "branch_share"))
    entries = {row.stack: row.value for row in select(rows, "input_token_variance")}
    stacks = {}
    for (stack,), found in groups(select(rows, "token_variance"), "stack"):
        last = max(found, key=lambda row: row.index).value
        stacks[stack] = [shares.get(stack, 1.0), last, min(row.value for row in found), entries.get(stack, 1.0)]
    return Point(
        loss, stacks, own.get("output_token_variance"), own.get("information"), own.get("gradient"),
        own.get("source_influence"), own.get("drift", 0.0),
    )  # fmt: skip


class StandIn:
    """A copy of the model on which updates are rehearsed."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        try:
            self.model = copy.deepcopy(model)
        except (RuntimeError, TypeError) as error:
            raise ModelError(f"{type(model).__name__} cannot be copied for a rehearsal: {error}") from error
        self.recipe = recipe
        self._gradients: dict[Site, Tensor] = {}
        self.steps = 0
        """Training steps that were taken."""

    @cached_property
    def sites(self) -> Sequence[Site]:
        """The copy's sites; none where tracing finds none."""
        try:
            return discover(self.model, self.recipe.inputs(self.recipe.batches[0]))
        except ModelError:
            return []

    @cached_property
    def ends(self) -> set[Site]:
        """The last site of each stack, where a stack reads another: their gradients say whether it is used."""
        last = {site.stack: site for site in sorted(self.sites, key=lambda site: site.index)}
        return set(last.values()) if any(site.kind == "cross_attention" for site in self.sites) else set()

    @cached_property
    def own_warmup(self) -> float:
        """Updates of the warm-up that is built into the optimiser: RAdam's is as a linear one over 2 / (1 − β2) of them."""
        optimizer = self._optimizer(1.0)
        own = isinstance(optimizer, torch.optim.RAdam)
        return RECTIFIED / (1 - float(optimizer.param_groups[0]["betas"][1])) if own else 0.0

    def _optimizer(self, lr: float) -> Optimizer:
        with _explained(self.model):
            return self.recipe.make_optimizer(self.model, lr)

    def rehearse(self, lr: float, updates: int) -> Rehearsal:
        """Make the updates at this rate from the first weights, without warm-up; one more forward pass reads their end."""
        losses: list[float] = []
        rows: list[Reading] = []
        with self._restored():
            optimizer = steady(self._optimizer(lr))
            parameters = list(self.model.parameters())
            start = [(p, p.detach().clone(), p.detach().norm()) for p in parameters if p.dim() > 1]
            for step in range(updates + 1):
                item = self.recipe.batches[step % len(self.recipe.batches)]
                with torch.set_grad_enabled(step < updates):
                    loss = self._read(item, step, rows)
                losses.append(float(loss.detach()))
                rows.append(Labelled(label={"step": step}).reading("rehearsal", "drift", drift(start)))
                if step == updates or not math.isfinite(losses[-1]):
                    break
                optimizer.zero_grad()
                loss.backward()
                self._hear_gradients(step, rows)
                norm = nn.utils.get_total_norm([_entries(p.grad) for p in parameters if p.grad is not None])
                rows.append(Labelled(label={"step": step}).reading("rehearsal", "gradient", norm))
                with _explained(self.model):
                    optimizer.step()
                self.steps += 1
        return Rehearsal(lr, losses, rows)

    def _read(self, item: Any, step: int, rows: list[Reading]) -> Tensor:
        """The loss of one forward pass, whose readings are added to the rows."""
        inputs = on_device_of(self.model, self.recipe.inputs(item))
        real = RealTokens(self.model, inputs, self.sites)
        seen: dict[Site, dict[Moment, Tensor]] = {}
        self._gradients.clear()
        label = Labelled(label={"step": step})

        def watch(site: Site, moment: Moment, x: Tensor) -> None:
            if moment != "input" or site.index == 1:
                with torch.no_grad():
                    seen.setdefault(site, {})[moment] = statistics(x, real.of(site, x))
            if moment == "output" and site in self.ends and x.requires_grad:
                x.register_hook(lambda grad: self._gradients.__setitem__(site, grad.detach().float().norm()))

        def returned(module: nn.Module, args: Any, output: Any) -> None:
            rows.extend(output_rows(label, "rehearsal", output))

        handle = self.model.register_forward_hook(returned)
        try:
            with watching(self.sites, watch, "input", "branch", "sum", "output"):
                loss = self.recipe.objective(self.model, item)
        finally:
            handle.remove()
        for site, found in seen.items():
            rows += site_rows(label, site, {moment: x.tolist() for moment, x in found.items()}, math.inf)
        rows.append(label.reading("rehearsal", "loss", loss.detach()))
        return loss

    def _hear_gradients(self, step: int, rows: list[Reading]) -> None:
        """Add the gradients at the ends of the stacks, and what they say of the source, to the rows of a step."""
        label = Labelled(label={"step": step})
        rows += [label.reading("rehearsal", "gradient", norm, site) for site, norm in self._gradients.items()]
        influence = source_influence(select(rows, step=step)) if self._gradients else None
        if influence is not None:
            rows.append(label.reading("rehearsal", "source_influence", influence))

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """A block after which the copy's weights, buffers, gradients and the random state are as before."""
        with (
            undisturbed(self.model),
            own_gradients(self.model),
            own_weights(list(self.model.parameters())),
            torch.enable_grad(),
        ):
            torch.manual_seed(0)
            self.model.train()
            yield


@contextmanager
def _explained(model: nn.Module) -> Iterator[None]:
    """A block in which an optimiser that cannot train this model (LBFGS, Muon, nothing to train) is an error of one line."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the optimiser cannot train {type(model).__name__}: {error}; pass optimizer= another") from error


def _entries(gradient: Tensor) -> Tensor:
    """The entries of a gradient that are there, dense also where an embedding's are not."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


@torch.no_grad()
def drift(start: Sequence[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Mean of ‖W − W_0‖/‖W_0‖ over (matrix, its first values, their norm); matrices that start at zero have none."""
    shares = [(now - before).norm() / norm for now, before, norm in start if norm > 0]
    return float(torch.stack(shares).mean()) if shares else 0.0


def steady(optimizer: Optimizer) -> Optimizer:
    """The optimiser as it is later in training: RAdam without the warm-up that is built into it, which is AdamW."""
    if not isinstance(optimizer, torch.optim.RAdam):
        return optimizer
    kept = ("params", "lr", "betas", "eps", "weight_decay")
    return torch.optim.AdamW([{key: group[key] for key in kept} for group in optimizer.param_groups])
