"""A run in progress: the parts that work on it, and what a checkpoint holds of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bathy.admin import stabilise_
from bathy.errors import ConfigError
from bathy.nmt import checkpoint
from bathy.nmt.batches import Batches, open_splits
from bathy.nmt.config import Config
from bathy.nmt.objective import Objective
from bathy.nmt.optim import load_optimizer_state_, make_optimizer, optimizer_state, whole
from bathy.nmt.precision import Precision
from bathy.nmt.watch import Watch, unigram_entropy
from bathy.nmt.world import World
from bathy.schemes import SCHEMES
from bathy.transformer import Transformer, TransformerConfig


@dataclass
class State:
    """Everything that changes from update to update."""

    model: Transformer
    objective: Objective
    engine: nn.Module
    """The objective as it is trained: itself, compiled, DDP's copy or FSDP2's shards."""
    optimizer: Optimizer
    precision: Precision
    batches: Batches
    watch: Watch
    step: int = 0
    valid: float = math.inf
    """The newest validation loss."""
    best: float = math.inf
    """Lowest validation loss so far."""
    waited: int = 0
    """Validations since then."""

    @property
    def epochs(self) -> int:
        """Passes over the data that are complete."""
        return self.batches.epoch + (self.batches.position >= len(self.batches))

    def trainer(self) -> dict[str, Any]:
        """All but the weights, as plain containers and tensors; every rank must ask."""
        return {
            "optimizer": optimizer_state(self.model, self.optimizer),
            "precision": self.precision.state_dict(),
            "batches": self.batches.state_dict(),
            "watch": self.watch.state_dict(),
            "step": self.step,
            "best": self.best,
            "waited": self.waited,
        }

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights, whole; every rank must ask."""
        return {name: whole(tensor) for name, tensor in checkpoint.weights_of(self.model).items()}

    def restore_(self, folder: Path) -> None:
        """Go on from what `trainer` gave; the weights are the model's already."""
        saved = checkpoint.read_trainer(folder)
        load_optimizer_state_(self.model, self.optimizer, saved["optimizer"])
        self.precision.load_state_dict(saved["precision"])
        self.batches.load_state_dict(saved["batches"])
        self.watch.load_state_dict(saved["watch"])
        self.step, self.best, self.waited = saved["step"], saved["best"], saved["waited"]


def begin(config: Config, run: Path, world: World) -> State:
    """The run's state: from its newest intact checkpoint, else fresh, with Admin's ω set from the first batch."""
    if len(config.model.stacks) < 2:
        raise ConfigError("translation needs model.encoder_layers and model.decoder_layers; one of them is 0")
    splits = open_splits(config.data)
    train = config.train
    batches = Batches(splits, train.tokens, train.seed, world.rank, world.size, config.data.weights, config.data.bpe_dropout)
    precision = Precision(train.precision, world.device)
    torch.manual_seed(train.seed)
    model = Transformer(TransformerConfig(vocab=splits[0].manifest["vocab"], **config.model.model_dump()))
    model.to(world.device, precision.dtype).checkpoint_(train.checkpointing)
    found = checkpoint.newest(run)
    _fill(model, config, found, batches, run, world)
    objective = Objective(model, config.optim.label_smoothing)
    engine = world.wrap(objective, train.parallel, [*model.encoder.layers, *model.decoder.layers])
    if train.compile:
        engine = torch.compile(engine)  # type: ignore[assignment]
    watch = Watch(unigram_entropy(splits), config.optim.warmup)
    state = State(model, objective, engine, make_optimizer(model, config.optim), precision, batches, watch)
    if found:
        state.restore_(found)
    return state


def _fill(model: Transformer, config: Config, found: Path | None, batches: Batches, run: Path, world: World) -> None:
    """Give the model its first weights: the checkpoint's, those of train.init_from, or fresh ones with Admin's ω."""
    if found:
        checkpoint.put_weights(model, checkpoint.read_weights(found), found)
    elif config.train.init_from:
        source = Path(config.train.init_from)
        checkpoint.put_weights(model, checkpoint.weights_of(checkpoint.load(source)), source)
    elif world.first and any(SCHEMES[config.model.scheme_name(stack)].profiled for stack in config.model.stacks):
        batch = batches.batch(0).to(world.device)
        stabilise_(model, (batch.source, batch.target_in)).save(run / "profile.json")
    world.share([*model.parameters()])
