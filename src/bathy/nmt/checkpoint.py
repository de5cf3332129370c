"""Checkpoints: `checkpoints/step_00004000/{model.safetensors, trainer.pt, meta.json}`, whole or not there.

    save(run, step, model, trainer_state, meta)       # atomic: written beside, then renamed
    for step, folder in checkpoints(run): ...         # finished ones, newest last
    newest(run)                                       # the newest that is intact, saying which were not
    load(folder)                                      # a run's or a model folder's (config, model), ready to use
    load(run, average=10)                             # weights averaged over the last ten checkpoints

Weights are safetensors; trainer.pt holds plain containers and tensors and is read with `weights_only=True`. A model folder is
what `bathy export --to bathy` writes: model.safetensors and config.json with the model's own settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bathy import console
from bathy.errors import CheckpointError, TrainingError
from bathy.files import origin, write_json
from bathy.transformer import Transformer, TransformerConfig

WEIGHTS, TRAINER, META = "model.safetensors", "trainer.pt", "meta.json"


def save(run: Path, step: int, weights: Mapping[str, Tensor], trainer: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
    """Write a checkpoint beside its place, have it on the disk, then rename it there."""
    place = run / "checkpoints" / f"step_{step:08d}"
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}, temporary / WEIGHTS)
        torch.save(dict(trainer), temporary / TRAINER)
        sums = {name: _digest(temporary / name) for name in (WEIGHTS, TRAINER)}
        write_json(temporary / META, {"step": step, **meta, "sha256": sums, "origin": origin()})
        _settle(temporary)
        shutil.rmtree(place, ignore_errors=True)
        temporary.rename(place)
        _settle(place.parent)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors raise their own when the disk is full
        shutil.rmtree(temporary, ignore_errors=True)
        raise TrainingError(
            f"{place} could not be written ({error}); older checkpoints are untouched; make room and start the same command"
        ) from error
    return place


def _settle(folder: Path) -> None:
    """Have the files of a folder, and their names, on the disk."""
    for path in [*(file for file in folder.iterdir() if file.is_file()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers, each once, by the first of its names."""
    kept = {name for name, _ in model.named_parameters()}
    state = model.state_dict()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in state.items() if name in kept or name not in parameters}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load what `weights_of` gave; a name or shape that does not fit is an error."""
    expected = weights_of(model)
    for name, value in expected.items():
        if name not in weights:
            raise CheckpointError(f"{source} has no {name}; it belongs to another model")
        if weights[name].shape != value.shape:
            raise CheckpointError(f"{source}: {name} is {tuple(weights[name].shape)}, the model's is {tuple(value.shape)}")
    model.load_state_dict(dict(weights), strict=False)


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """The finished checkpoints of a run, oldest first."""
    found = (run / "checkpoints").glob("step_*")
    return sorted((int(folder.name.removeprefix("step_")), folder) for folder in found if (folder / META).exists())


def meta(folder: Path) -> dict[str, Any]:
    """What was known when the checkpoint was written."""
    return json.loads((folder / META).read_text(encoding="utf-8"))


def prune(run: Path, last: int, best: int) -> None:
    """Keep the newest `last` checkpoints and the `best` of lowest validation loss; remove others, and what a kill left over."""
    for left in (run / "checkpoints").glob(".step_*"):
        shutil.rmtree(left, ignore_errors=True)
    found = [folder for _, folder in checkpoints(run)]
    by_loss = sorted((valid_loss(folder), folder) for folder in found)
    kept = {folder for loss, folder in by_loss[:best] if loss < math.inf}
    for folder in set(found) - set(found[-last:]) - kept:
        shutil.rmtree(folder)


def valid_loss(folder: Path) -> float:
    """The validation loss a checkpoint was written with; infinite where there is none."""
    try:
        value = meta(folder).get("valid_loss")
    except (OSError, ValueError):
        return math.inf
    return math.inf if value is None else float(value)


def damage(folder: Path) -> str:
    """What is wrong with the files of a checkpoint, or nothing."""
    try:
        for name, value in meta(folder)["sha256"].items():
            if _digest(folder / name) != value:
                return f"{name} is not what was written"
    except OSError as error:
        return f"{Path(error.filename or META).name} cannot be read"
    except (ValueError, KeyError, AttributeError):
        return f"{META} is not what was written"
    return ""


def intact(folder: Path) -> bool:
    """Whether the files are those that were written."""
    return not damage(folder)


def newest(run: Path) -> Path | None:
    """The newest intact checkpoint; damaged ones are passed over, saying so."""
    for _, folder in reversed(checkpoints(run)):
        fault = damage(folder)
        if not fault:
            return folder
        console.err.print(f"[yellow]warning:[/] {folder} is damaged ({fault}) and passed over")
    return None


def read_trainer(folder: Path) -> dict[str, Any]:
    """The trainer's state, read without unpickling objects."""
    return torch.load(folder / TRAINER, map_location="cpu", weights_only=True)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint or model folder."""
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / WEIGHTS} cannot be read ({error})") from error


def averaged(folders: list[Path]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, value in read_weights(folder).items():
            total[name] = total[name] + value.double() if name in total else value.double()
    like = read_weights(folders[-1])
    return {name: (value / len(folders)).to(like[name].dtype) for name, value in total.items()}


def load(folder: Path, average: int = 1, which: str = "last") -> Transformer:
    """The model of a run, of a checkpoint, or of a model folder.

    Of a run: the newest checkpoint, or the mean of the last `average`; `which` may be "best" by validation loss, or an update.
    """
    if (folder / WEIGHTS).exists():
        return _built(folder, read_weights(folder))
    chosen = _chosen(folder, average, which)
    return _built(chosen[-1], averaged(chosen) if len(chosen) > 1 else read_weights(chosen[-1]))


def _chosen(run: Path, average: int, which: str) -> list[Path]:
    found = dict(checkpoints(run))
    if not found:
        raise CheckpointError(
            f"{run} is no model folder and has no checkpoints; `bathy train` writes a run, `bathy export` a model"
        )
    whole = {str(step): folder for step, folder in found.items() if intact(folder)}
    if not whole:
        raise CheckpointError(f"every checkpoint in {run} is damaged; train again or restore a copy")
    if which == "last":
        return list(whole.values())[-average:]
    if which == "best":
        return [min(whole.values(), key=valid_loss)]
    if which not in whole:
        raise CheckpointError(f"{run} has no checkpoint {which}; it has {', '.join(whole)}, last and best")
    return [whole[which]]


def _built(folder: Path, weights: dict[str, Tensor]) -> Transformer:
    model = Transformer(TransformerConfig(**_model_settings(folder)))
    put_weights(model, weights, folder)
    return model.eval()


def _model_settings(folder: Path) -> dict[str, Any]:
    """The model's own settings: a checkpoint keeps them in meta.json, a model folder in config.json."""
    path = folder / META if (folder / META).exists() else folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} does not describe a bathy model ({type(error).__name__}: {error})") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
