"""`bathy train --plan`: what a config needs, computed without data and without training.

Parameters and activations are counted on fake tensors, which have shapes and no memory: every scheme, dropout and precision is
counted as it will run. Time is operations over a device's published peak times an assumed utilisation, communication left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from bathy import console
from bathy.errors import ConfigError, nearest
from bathy.nmt.config import Config
from bathy.nmt.flops import attention_flops, matrix_flops
from bathy.nmt.precision import Precision
from bathy.nmt.world import CPU
from bathy.transformer import Transformer, TransformerConfig

LENGTH = 32
"""Tokens a sentence that attention and activations are counted with."""
REAL = 0.95
"""Share of real tokens in a batch."""
UTILISATION = 0.35
"""Assumed share of a GPU's published peak."""
STATES = {"radam": 2, "adamw": 2, "adam": 2, "sgd": 1}
"""Numbers that an optimiser keeps for each parameter."""


@dataclass(frozen=True)
class Device:
    """A kind of GPU: published dense peaks in operations a second, and memory."""

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
    source_flops: float
    """Operations of training for each source token."""
    target_flops: float
    batch: int
    """Budget of an update over all devices, in tokens of each side."""
    steps: int
    epochs: float
    """Passes over the corpus; NaN where data.corpus_tokens is not given."""
    shares: list[Share]


def make_plan(config: Config, devices: Sequence[int] = (1, 8, 64), device: str = "a100") -> Plan:
    """The plan of a config on so many devices of a kind. The update's batch stays that of the config on one device."""
    if device not in DEVICES:
        raise ConfigError(f"there is no device {device!r}.{nearest(device, DEVICES)} Known: {', '.join(DEVICES)}.")
    with FakeTensorMode():
        model = fake_model(config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        largest = max(sum(p.numel() for p in layer.parameters()) for layer in [*model.encoder.layers, *model.decoder.layers])
    batch = config.train.tokens * config.train.accumulate
    by_source, by_target = matrix_flops(config.model, config.data.vocab)
    lengths = torch.tensor([LENGTH])
    attention = attention_flops(config.model, lengths, lengths) / LENGTH
    seconds = config.train.steps * batch * REAL * (by_source + by_target + attention) / _speed(config, device)
    shares = []
    for number in devices:
        accumulate = math.ceil(batch / number / config.train.tokens)
        tokens = math.ceil(batch / number / accumulate)
        activations = activation_bytes(config, tokens)
        for parallel in ["ddp"] if number == 1 else ["ddp", "fsdp"]:
            states = state_bytes(config, parameters, number if parallel == "fsdp" else 1, largest)
            shares.append(Share(number, parallel, tokens, accumulate, states, activations, seconds / number / 3600))
    corpus = config.data.corpus_tokens
    epochs = config.train.steps * batch * REAL / corpus if corpus else math.nan
    return Plan(parameters, by_source, by_target + attention, batch, config.train.steps, epochs, shares)


def _speed(config: Config, device: str) -> float:
    kind = DEVICES[device]
    return UTILISATION * (kind.half if config.train.precision in ("float16", "bfloat16") else kind.single)


def fake_model(config: Config) -> Transformer:
    """The model without memory; to be made and used in a FakeTensorMode."""
    return Transformer(TransformerConfig(vocab=config.data.vocab, **config.model.model_dump()))


def state_bytes(config: Config, parameters: int, shards: int, largest: int) -> float:
    """Weights, gradients and optimiser on one device; shards gather the largest layer, twice, while they compute."""
    size = 8 if config.train.precision == "float64" else 4
    numbers = 2 + STATES[config.optim.name]
    half = 2 * parameters if config.train.precision in ("float16", "bfloat16") and shards == 1 else 0
    gathered = 2 * size * largest if shards > 1 else 0
    return size * numbers * parameters / shards + half + gathered


def activation_bytes(config: Config, tokens: int) -> float:
    """What one batch keeps for its backward pass; with checkpointing, the layers' inputs and one layer's inside."""
    inside = _kept(config, tokens)
    if not config.train.checkpointing:
        return inside
    layers = config.model.encoder_layers + config.model.decoder_layers
    return layers * tokens * config.model.width * 4 + inside / layers


def _kept(config: Config, tokens: int) -> float:
    """Bytes of all tensors that autograd keeps from a forward pass, each once, parameters left out."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        alive.append(tensor)
        return tensor

    alive: list[Tensor] = []
    with FakeTensorMode(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model = fake_model(config)
        batch = torch.full((max(1, tokens // LENGTH), min(tokens, LENGTH)), 4)
        with Precision(config.train.precision, CPU).autocast():
            features = model.features(batch, batch)
        own = {parameter.untyped_storage()._cdata for parameter in [*model.parameters(), *model.buffers()]}
        keep(features)
    wide = 2 if config.train.precision == "float64" else 1  # the fake model is a float32 one
    return float(wide * sum(size for storage, size in kept.items() if storage not in own))


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
    return console.table(f"on {device} GPUs, the same batch of {plan.batch:,} tokens an update", columns, rows)


def show(plan: Plan, device: str) -> None:
    """Print the plan."""
    passes = "" if math.isnan(plan.epochs) else f", {plan.epochs:.1f} epochs"
    console.out.print(f"{plan.parameters:,} parameters; {plan.steps:,} updates of {plan.batch:,} tokens on each side{passes}")
    console.out.print(
        f"{plan.source_flops / 1e6:,.0f} MFLOP for each source token, {plan.target_flops / 1e6:,.0f} for each target token"
    )
    console.out.print(table(plan, device))
    console.out.print(
        f"hours: at {UTILISATION:.0%} of the published peak, communication left out; sentences of {LENGTH} tokens"
    )
