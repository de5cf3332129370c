"""The model of a run, of a checkpoint, or of a model folder, checked and ready to use.

A model folder is what `bathy export --to bathy` writes: model.safetensors and config.json with the model's own settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from bathy import console
from bathy.admin.fold import fold
from bathy.core.schemes import SCHEMES
from bathy.core.transformer import Architecture, Transformer, TransformerConfig
from bathy.errors import CheckpointError, ModelError, SchemeError
from bathy.files import origin, read_json, write_json
from bathy.tasks.sums import check_sums
from bathy.train.averaging import choose
from bathy.train.checkpoint import META, WEIGHTS, damage, put_weights, read_weights, weights_of


def load(folder: Path, average: float = 1, which: str = "last") -> Transformer:
    """The model of a run, of a checkpoint, or of a model folder.

    Of a run: the newest checkpoint, or a mean of several as `bathy.train.averaging.choose` says; `which` may be "best" by
    validation loss, "ema", or an update.
    """
    if (folder / WEIGHTS).exists() or (folder / META).exists():
        _check(folder)
        return _build(folder, read_weights(folder))
    choice = choose(folder, average, which)
    return _build(choice.folders[-1], choice.weights(Transformer.rename_old_keys))


def fold_if_possible(model: Transformer) -> Transformer:
    """The model with ω folded away; unchanged where its scheme has none or, with a warning, where an ω is too close to 0."""
    try:
        return fold(model)
    except SchemeError:
        return model
    except ModelError as error:
        console.warn(f"ω is kept, not folded: {error}")
        return model


def home(folder: Path) -> Path:
    """Where a run, checkpoint or model folder keeps its config and its tokenizer."""
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


def save_model(model: Transformer, folder: Path, **settings: Any) -> None:
    """Write a model folder: weights, and config.json with the model's own settings and others."""
    save_file({name: value.contiguous() for name, value in weights_of(model).items()}, folder / WEIGHTS)
    write_json(folder / "config.json", {"model": model.config.model_dump(), **settings, "origin": origin()}, seal=True)


def _check(folder: Path) -> None:
    """Refuse a checkpoint or model folder whose files are not what was written; models of version 0.1 have no checksums."""
    if not (folder / META).exists():
        check_sums(folder)
    elif fault := damage(folder):
        raise CheckpointError(f"{folder} is damaged ({fault}); restore a copy, or train it again")


def _build(folder: Path, weights: dict[str, Tensor]) -> Transformer:
    model = Transformer(TransformerConfig(**_model_settings(folder)))
    put_weights(model, weights, folder)
    return model.eval()


def _model_settings(folder: Path) -> dict[str, Any]:
    """The model's own settings: a checkpoint keeps them in meta.json, a model folder in config.json."""
    path = folder / META if (folder / META).exists() else folder / "config.json"
    settings = read_json(path).get("model")
    if not isinstance(settings, dict) or not settings:
        raise CheckpointError(f"{path} does not describe a bathy model")
    return settings


def advice_on_depth(model: Architecture) -> str:
    """A scheme for depth, where a stack is plain Post-LN; else nothing."""
    plain = [f"model.{stack}_scheme" for stack in model.stacks if model.scheme(stack).build is SCHEMES["post_ln"].build]
    return f"a scheme for depth ({' and '.join(plain)} = 'admin' or 'pre_ln')" if plain else ""
