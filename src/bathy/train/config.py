"""The engine's settings: how parameters move, how long a run trains and what it keeps.

A task's own config adds its sections (data, model, …) to `Config`; a config file is one TOML file of sections, changed from the
command line by `--set section.key=value`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from bathy.settings import Settings
from bathy.train.loggers import find_logger
from bathy.train.optim import find_optimizer
from bathy.train.schedule import find_schedule

CHANGEABLE = "may change in a resumed run"
"""Marks a setting of a section that moves no weight."""


class OptimConfig(Settings, section="optim"):
    """How parameters move."""

    name: str = "radam"
    """The optimiser: a row of bathy.train.optim.OPTIMIZERS."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the gradient's mean; sgd: momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the squared gradient's mean."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the squared gradient's mean."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """muon: decay of the mean gradient of matrices; everything else is AdamW's."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay, of matrices and embeddings only unless decay_all."""
    decay_all: bool = False
    """Decay norms, biases and ω too, as the paper's authors do."""
    hold_unrectified: bool = True
    """radam: take no step while its variance cannot be rectified (the first few updates), as its authors do; torch takes
    plain momentum steps there."""
    schedule: str = "inverse_sqrt"
    """What follows warm-up: a row of bathy.train.schedule.SCHEDULES."""
    warmup: NonNegativeInt = 8000
    """Updates over which the learning rate rises linearly from warmup_from to lr."""
    warmup_from: NonNegativeFloat = 1e-7
    """Learning rate before the first update of warm-up."""
    lr_floor: NonNegativeFloat = 0.0
    """Learning rate at which linear, cosine and wsd end."""
    decay_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """wsd: share of train.steps over which the rate falls to lr_floor at the end."""
    clip: NonNegativeFloat = 0.0
    """Largest norm of the whole gradient; 0: no clipping."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """ε: the target's probability is 1 − ε, the rest is spread evenly."""

    @field_validator("name")
    @classmethod
    def optimizer_exists(cls, name: str) -> str:
        """Refuse an unknown optimiser, naming the nearest."""
        find_optimizer(name)
        return name

    @field_validator("schedule")
    @classmethod
    def schedule_exists(cls, name: str) -> str:
        """Refuse an unknown schedule, naming the nearest."""
        find_schedule(name)
        return name

    @model_validator(mode="after")
    def floor_fits(self) -> Self:
        """Refuse a floor above the peak."""
        if self.lr_floor > self.lr:
            raise ValueError(f"optim.lr_floor is {self.lr_floor:g}; it can be at most optim.lr ({self.lr:g})")
        return self


