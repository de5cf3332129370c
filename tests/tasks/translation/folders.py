# mypy: disable-error-code="union-attr, operator, index"
"""Small run and model folders for the tests of translation and export."""

from pathlib import Path
from typing import Any

import tiny
import torch

from bathy import Transformer
from bathy.settings import settings_to_toml
from bathy.tasks.special_tokens import EOS
from bathy.tasks.sums import write_sums
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.export import native
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.train import checkpoint


def sized(codec: Codec, scheme: str = "admin", seed: int = 3, **changes: Any) -> Transformer:
    """A random model for the codec that ends after some tokens, not after others, and never gives another special token."""
    model = tiny.model(scheme, vocab=codec.vocab, seed=seed, tie_embeddings=False, max_length=64, **changes)
    model = tiny.shake_(model).eval().requires_grad_(False)
    last = next(part for part in (model.decoder.final, model.decoder.layers[-1].ffn.post) if hasattr(part, "weight"))
    last.weight[0], last.bias[0] = 0, 1  # a constant feature: its column of the output matrix is a bias
    output = model.output_weight.mul_(3)
    output[:, 0], output[: EOS + 1, 0] = 0, -50
    tokens = torch.arange(codec.vocab)[:, None]
    features = model.decode(tokens, *model.encode(torch.full_like(tokens, 9)))[:, -1]
    direction = torch.linalg.svd(features - features.mean(0), full_matrices=False).Vh[0]
    along = features @ direction
    output[EOS] = 6 * direction / along.std()
    output[EOS, 0] = (features @ output.T).amax(1).mean() - 6 * along.mean() / along.std() - 4
    return model


def run_folder(folder: Path, data: Path, models: list[Transformer]) -> Path:
    """A run with one checkpoint per model, as training leaves it."""
    Codec.load(data).save(folder)
    config = models[0].config
    (folder / "config.toml").write_text(settings_to_toml(Config(decode=Decode(beam=3, average=len(models)))), encoding="utf-8")
    for step, model in enumerate(models, 1):
        checkpoint.save(folder, step, checkpoint.weights_of(model), {}, {"model": config.model_dump()})
    return folder


def model_folder(folder: Path, data: Path, model: Transformer) -> Path:
    """A model as `bathy export --to bathy` writes it."""
    folder.mkdir(parents=True)
    codec = Codec.load(data)
    codec.save(folder)
    native.write(model, codec, Decode(beam=2), folder, "float32")
    write_sums(folder)
    return folder


def mean(models: list[Transformer]) -> Transformer:
    """The model whose weights are the mean of the others'."""
    result = Transformer(models[0].config).eval().requires_grad_(False)
    states = [model.state_dict() for model in models]
    result.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    return result
