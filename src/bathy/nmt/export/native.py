"""bathy's own model folder: weights in safetensors, settings, tokenizer; what `translate` takes like a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from bathy.files import origin, write_json
from bathy.nmt import checkpoint
from bathy.nmt.export.compare import Rows, paired
from bathy.nmt.search import Decode, search
from bathy.nmt.text import Codec
from bathy.nmt.translate import padded
from bathy.transformer import Transformer, TransformerConfig


def check(config: TransformerConfig) -> None:
    """bathy runs all of its models."""


def write(model: Transformer, codec: Codec, decode: Decode, folder: Path, kind: str) -> None:
    """Write weights and settings."""
    weights = {name: value.contiguous() for name, value in checkpoint.weights_of(model).items()}
    save_file(weights, folder / checkpoint.WEIGHTS)
    write_json(folder / "config.json", {"model": model.config.model_dump(), "decode": decode.model_dump(), "origin": origin()})


class Native:
    """The folder, loaded again by bathy."""

    measure = "logits"

    def __init__(self, folder: Path, codec: Codec, kind: str) -> None:
        self.model = checkpoint.load(folder)

    def translate(self, source: Rows, decode: Decode) -> list[list[int]]:
        return [list(found[0].tokens) for found in search([self.model], padded(source), decode)]

    def distance(self, model: Transformer, source: Rows, target: Sequence[Sequence[int]]) -> float:
        pairs = [(padded(rows), padded(wanted)) for rows, wanted in paired(source, target)]
        return max(float((model(*pair) - self.model(*pair)).abs().max()) for pair in pairs)