class TrainConfig(Settings, section="train"):
    """How long and on what a run trains, and what it keeps."""

    run: Annotated[str, CHANGEABLE] = ""
    """The run's folder; empty: runs/ and the config's name."""
    tokens: PositiveInt = 8192
    """Most padded tokens of a batch, on each side and each rank."""
    accumulate: PositiveInt = 1
    """Batches to an update, on each rank."""
    steps: Annotated[PositiveInt, CHANGEABLE] = 100_000
    """Updates in the whole run."""
    epochs: Annotated[NonNegativeInt, CHANGEABLE] = 0
    """Stop after so many passes over the data, if that comes first; 0: only steps count."""
    precision: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """What matrix products are computed in; weights stay float32 (float64 for float64)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1111
    """Everything random follows from it: initial weights, order of batches, dropout of every update."""
    log_every: Annotated[PositiveInt, CHANGEABLE] = 50
    """Updates between lines of metrics.jsonl."""
    valid_every: Annotated[NonNegativeInt, CHANGEABLE] = 500
    """Updates between validations; 0: at the end only."""
    valid_epochs: Annotated[bool, CHANGEABLE] = False
    """Validate after each epoch as well."""
    save_every: Annotated[NonNegativeInt, CHANGEABLE] = 1000
    """Updates between checkpoints; 0: none by updates."""
    save_epochs: Annotated[bool, CHANGEABLE] = False
    """Save a checkpoint after each epoch as well."""
    save_minutes: Annotated[NonNegativeFloat, CHANGEABLE] = 0.0
    """Save when so many minutes have passed since the last checkpoint; 0: never by time."""
    keep_last: Annotated[PositiveInt, CHANGEABLE] = 10
    """Checkpoints kept, the newest."""
    keep_best: Annotated[NonNegativeInt, CHANGEABLE] = 1
    """Checkpoints kept besides, those whose last validation had the lowest loss."""
    patience: Annotated[NonNegativeInt, CHANGEABLE] = 0
    """Stop after so many validations without a new lowest loss; 0: never."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of a moving average of the weights, kept beside them in every checkpoint, e.g. 0.999; 0: none."""
    init_from: str = ""
    """A run or model folder whose weights the run starts from."""
    checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    compile: bool = False
    """torch.compile the model."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several ranks share the work: whole copies (DDP) or sharded weights (FSDP2)."""
    monitor: Annotated[bool, CHANGEABLE] = False
    """Write the clinic's readings to readings.jsonl while training."""
    monitor_every: Annotated[PositiveInt, CHANGEABLE] = 50
    """Updates between the monitor's samples."""
    loggers: Annotated[tuple[str, ...], CHANGEABLE] = ()
    """Where metrics go besides metrics.jsonl: rows of bathy.train.loggers.LOGGERS, e.g. ["tensorboard", "wandb"]."""
    on_divergence: Annotated[Literal["stop", "recover", "continue"], CHANGEABLE] = "stop"
    """What happens to a run that diverges, or has not improved on guessing long after its warm-up: stop with a diagnosis; go
    back to before the failure and change one thing (see bathy.train.recovery); or continue."""
    divergence_window: Annotated[PositiveInt, CHANGEABLE] = 200
    """Updates in a row with a loss far above its lowest after which a run has diverged; ten times as many after twice the
    warm-up at the level of guessing."""
    recoveries: Annotated[PositiveInt, CHANGEABLE] = 3
    """Most recoveries of a run."""
    recent_every: Annotated[NonNegativeInt, CHANGEABLE] = 0
    """Updates between the recent checkpoints that recovery and `bathy postmortem` start from, kept apart in RUN/recent;
    0: none, or every 100 with on_divergence = "recover"."""
    recent_keep: Annotated[PositiveInt, CHANGEABLE] = 5
    """Recent checkpoints kept, the newest."""
    stabilise: str = ""
    """Remedy of bathy.stabilise_ that a model of your own gets before the first update, e.g. admin; empty: none."""

    @model_validator(mode="before")
    @classmethod
    def take_old_names(cls, values: Any) -> Any:
        """Read what version 0.1 called stop_diverged and tensorboard."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if "stop_diverged" in values:
            values.setdefault("on_divergence", "stop" if values.pop("stop_diverged") else "continue")
        if values.pop("tensorboard", False):
            values["loggers"] = tuple(dict.fromkeys([*values.get("loggers", ()), "tensorboard"]))
        return values

    @field_validator("loggers")
    @classmethod
    def loggers_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse an unknown logger, naming the nearest."""
        for name in names:
            find_logger(name)
        return names

    @model_validator(mode="after")
    def average_fits(self) -> Self:
        """Refuse a moving average of shards."""
        if self.ema and self.parallel == "fsdp":
            raise ValueError("train.ema needs whole weights on every rank; set it to 0 with train.parallel = 'fsdp'")
        return self

    @property
    def recent_interval(self) -> int:
        """Updates between recent checkpoints; 0: none."""
        return self.recent_every or (100 if self.on_divergence == "recover" else 0)


class Config(Settings):
    """The sections that the engine reads; a task's config has more."""

    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def warmup_fits(self) -> Self:
        """Refuse a warm-up that outlasts a schedule which ends at train.steps."""
        if find_schedule(self.optim.schedule).ends and self.optim.warmup >= self.train.steps:
            raise ValueError(f"optim.warmup is {self.optim.warmup}; it must be less than train.steps ({self.train.steps})")
        return self

    @model_validator(mode="after")
    def matrices_stay_whole(self) -> Self:
        """Refuse an optimiser that needs whole matrices where FSDP2 cuts them."""
        if self.train.parallel == "fsdp" and find_optimizer(self.optim.name).needs_matrices:
            raise ValueError(f"optim.name is {self.optim.name!r}, which needs whole matrices; set train.parallel = 'ddp'")
        return self


def differences(old: Settings, new: Settings) -> list[str]:
    """Settings that changed and decide how weights move: all but those marked CHANGEABLE and those of a section marked so."""
    found = []
    for name, section in new:
        before = getattr(old, name, None)
        if not isinstance(section, Settings) or not isinstance(before, Settings) or section.changeable:
            continue
        for key, info in type(section).model_fields.items():
            was, now = getattr(before, key, None), getattr(section, key)
            if was != now and CHANGEABLE not in info.metadata:
                found.append(f"{name}.{key} was {was!r}, is {now!r}")
    return found
