"""What a translation run is: one TOML file of sections."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import NonNegativeInt, model_validator

from bathy.core.transformer import Architecture
from bathy.settings import Settings
from bathy.tasks.translation.distil_settings import DistilConfig
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.settings import DataConfig, PrepareConfig
from bathy.train.config import CHANGEABLE
from bathy.train.config import Config as EngineConfig


class TaskConfig(Settings, section="task"):
    """What the model is trained for."""

    kind: Literal["translation"] = "translation"
    """The task: a row of bathy.tasks.TASKS."""
    bleu_sentences: Annotated[NonNegativeInt, CHANGEABLE] = 0
    """Validation sentences translated greedily for a BLEU at each validation; 0: none."""
    show_sentences: Annotated[NonNegativeInt, CHANGEABLE] = 0
    """Validation sentences whose greedy translations go into the log at each validation, for `bathy watch`; 0: none."""


class Config(EngineConfig):
    """All sections; each command reads those it needs."""

    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    prepare: PrepareConfig = PrepareConfig()
    model: Architecture = Architecture()
    decode: Decode = Decode()
    distil: DistilConfig = DistilConfig()

    @model_validator(mode="before")
    @classmethod
    def take_old_names(cls, values: Any) -> Any:
        """Read what version 0.1 called train.bleu_sentences."""
        train, task = values.get("train"), values.get("task", {})
        if isinstance(train, dict) and isinstance(task, dict) and "bleu_sentences" in train:
            train = dict(train)
            task = {"bleu_sentences": train.pop("bleu_sentences")} | task
            return {**values, "train": train, "task": task}
        return values

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        """Refuse what FSDP2 cannot do."""
        for name in ("bleu_sentences", "show_sentences"):
            if self.train.parallel == "fsdp" and getattr(self.task, name):
                raise ValueError(f"task.{name} needs the whole model on one device; set it to 0 with train.parallel = 'fsdp'")
        return self
