"""What a run is: one TOML file of sections, changed from the command line by `--set section.key=value`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from bathy.nmt.dataconfig import DataConfig, PrepareConfig
from bathy.nmt.search import Decode
from bathy.nmt.sections import read_sections
from bathy.settings import Settings
from bathy.transformer import Architecture


class OptimConfig(Settings, section="optim"):
    """How parameters move."""

    name: Literal["radam", "adamw", "adam", "sgd"] = "radam"
    """The optimiser; radam, adamw and sgd decay weights apart from the gradient."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the gradient's mean; sgd: momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the squared gradient's mean."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the squared gradient's mean."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay, of matrices and embeddings only unless decay_all."""
    decay_all: bool = False
    """Decay norms, biases and ω too, as the paper's authors do."""
    hold_unrectified: bool = True
    """radam: take no step while its variance cannot be rectified (the first few updates), as its authors do; torch takes
    plain momentum steps there."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """What follows warm-up: lr·√(warmup/step), or down to 0 at train.steps in a line or a cosine, or nothing."""
    warmup: NonNegativeInt = 8000
    """Updates over which the learning rate rises in a line from warmup_from to lr."""
    warmup_from: NonNegativeFloat = 1e-7
    """Learning rate before the first update of warm-up."""
    clip: NonNegativeFloat = 0.0
    """Largest norm of the whole gradient; 0: no clipping."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """ε: the target's probability is 1 − ε, the rest is spread evenly."""


class TrainConfig(Settings, section="train"):
    """How long and on what a run trains, and what it keeps."""

    run: str = ""
    """The run's folder; empty: runs/ and the config's name."""
    tokens: PositiveInt = 8192
    """Most padded tokens of a batch, on each side and each rank."""
    accumulate: PositiveInt = 1
    """Batches to an update, on each rank."""
    steps: PositiveInt = 100_000
    """Updates in the whole run."""
    epochs: NonNegativeInt = 0
    """Stop after so many passes over the data, if that comes first; 0: only steps count."""
    precision: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """What matrix products are computed in; weights stay float32 (float64 for float64)."""
    seed: int = 1111
    """Everything random follows from it: initial weights, order of batches, dropout of every update."""
    log_every: PositiveInt = 50
    """Updates between lines of metrics.jsonl."""
    valid_every: NonNegativeInt = 500
    """Updates between validations; 0: at saves only."""
    save_every: NonNegativeInt = 1000
    """Updates between checkpoints; 0: none by updates."""
    save_epochs: bool = False
    """Save a checkpoint after each epoch as well."""
    save_minutes: NonNegativeFloat = 0.0
    """Save when so many minutes have passed since the last checkpoint; 0: never by time."""
    keep_last: PositiveInt = 10
    """Checkpoints kept, the newest."""
    keep_best: NonNegativeInt = 1
    """Checkpoints kept besides, those of lowest validation loss."""
    patience: NonNegativeInt = 0
    """Stop after so many validations without a new lowest loss; 0: never."""
    init_from: str = ""
    """A run or model folder whose weights the run starts from."""
    bleu_sentences: NonNegativeInt = 0
    """Validation sentences translated greedily for a BLEU at each validation; 0: none."""
    checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    compile: bool = False
    """torch.compile the model."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several ranks share the work: whole copies (DDP) or sharded weights (FSDP2)."""
    monitor: bool = False
    """Write the clinic's readings to readings.jsonl while training."""
    monitor_every: PositiveInt = 50
    """Updates between the monitor's samples."""
    tensorboard: bool = False
    """Write TensorBoard files beside metrics.jsonl."""
    stop_diverged: bool = True
    """Stop a run that has lost what it had learned, or has learned nothing long after its warm-up, with a diagnosis."""

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse what FSDP2 cannot do."""
        if self.parallel == "fsdp" and self.bleu_sentences:
            raise ValueError(
                "train.bleu_sentences needs the whole model on one device; set it to 0 with train.parallel = 'fsdp'"
            )
        return self


class Config(Settings):
    """All sections; each command reads those it needs."""

    data: DataConfig = DataConfig()
    prepare: PrepareConfig = PrepareConfig()
    model: Architecture = Architecture()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    decode: Decode = Decode()

    @model_validator(mode="after")
    def warmup_fits(self) -> Self:
        """Refuse a warm-up that outlasts a schedule which ends at train.steps."""
        if self.optim.schedule in ("linear", "cosine") and self.optim.warmup >= self.train.steps:
            raise ValueError(f"optim.warmup is {self.optim.warmup}; it must be less than train.steps ({self.train.steps})")
        return self


def read_config(path: Path | None, changes: Sequence[str] = ()) -> Config:
    """The settings in a TOML file (none: the defaults) with `section.key=value` changes on top."""
    return Config(**read_sections(path, changes))


def to_toml(config: Config) -> str:
    """The resolved config as TOML, each setting explained: what `run/config.toml` holds."""
    parts = []
    for name in type(config).model_fields:
        section: Settings = getattr(config, name)
        lines = [f"{key} = {_toml(value)}" for key, value in section.model_dump().items()]
        parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _toml(value: Any) -> str:
    """A plain value as TOML: JSON's strings, numbers, booleans and lists are TOML's too."""
    return json.dumps(value, ensure_ascii=False)
