"""`bathy train --plan`: what a config needs, computed without data and without training.

Parameters and activations are counted on fake tensors, which have shapes and no memory: every scheme, dropout and precision is
counted as it will run. Time is operations over a device's published peak times an assumed utilisation, no communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode

from bathy import console
from bathy.errors import ConfigError, unknown
from bathy.train.activations import activation_bytes
from bathy.train.config import Config
from bathy.train.optim import find_optimizer
from bathy.train.state import blocks
from bathy.train.task import Task

REAL = 0.95
"""Share of real tokens in a batch."""
UTILISATION = 0.35
"""Assumed share of a GPU's published peak."""


@dataclass(frozen=True)
class Device:
    """A kind of GPU: published dense peaks in operations per second, and memory."""

    half: float
    single: float
    memory: float


DEVICES = {
    "v100": Device(125e12, 15.7e12, 32e9),
    "a100": Device(312e12, 19.5e12, 80e9),
    "h100": Device(989e12, 67e12, 80e9),
}


@dataclass(frozen=True)
class Share:
    """One device of several."""

    devices: int
    parallel: str
    tokens: int
    """Budget of a batch."""
    accumulate: int
    states: float
    """Bytes of weights, gradients and optimiser."""
    activations: float
    """Bytes kept for the backward pass."""
    hours: float
    """Whole run."""


@dataclass(frozen=True)
class Plan:
    """What a run needs."""

    parameters: int
    flops: dict[str, float]
    """Operations of training for each kind of token."""
    batch: int
    """Token budget of an update over all devices."""
    steps: int
    epochs: float
    """Passes over the corpus; NaN where its size is unknown."""
    shares: list[Share]
    note: str
    """What the numbers assume."""


def make_plan(task: Task, config: Config, devices: Sequence[int] = (1, 8, 64), device: str = "a100") -> Plan:
    """The plan of a run on so many devices of a kind. The update's batch stays that of the config on one device."""
    if device not in DEVICES:
        raise ConfigError(unknown("device", device, DEVICES))
    batch = config.train.tokens * config.train.accumulate
    divisions = {number: divide(batch, number, config.train.tokens) for number in devices}
    with FakeTensorMode():
        sketch = task.sketch()
        activations = {tokens: activation_bytes(sketch, config, tokens) for tokens, _ in divisions.values()}
    parameters = sum(parameter.numel() for parameter in sketch.model.parameters())
    largest = max(sum(p.numel() for p in block.parameters()) for block in blocks(sketch.model) or [sketch.model])
    seconds = config.train.steps * batch * REAL * sum(sketch.flops.values()) / _speed(config, device)
    shares = []
    for number, (tokens, accumulate) in divisions.items():
        for parallel in ["ddp"] if number == 1 else ["ddp", "fsdp"]:
            states = state_bytes(config, parameters, number if parallel == "fsdp" else 1, largest)
            shares.append(Share(number, parallel, tokens, accumulate, states, activations[tokens], seconds / number / 3600))
    epochs = config.train.steps * batch * REAL / sketch.corpus_tokens if sketch.corpus_tokens else math.nan
    return Plan(parameters, sketch.flops, batch, config.train.steps, epochs, shares, sketch.note)


def divide(batch: int, devices: int, tokens: int) -> tuple[int, int]:
    """(tokens of a device's batch, at most `tokens`; batches it accumulates), so that all devices together make `batch`."""
    accumulate = math.ceil(batch / devices / tokens)
    return math.ceil(batch / devices / accumulate), accumulate


def _speed(config: Config, device: str) -> float:
    kind = DEVICES[device]
    return UTILISATION * (kind.half if config.train.precision in ("float16", "bfloat16") else kind.single)


def state_bytes(config: Config, parameters: int, shards: int, largest: int) -> float:
    """Weights, gradients and optimiser on one device; shards gather the largest layer, twice, while they compute."""
    size = 8 if config.train.precision == "float64" else 4
    numbers = 2 + find_optimizer(config.optim.name).states
    half = 2 * parameters if config.train.precision in ("float16", "bfloat16") and shards == 1 else 0
    gathered = 2 * size * largest if shards > 1 else 0
    return size * numbers * parameters / shards + half + gathered


def table(plan: Plan, device: str) -> Table:
    """The plan as a table."""
    rows = []
    for share in plan.shares:
        total = share.states + share.activations
        fits = "yes" if total < 0.9 * DEVICES[device].memory else "no"
        gigabytes = (share.states / 1e9, share.activations / 1e9, total / 1e9)
        engine = share.parallel if share.devices > 1 else "alone"
        rows.append((share.devices, engine, share.tokens, share.accumulate, *gigabytes, fits, share.hours))
    columns = ["GPUs", "engine", "tokens", "accumulate", "states GB", "activations GB", "GB/GPU", "fits", "hours"]
    return console.table(f"on {device} GPUs, the same batch of {plan.batch:,} tokens per update", columns, rows)


def show(plan: Plan, device: str) -> None:
    """Print the plan."""
    passes = "" if math.isnan(plan.epochs) else f", {plan.epochs:.1f} epochs"
    console.out.print(f"{plan.parameters:,} parameters; {plan.steps:,} updates of {plan.batch:,} tokens{passes}")
    console.out.print(", ".join(f"{flops / 1e6:,.0f} MFLOP for each {kind}" for kind, flops in plan.flops.items()))
    console.out.print(table(plan, device))
    console.out.print(f"hours: at {UTILISATION:.0%} of the published peak, without communication; {plan.note}")
