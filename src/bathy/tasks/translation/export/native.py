"""bathy's own model folder: weights in safetensors, settings, tokenizer; what `translate` takes like a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.tasks.models import load, save_model
from bathy.tasks.translation.export.compare import Rows, paired
from bathy.tasks.translation.search import Decode, search
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import padded


def check(config: TransformerConfig) -> None:
    """bathy runs all of its models."""


def write(model: Transformer, codec: Codec, decode: Decode, folder: Path, kind: str) -> None:
    """Write weights and settings."""
    save_model(model, folder, decode=decode.model_dump())


class Native:
    """The folder, loaded again by bathy."""

    measure = "logits"

    def __init__(self, folder: Path, codec: Codec, kind: str) -> None:
        self.model = load(folder)

    def translate(self, source: Rows, decode: Decode) -> list[list[int]]:
        return [list(found[0].tokens) for found in search([self.model], padded(source), decode)]

    def distance(self, model: Transformer, source: Rows, target: Sequence[Sequence[int]]) -> float:
        pairs = [(padded(rows), padded(wanted)) for rows, wanted in paired(source, target)]
        return max(float((model(*pair) - self.model(*pair)).abs().max()) for pair in pairs)
