"""What a language modelling run is: one TOML file of sections."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from bathy.core.transformer import Architecture
from bathy.settings import Settings
from bathy.tasks.language.sampling import Sampling
from bathy.tasks.language.settings import DataConfig, PrepareConfig
from bathy.train.config import CHANGEABLE, OptimConfig
from bathy.train.config import Config as EngineConfig


class TaskConfig(Settings, section="task"):
    """What the model is trained for: the next token with decoder layers, hidden tokens with encoder layers."""

    kind: Literal["language"] = "language"
    """The task: a row of bathy.tasks.TASKS."""
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Encoder layers: share of the tokens that are hidden and predicted. Of these 80 % are replaced by the mask token, 10 % by
    a random one, and 10 % stay (Devlin et al., 2019)."""
    sample: Annotated[NonNegativeInt, CHANGEABLE] = 100
    """Tokens of the sample that is shown at each validation; 0: none."""
    prompt: Annotated[str, CHANGEABLE] = ""
    """What the sample continues; empty: the beginning of a document."""


class Model(Architecture, section="model"):
    """What a model is made of, all but its vocabulary. One stack: decoder layers for a causal model, encoder layers for a
    masked one."""

    encoder_layers: NonNegativeInt = 0
    """Layers of a masked model."""
    decoder_layers: NonNegativeInt = 0
    """Layers of a causal model."""

    @model_validator(mode="after")
    def one_stack(self) -> Self:
        """Refuse a model of two stacks."""
        if len(self.stacks) == 2:
            raise ValueError(
                f"model.encoder_layers is {self.encoder_layers} and model.decoder_layers {self.decoder_layers}; a language "
                "model has one stack: decoder layers to predict the next token, or encoder layers to predict hidden ones"
            )
        return self

    @property
    def window(self) -> int:
        """Tokens of a training sequence."""
        return self.context or self.max_length


class Optim(OptimConfig, section="optim"):
    """How parameters move."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ε: the target's probability is 1 − ε, the rest is spread evenly."""


class Config(EngineConfig):
    """All sections; each command reads those it needs."""

    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    prepare: PrepareConfig = PrepareConfig()
    model: Model = Model(decoder_layers=6)
    optim: Optim = Optim()
    sample: Sampling = Sampling()

    @model_validator(mode="after")
    def batch_fits(self) -> Self:
        """Refuse a budget below one window."""
        if self.train.tokens < self.model.window:
            raise ValueError(
                f"train.tokens is {self.train.tokens}; a batch needs at least one window of model.context ({self.model.window})"
            )
        return self
