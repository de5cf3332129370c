"""How well a model predicts a text: loss, perplexity, and bits per byte, which compare across vocabularies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bathy.core.transformer import Transformer
from bathy.errors import DataError
from bathy.tasks import read_config
from bathy.tasks.language.batches import Hiding, as_batch, in_order
from bathy.tasks.language.codec import Codec, Ids
from bathy.tasks.language.models import load_with_codec
from bathy.tasks.language.task import correct, features
from bathy.tasks.models import home
from bathy.train.meter import perplexity

TOKENS = 8192
"""Tokens of a batch."""
HIDDEN = 0.15
"""Share of the tokens that a masked model has to find."""


@dataclass(frozen=True)
class Score:
    """What a text costs a model."""

    tokens: int
    """Tokens predicted, document ends included; of a masked model, those that were hidden."""
    bytes: int
    loss: float
    """Nats per token."""
    perplexity: float
    bits_per_byte: float | None
    """None for a masked model, which predicts a part of the text from the rest."""
    accuracy: float | None
    """Share of hidden tokens found; None for a causal model."""
    unknown: int
    """Tokens of the text that the vocabulary does not have."""


@dataclass(frozen=True)
class Encoded:
    """Documents as one stream of ids, each between two document ends."""

    ids: Ids
    bytes: int

    @classmethod
    def of(cls, texts: Iterable[str], codec: Codec) -> Encoded:
        """The documents, encoded."""
        end, parts, size = np.array([codec.end], np.uint32), [np.array([codec.end], np.uint32)], 0
        for text in texts:
            parts += [codec.encode(text), end]
            size += len(text.encode())
        if not size:
            raise DataError("there is no text to score; it is empty")
        return cls(np.concatenate(parts), size)

    def __len__(self) -> int:
        return len(self.ids) - 1


@torch.inference_mode()
def random_loss(model: Transformer, text: Encoded, batches: int, rows: int = 12, seed: int = 1337) -> float:
    """The mean loss over windows from random places, as nanoGPT validates a causal model."""
    rng, window = np.random.default_rng(seed), min(model.config.context or model.config.max_length, model.config.longest)
    nll = 0.0
    for _ in range(batches):
        starts = rng.integers(0, len(text) - window + 1, rows)
        batch = as_batch(text.ids[starts[:, None] + np.arange(window + 1)])
        nll += float(model.cross_entropy(features(model, batch).flatten(0, 1), batch.targets.flatten())[1])
    return nll / (batches * rows * window)


@torch.inference_mode()
def ids_loss(model: Transformer, text: Encoded) -> float:
    """The mean loss of a causal model over a stream of ids, in windows of its context."""
    window = min(model.config.context or model.config.max_length, model.config.longest)
    batches = in_order(text, (max(1, TOKENS // window), window))
    return sum(
        float(model.cross_entropy(features(model, batch).flatten(0, 1), batch.targets.flatten())[1]) for batch in batches
    ) / len(text)


def score_run(folder: Path, texts: Iterable[str], average: int = 1, which: str = "last") -> Score:
    """The score of a run's, checkpoint's or model folder's model; documents see each other only if they did in training."""
    model, codec = load_with_codec(folder, average, which)
    config = home(folder) / "config.toml"
    apart = config.exists() and read_config(config, needs="language").data.windows == "packed"
    return score(model, codec, texts, apart)


@torch.inference_mode()
def score(model: Transformer, codec: Codec, texts: Iterable[str], apart: bool = False) -> Score:
    """What the texts cost the model, in windows of its context; `apart`: a token sees its own document only."""
    text = Encoded.of(texts, codec)
    window = min(model.config.context or model.config.max_length, model.config.longest)
    masked = model.config.stacks == ["encoder"]
    hiding = Hiding(HIDDEN, codec.mask, model.config.vocab, codec.end) if masked else None
    nll, count, found = 0.0, 0, 0
    for batch in in_order(text, (max(1, TOKENS // window), window), end=codec.end if apart else None, hiding=hiding):
        batch = batch.to(model.output_weight.device)
        x = features(model, batch)
        where = slice(None) if batch.chosen is None else batch.chosen.flatten()
        nll += float(model.cross_entropy(x.flatten(0, 1)[where], batch.targets.flatten()[where])[1])
        count += batch.count
        found += int(correct(model, x, batch)) if masked else 0
    return Score(
        tokens=count,
        bytes=text.bytes,
        loss=nll / count,
        perplexity=perplexity(nll / count),
        bits_per_byte=None if masked else nll / math.log(2) / text.bytes,
        accuracy=found / count if masked else None,
        unknown=0 if codec.unknown is None else int((text.ids == codec.unknown).sum()),
    )
