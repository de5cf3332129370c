"""Language models of bytes in which one thing is made to go wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bathy.core.transformer import Transformer
from bathy.lab.bench.predict.text import SPECIAL, python_source
from bathy.tasks.language.batches import Batch
from bathy.tasks.language.config import Config
from bathy.tasks.language.task import Language
from bathy.train.task import Stream

VOCAB = 128 + SPECIAL


@dataclass(frozen=True)
class Injection:
    """What goes wrong, besides settings of the config."""

    corrupt: tuple[int, int] = (-1, 0)
    """First batch that is corrupt, from 1, and how many are."""
    loud: float = 1.0
    """What the loss of a corrupt batch is multiplied by: tokens that were counted wrongly."""
    quiet: tuple[int, float] = (0, 1.0)
    """Updates at the beginning whose loss is multiplied by a small factor: gradients that grow later."""
    half_scale: float = 1.0
    """What the last features are multiplied by, and divided by again, in half precision: numbers that may not fit."""
    embedding: float = 1.0
    """What the embedding starts multiplied by."""
    ordered: int = 0
    """From this batch on the text no longer comes in random order: one window again and again; 0: never."""


def write_data(folder: Path) -> Path:
    """The standard library's source as bytes, in nanoGPT's format."""
    ids = python_source().numpy().astype(np.uint16)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in {"train.bin": ids[:800_000], "val.bin": ids[-4_000:]}.items():
        if not (folder / name).exists():
            part.tofile(folder / name)
    return folder


class Injected(Language):
    """A language model with an injection."""

    def __init__(self, config: Config, injection: Injection) -> None:
        super().__init__(config)
        self.injection = injection

    def changed(self, config: Config) -> Injected:
        """The same injection under another config."""
        return Injected(config, self.injection)

    def build(self) -> Transformer:
        """The model, its embedding perhaps too large."""
        model = super().build()
        with torch.no_grad():
            model.output_weight.mul_(self.injection.embedding)
        return model

    def batches(self, rank: int, size: int) -> Any:
        """The text's batches, some of them corrupt."""
        return Corrupted(super().batches(rank, size), self.injection)

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, of a corrupt batch times what it was counted wrongly by."""
        loss, nll = super().loss(model, batch)
        factor = self.injection.loud if bool(batch.tokens.eq(VOCAB - 1).all()) else 1.0
        quiet = self.injection.quiet[1] if batch.documents is not None and model.training else 1.0
        return loss * factor * quiet, nll * factor

    def _loss(self, model: Transformer, x_btd: Tensor, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        scale = self.injection.half_scale
        if scale != 1 and torch.is_autocast_enabled("cpu"):
            x_btd = (x_btd.to(torch.get_autocast_dtype("cpu")) * scale).float() / scale
        return super()._loss(model, x_btd, batch, smoothing)


class Corrupted:
    """A stream in which some batches are one token over and over, with random targets."""

    def __init__(self, inner: Stream, injection: Injection) -> None:
        self.inner, self.injection, self.given = inner, injection, 0

    @property
    def epochs(self) -> int:
        """Passes over the text."""
        return self.inner.epochs

    def __next__(self) -> Batch:
        batch: Batch = next(self.inner)
        self.given += 1
        if self.given <= self.injection.quiet[0]:  # one document per window: it marks the batch and changes nothing else
            return replace(batch, documents=torch.zeros_like(batch.tokens))
        first, count = self.injection.corrupt
        if 0 < self.injection.ordered <= self.given:
            return replace(batch, tokens=batch.tokens[:1].expand_as(batch.tokens) * 0 + 7, targets=batch.targets * 0 + 7)
        if not first <= self.given < first + count:
            return batch
        generator = torch.Generator().manual_seed(self.given)
        targets = torch.randint(SPECIAL, VOCAB, batch.targets.shape, generator=generator)
        return replace(batch, tokens=torch.full_like(batch.tokens, VOCAB - 1), targets=targets)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is."""
        return {"inner": self.inner.state_dict(), "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self.inner.load_state_dict(state["inner"])
        self.given = state["given"]
