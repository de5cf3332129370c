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
from bathy.clinic.losses import Loss, first_tensor, loss_for
from bathy.clinic.measures import token_variance
from bathy.clinic.probe import Labelled, discover, own_gradients, own_weights, watching
from bathy.clinic.readings import Reading, select
from bathy.errors import BatchError, ModelError
from bathy.sites.batch import Batch, call, on_device_of, undisturbed
from bathy.sites.real_tokens import RealTokens
from bathy.sites.site import Moment, Site

Objective = Callable[[nn.Module, Any], Tensor]
"""The training loss as a function of the model and one item of `batches`."""
MakeOptimizer = Callable[[nn.Module, float], Optimizer]
"""An optimiser for a model at a learning rate."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: its batches, its loss and its optimiser."""

    batches: Sequence[Any]
    objective: Objective
    make_optimizer: MakeOptimizer
    inputs: Callable[[Any], Batch]
    """What the model's forward takes of an item of `batches`."""


def objective_from(loss: Loss | None) -> Objective:
    """The objective of items that are what the model's forward takes; without a loss, what fits the output."""

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        batch = on_device_of(model, batch)
        output = call(model, batch)
        return (loss or loss_for(output, batch))(output, batch)

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


class StandIn:
    """A copy of the model on which updates are rehearsed."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        try:
            self.model = copy.deepcopy(model)
        except (RuntimeError, TypeError) as error:
            raise ModelError(f"{type(model).__name__} cannot be copied for a rehearsal: {error}") from error
        self.recipe = recipe
        self.steps = 0
        """Training steps that were taken."""

    @cached_property
    def sites(self) -> Sequence[Site]:
        """The copy's sites; none where tracing finds none."""
        try:
            return discover(self.model, self.recipe.inputs(self.recipe.batches[0]))
        except ModelError:
            return []

    def rehearse(self, lr: float, updates: int) -> Rehearsal:
        """Make the updates at this rate from the first weights, without warm-up; one more forward pass reads their end."""
        losses: list[float] = []
        rows: list[Reading] = []
        with self._restored():
            optimizer = steady(self.recipe.make_optimizer(self.model, lr))
            for step in range(updates + 1):
                item = self.recipe.batches[step % len(self.recipe.batches)]
                with torch.set_grad_enabled(step < updates):
                    loss = self._read(item, step, rows)
                losses.append(float(loss.detach()))
                if step == updates or not math.isfinite(losses[-1]):
                    break
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.steps += 1
        return Rehearsal(lr, losses, rows)

    def _read(self, item: Any, step: int, rows: list[Reading]) -> Tensor:
        """The loss of one forward pass, whose readings are added to the rows."""
        inputs = on_device_of(self.model, self.recipe.inputs(item))
        real = RealTokens(self.model, inputs, self.sites)
        seen: dict[Site, dict[Moment, Tensor]] = {}
        label = Labelled(label={"step": step})

        def watch(site: Site, moment: Moment, x: Tensor) -> None:
            with torch.no_grad():
                seen.setdefault(site, {})[moment] = statistics(x, real.of(site, x))

        def returned(module: nn.Module, args: Any, output: Any) -> None:
            rows.extend(_of_output(label, output))

        handle = self.model.register_forward_hook(returned)
        try:
            with watching(self.sites, watch, "branch", "sum", "output"):
                loss = self.recipe.objective(self.model, item)
        finally:
            handle.remove()
        for site, found in seen.items():
            rows += site_rows(label, site, {moment: x.tolist() for moment, x in found.items()}, math.inf)
        rows.append(label.reading("rehearsal", "loss", loss.detach()))
        return loss

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


def steady(optimizer: Optimizer) -> Optimizer:
    """The optimiser as it is later in training: RAdam without the warm-up that is built into it, which is AdamW."""
    if not isinstance(optimizer, torch.optim.RAdam):
        return optimizer
    kept = ("params", "lr", "betas", "eps", "weight_decay")
    return torch.optim.AdamW([{key: group[key] for key in kept} for group in optimizer.param_groups])


def information(vectors: Tensor) -> Tensor:
    """Mean over tokens of KL(softmax(y_t) ‖ their mean): nats by which what the model says depends on what it is given."""
    logs = vectors.log_softmax(-1)
    mean = logs.logsumexp(0) - math.log(len(logs))
    return (logs.exp() * (logs - mean)).sum(-1).mean()


def _of_output(label: Labelled, output: Any) -> list[Reading]:
    """Token variance and information of what the model returns, where it returns several vectors."""
    try:
        y = first_tensor(output if isinstance(output, dict | tuple | list) else getattr(output, "logits", output))
    except BatchError:
        return []
    vectors = y.detach().float().flatten(0, -2) if y.dim() > 1 else y.detach().float()[:, None]
    if len(vectors) < 2:
        return []
    found = [label.reading("rehearsal", "output_token_variance", token_variance(vectors))]
    if vectors.shape[1] > 1:
        found.append(label.reading("rehearsal", "information", information(vectors)))
    return found
