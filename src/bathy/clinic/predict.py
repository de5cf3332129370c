"""`bathy.predict`: will this model train at this learning rate, up to which rate, and what would a remedy change?

A few updates at the peak rate are made on a copy, without warm-up; where training is going to fail, the tokens of a batch
become alike within them, or the gradient jumps, long before the loss shows anything. The readings become a
probability by a logistic that was fitted on runs.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from bathy.admin.remedies import REMEDIES, stabilise_
from bathy.clinic.forecast import Forecast, Outlook
from bathy.clinic.losses import Loss
from bathy.clinic.odds import features, fitted
from bathy.clinic.rehearsal import MakeOptimizer, Objective, Recipe, Rehearsal, StandIn, objective_from
from bathy.clinic.search import largest_rate, monotone
from bathy.console import track
from bathy.errors import BathyError, ConfigError, unknown
from bathy.files import origin
from bathy.sites.batch import Batch, on_device_of, undisturbed

Look = Literal["one look", "rehearsal", "largest rate"]
LOOKS: tuple[Look, ...] = ("one look", "rehearsal", "largest rate")
MOST_STEPS = 80
"""Training steps that the search for the largest rate takes at most."""


def predict(
    model: nn.Module,
    batch: Batch,
    loss: Loss | None = None,
    *,
    lr: float = 1e-3,
    warmup: int = 0,
    optimizer: str | type[Optimizer] | Optimizer | Callable[..., Optimizer] = "AdamW",
    batches: Iterable[Any] | None = None,
    objective: Objective | None = None,
    inputs: Callable[[Any], Batch] | None = None,
    remedies: Sequence[str] = ("admin", "scaled_init"),
    look: Look = "largest rate",
) -> Forecast:
    """The probability that training fails, the largest rate that trains, and the same after each remedy.

    `look`: "one look" takes four updates on a copy, "rehearsal" sixteen, "largest rate" searches with up to 80. `batches` (else
    `batch` again and again) are what the updates read; an iterator is advanced by at most sixteen. `loss(output, batch)` is as
    in `bathy.examine`; where an item of `batches` is more than what forward takes, `objective(model, item)` is the training
    loss and `inputs(item)` what forward takes. `optimizer` is a name or class of torch.optim, a function of (parameters, lr),
    or an optimiser of this model, whose settings are copied. Model, gradients and random state are left as they were.
    """
    _check(lr, warmup, look, remedies)
    items = list(islice(batches, fitted("rehearsal").updates)) if batches is not None else [batch]
    if not items:
        raise ConfigError("predict got no batches; give at least one, or leave `batches` out to use `batch` again and again")
    take = inputs or (lambda item: item)
    recipe = Recipe(items, objective or objective_from(loss), optimizer_for(model, optimizer), take)
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    outlooks: dict[str, Outlook] = {}
    refused: dict[str, str] = {}
    with undisturbed(model):
        for remedy in track(["", *remedies], "rehearsing"):
            try:
                treated = model if not remedy else _treated(model, on_device_of(model, batch), remedy)
            except BathyError as error:
                refused[remedy] = str(error)
                continue
            outlooks[remedy] = _outlook(StandIn(treated, recipe), remedy, lr, warmup, look)
    as_is = outlooks.pop("")
    made = origin(model=type(model).__name__, batches=len(items))
    return Forecast(lr, warmup, name, look, as_is, outlooks, refused, made)


def _check(lr: float, warmup: int, look: str, remedies: Sequence[str]) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise ConfigError(f"lr is {lr}; it must be a positive number")
    if warmup < 0:
        raise ConfigError(f"warmup is {warmup}; it must be 0 or more updates")
    if look not in LOOKS:
        raise ConfigError(unknown("look", look, LOOKS))
    for remedy in remedies:
        if remedy not in REMEDIES:
            raise ConfigError(unknown("remedy", remedy, REMEDIES))


def _treated(model: nn.Module, batch: Batch, remedy: str) -> nn.Module:
    """A copy of the model after the remedy."""
    treated = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stabilise_(treated, batch, remedy)
    return treated


def _outlook(stand_in: StandIn, remedy: str, lr: float, warmup: int, look: Look) -> Outlook:
    """One model's row."""
    kind = "one look" if look == "one look" else "rehearsal"
    odds, warm = fitted(kind), warmup + stand_in.own_warmup
    rehearsals: dict[float, Rehearsal] = {}

    def failure(rate: float) -> float:
        if rate not in rehearsals:
            rehearsals[rate] = stand_in.rehearse(rate, odds.updates)
        return odds.failure(features(rehearsals[rate].points, odds.updates, warm))

    outlook = Outlook(remedy, failure(lr), features=features(rehearsals[lr].points, odds.updates, warm))
    if look == "largest rate":
        limit = largest_rate(lr, failure, MOST_STEPS // odds.updates)
        outlook = replace(outlook, largest_rate=limit.rate, interval=(limit.low, limit.high),
                          open_above=limit.open_above, open_below=limit.open_below)  # fmt: skip
    tried = monotone({rate: failure(rate) for rate in rehearsals})
    forwards = 3.0 * stand_in.steps + len(rehearsals) + 1  # each rehearsal ends in a pass; one more finds the sites
    return replace(
        outlook, failure=tried[lr], tried=tried, steps=stand_in.steps, forwards=forwards, readings=rehearsals[lr].readings
    )


def optimizer_for(model: nn.Module, given: str | type[Optimizer] | Optimizer | Callable[..., Optimizer]) -> MakeOptimizer:
    """What makes such an optimiser for a copy of the model at another rate."""
    if isinstance(given, Optimizer):
        return _like(model, given)
    if isinstance(given, str):
        table = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
        known = {name: kind for name, kind in table.items() if issubclass(kind, Optimizer) and kind is not Optimizer}
        if given.lower() not in known:
            raise ConfigError(unknown("optimiser in torch.optim", given, sorted(known)))
        given = known[given.lower()]
    make: Callable[..., Optimizer] = given
    return lambda copied, lr: make([p for p in copied.parameters() if p.requires_grad], lr=lr)


def _like(model: nn.Module, given: Optimizer) -> MakeOptimizer:
    """The same optimiser for a copy, group by group; the rates of its groups keep their ratios. New parameters join group 1."""
    names = {id(p): name for name, p in model.named_parameters()}
    if not any(id(p) in names for group in given.param_groups for p in group["params"]):
        raise ConfigError(
            f"the {type(given).__name__} holds no parameter of this model; give one that was made for it, or its name"
        )
    base = max(float(group.get("initial_lr", group["lr"])) for group in given.param_groups)

    def make(copied: nn.Module, lr: float) -> Optimizer:
        own = dict(copied.named_parameters())
        groups: list[dict[str, Any]] = []
        for group in given.param_groups:
            settings = {key: value for key, value in group.items() if key not in ("params", "initial_lr")}
            share = float(group.get("initial_lr", group["lr"])) / base if base else 1.0
            members = [own.pop(names[id(p)]) for p in group["params"] if names.get(id(p)) in own]
            groups.append(settings | {"params": members, "lr": lr * share})
        groups[0]["params"] += [p for p in own.values() if p.requires_grad]  # ω of a remedy
        kind: Callable[..., Optimizer] = type(given)
        return kind(groups)

    return make
