"""A run in progress: the parts that work on it, and what a checkpoint holds of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bathy import console
from bathy.admin.profile import needs_profile
from bathy.admin.remedies import stabilise_
from bathy.clinic.monitor import Monitor
from bathy.errors import ModelError, TrainingError
from bathy.kernels.library import library, usable
from bathy.kernels.memory import needs_memory
from bathy.train import checkpoint
from bathy.train.config import Config
from bathy.train.divergence import Divergence
from bathy.train.meter import Meter
from bathy.train.optim import load_optimizer_state_, make_optimizer, optimizer_state, rescale_squares_, whole
from bathy.train.precision import Precision
from bathy.train.recovery import Recovery, amended, read_recoveries, recovered_rate
from bathy.train.schedule import learning_rate
from bathy.train.task import Stream, Task, peek, to_device
from bathy.train.world import World


class Objective(nn.Module):
    """The task's loss of a batch as one module, which DDP, FSDP2 and torch.compile can wrap."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Any, measuring: bool = False) -> Any:
        """(what is minimised, the plain loss), each summed over the batch; or the task's readings of a held-out batch."""
        return self.task.measure(self.model, batch) if measuring else self.task.loss(self.model, batch)

    def measure(self, batch: Any) -> dict[str, tuple[float, float]]:
        """The task's readings, with the hooks that gather FSDP2's shards and without torch.compile."""
        return self._call_impl(batch, measuring=True)  # type: ignore[no-untyped-call]

    def plain(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The task's loss in the same way."""
        return self._call_impl(batch)  # type: ignore[no-untyped-call]


@dataclass
class State:
    """Everything that changes from update to update."""

    config: Config
    """The settings it trains with: the run's, and what recoveries changed."""
    task: Task
    model: nn.Module
    objective: Objective
    engine: nn.Module
    """The objective as it is trained: itself, compiled, DDP's copy or FSDP2's shards."""
    optimizer: Optimizer
    precision: Precision
    batches: Stream
    divergence: Divergence
    meter: Meter = field(default_factory=Meter)
    monitor: Monitor | None = None
    """What watches the run, where train.monitor asks for it."""
    monitor_saved: dict[str, Any] = field(default_factory=dict)
    """What the monitor knew when the checkpoint was written."""
    step: int = 0
    valid: float = math.inf
    """The newest validation loss."""
    best: float = math.inf
    """Lowest validation loss so far."""
    waited: int = 0
    """Validations since then."""
    ema: dict[str, Tensor] = field(default_factory=dict)
    """A moving average of the weights, by name; empty where train.ema is 0."""
    recoveries: list[Recovery] = field(default_factory=list)
    """What was changed after failures."""
    products: str = "mkl"
    """The library that takes float32 products on a CPU: the one that the run began with, for all ranks."""

    def learning_rate(self, config: Config) -> float:
        """The rate of the current update: the schedule's, times what recoveries make of it."""
        return recovered_rate(self.recoveries, self.step, learning_rate(config, self.step))

    def trainer(self) -> dict[str, Any]:
        """All but the weights, as plain containers and tensors; every rank must ask."""
        return {
            "optimizer": optimizer_state(self.model, self.optimizer),
            "precision": self.precision.state_dict(),
            "batches": self.batches.state_dict(),
            "divergence": self.divergence.state_dict(),
            "meter": self.meter.state_dict(),
            "monitor": self.monitor.state_dict() if self.monitor else {},
            "step": self.step,
            "valid": self.valid,
            "best": self.best,
            "waited": self.waited,
            "products": self.products,
            "beta2": self.config.optim.beta2,
        }

    def average_(self, decay: float) -> None:
        """Move the moving average towards the weights: e ← decay · e + (1 − decay) · w."""
        if self.ema:
            weights = checkpoint.weights_of(self.model)
            with torch.no_grad():
                torch._foreach_lerp_(list(self.ema.values()), [weights[name] for name in self.ema], 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """The weights, whole; every rank must ask."""
        return {name: whole(tensor) for name, tensor in checkpoint.weights_of(self.model).items()}

    def restore_(self, folder: Path) -> None:
        """Continue from what `trainer` gave; the weights are the model's already."""
        saved = checkpoint.read_trainer(folder)
        try:
            load_optimizer_state_(self.model, self.optimizer, saved["optimizer"])
            rescale_squares_(self.optimizer, saved.get("beta2", self.config.optim.beta2), self.config.optim.beta2)
            self.precision.load_state_dict(saved["precision"])
            self.batches.load_state_dict(saved["batches"])
            self.divergence.load_state_dict(saved["divergence"] if "divergence" in saved else saved["watch"])
            self.meter.load_state_dict(saved.get("meter", {}))
            self.monitor_saved = dict(saved.get("monitor", {}))
            self.step, self.best, self.waited = saved["step"], saved["best"], saved["waited"]
            self.valid = saved.get("valid", math.inf)
            self.products = saved.get("products", self.products)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise checkpoint.unreadable(folder / checkpoint.TRAINER, error) from error


def begin(task: Task, config: Config, run: Path, world: World) -> State:
    """The run's state: from its newest intact checkpoint, else fresh, with Admin's ω set from the first batch."""
    found, recoveries = checkpoint.newest(run), read_recoveries(run)
    own = amended(config, recoveries, int(found.name.removeprefix("step_")) if found else 0)
    task, config = task if own is config else task.changed(own), own
    precision = Precision(config.train.precision, world.device)
    batches = task.batches(world.rank, world.size)
    model = _build(task, config, precision, world)
    _fill(model, task, config, found, batches, run, world)
    objective = Objective(model, task)
    if config.train.compile:
        objective.compile()  # in place and before it is wrapped: DDP and FSDP2 keep their own methods, no_sync among them
    engine = world.wrap(objective, config.train.parallel, blocks(model))
    divergence = Divergence(task.chance(), config.optim.warmup, config.train.divergence_window)
    state = State(config, task, model, objective, engine, make_optimizer(model, config.optim), precision, batches, divergence)
    state.products = world.union([library()])[0]
    if found:
        state.restore_(found)
    if world.any(not usable(state.products)):
        console.warn(f"{state.products} took this run's products and is not on this machine: the last digits will differ")
        state.products = "mkl"
    if config.train.ema:
        state.ema = _start_average(model, found)
    state.recoveries = recoveries
    return state


def _build(task: Task, config: Config, precision: Precision, world: World) -> nn.Module:
    """The model with the weights that the seed gives, on this rank's device."""
    torch.manual_seed(config.train.seed)
    try:
        model = task.build().to(world.device, precision.dtype)
    except (MemoryError, RuntimeError) as error:
        if not needs_memory(error):
            raise
        raise TrainingError(
            f"the model's weights do not fit in memory ({str(error).splitlines()[0][:160]}); make it smaller: "
            "`bathy train CONFIG --plan` says what it needs"
        ) from error
    if config.train.checkpointing:
        switch: Callable[[bool], object] | None = getattr(model, "checkpoint_", None)
        if switch is None:
            raise ModelError(
                f"train.checkpointing needs a model with `checkpoint_(on)`; {type(model).__name__} has no such method"
            )
        switch(True)
    return model


def _fill(model: nn.Module, task: Task, config: Config, found: Path | None, batches: Stream, run: Path, world: World) -> None:
    """Give the model its first weights: the checkpoint's, those of train.init_from, or fresh ones with Admin's ω."""
    if config.train.stabilise:  # ω becomes parameters of the model, which a checkpoint then fills
        result = stabilise_(model, task.inputs(to_device(peek(batches), world.device)), config.train.stabilise)
        if world.first and not found:
            result.save(run / "profile.json")
    if found:
        checkpoint.put_weights(model, checkpoint.read_weights(found), found)
    elif config.train.init_from:
        source = Path(config.train.init_from)
        checkpoint.put_weights(model, checkpoint.weights_from(source), source)
    elif world.first and not config.train.stabilise and needs_profile(model):
        stabilise_(model, task.inputs(to_device(peek(batches), world.device))).save(run / "profile.json")
    world.share([*model.parameters()])


def _start_average(model: nn.Module, found: Path | None) -> dict[str, Tensor]:
    """The checkpoint's moving average where it has one, else a copy of the weights."""
    weights = {name: value for name, value in checkpoint.weights_of(model).items() if value.is_floating_point()}
    saved = found is not None and (found / checkpoint.EMA).exists()
    source = checkpoint.current_names(model, checkpoint.read_weights(found, checkpoint.EMA)) if found and saved else weights
    return {name: source[name].detach().clone().to(value.device) for name, value in weights.items()}


def blocks(model: nn.Module) -> list[nn.Module]:
    """What FSDP2 shards one by one: the members of the model's outermost module lists."""
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [block for name in outer for block in model.get_submodule(name).children()]
