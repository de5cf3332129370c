"""Checkpoints: `checkpoints/step_00004000/{model.safetensors, trainer.pt, meta.json}`, whole or not there.

    save(run, step, weights, trainer, meta)           # atomic: written beside, then renamed
    for step, folder in checkpoints(run): ...         # finished ones, newest last
    newest(run)                                       # the newest that is intact, saying which were not
    chosen(run, average=10)                           # which checkpoints `translate`, `sample` and `export` use

Weights are safetensors; trainer.pt holds plain containers and tensors and is read with `weights_only=True`. Every file's
checksum is checked once before it is used.
"""

from __future__ import annotations

import errno
import math
import pickle
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bathy import console
from bathy.errors import ADVICE, CheckpointError, DataError, TrainingError, file_size_limited, system_error
from bathy.files import digest, origin, read_json, replacing_folder, write_json

Value = TypeVar("Value")
WEIGHTS, TRAINER, META = "model.safetensors", "trainer.pt", "meta.json"
EMA = "ema.safetensors"
"""A moving average of the weights, where train.ema asks for one."""
_STEP = re.compile(r"step_(\d{8,})")


def save(
    run: Path,
    step: int,
    weights: Mapping[str, Tensor],
    trainer: Mapping[str, Any],
    meta: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint beside its place, have it on the disk, then rename it there."""
    place = run / "checkpoints" / f"step_{step:08d}"
    try:
        with replacing_folder(place) as temporary:
            for name, tensors in {WEIGHTS: weights, EMA: ema or {}}.items():
                if tensors:
                    save_file({key: value.detach().contiguous().cpu() for key, value in tensors.items()}, temporary / name)
            torch.save(dict(trainer), temporary / TRAINER)
            sums = {name: digest(temporary / name) for name in (WEIGHTS, TRAINER, *([EMA] if ema else []))}
            write_json(temporary / META, {"step": step, **meta, "sha256": sums, "origin": origin()}, seal=True)
            shutil.rmtree(place, ignore_errors=True)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors raise their own when the disk is full
        why = f"{place} could not be written ({_refused(error)})"
        raise TrainingError(f"{why}; older checkpoints are untouched; make room and start the same command") from error
    return place


def _refused(error: Exception) -> str:
    """What kept a file from being written; a limit on the size of files by its name, which torch's writer does not tell."""
    known = error if isinstance(error, OSError) else system_error(error)
    limited = known.errno == errno.EFBIG if known else file_size_limited()
    return ADVICE[errno.EFBIG] if limited else str(error)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers, each once, by the first of its names."""
    kept = {name for name, _ in model.named_parameters()}
    state = model.state_dict()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in state.items() if name in kept or name not in parameters}


def current_names(model: nn.Module, named: Mapping[str, Value]) -> dict[str, Value]:
    """What was saved by parameter name, under the names the model has now: it may know older ones of its own."""
    rename: Callable[[Mapping[str, Value]], dict[str, Value]] = getattr(model, "rename_old_keys", dict)
    return rename(named)


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load what `weights_of` gave; a name or shape that does not fit is an error."""
    expected, weights = weights_of(model), current_names(model, weights)
    for name, value in expected.items():
        if name not in weights:
            raise CheckpointError(f"{source} has no {name}; it belongs to another model")
        if weights[name].shape != value.shape:
            raise CheckpointError(f"{source}: {name} is {tuple(weights[name].shape)}, the model's is {tuple(value.shape)}")
    model.load_state_dict(dict(weights), strict=False)


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """The finished checkpoints of a run, oldest first; folders of other names are somebody else's."""
    found = ((_STEP.fullmatch(folder.name), folder) for folder in (run / "checkpoints").glob("step_*") if folder.is_dir())
    return sorted((int(name[1]), folder) for name, folder in found if name)


def meta(folder: Path) -> dict[str, Any]:
    """What was known when the checkpoint was written."""
    path = folder / META
    try:
        return read_json(path)
    except DataError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """The error for a file of a checkpoint that cannot be used."""
    return CheckpointError(
        f"{path} cannot be read ({type(error).__name__}: {str(error)[:200]}); `bathy verify` says what can be saved"
    )


def clean(run: Path) -> None:
    """Remove what a kill left of a save."""
    for left in (run / "checkpoints").glob(".step_*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def prune(run: Path, last: int, best: int) -> None:
    """Keep the newest `last` intact checkpoints and the `best` of lowest validation loss; remove other intact ones.

    Damaged ones are neither counted nor removed: what is left of them may be wanted.
    """
    clean(run)
    found = [folder for _, folder in checkpoints(run) if intact(folder)]
    by_loss = sorted((valid_loss(folder), folder) for folder in found)
    kept = {folder for loss, folder in by_loss[:best] if loss < math.inf}
    for folder in set(found) - set(found[-last:]) - kept:
        shutil.rmtree(folder)


def valid_loss(folder: Path) -> float:
    """The validation loss a checkpoint was written with; infinite where there is none."""
    try:
        value = meta(folder).get("valid_loss")
        return math.inf if value is None else float(value)
    except (CheckpointError, TypeError, ValueError):
        return math.inf


_checked: dict[Path, tuple[object, str]] = {}
"""Folder to its files' sizes and times when they were checked, and what was wrong: each is hashed once per process."""


def damage(folder: Path) -> str:
    """What is wrong with the files of a checkpoint, or nothing."""
    try:
        stamp = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    key = folder.resolve()
    if key not in _checked or _checked[key][0] != stamp:
        _checked[key] = stamp, _damage(folder)
    return _checked[key][1]


def _damage(folder: Path) -> str:
    try:
        sums = meta(folder)["sha256"]
        missing = {WEIGHTS, TRAINER} - set(sums)
        if missing:
            return f"{META} has no checksum of {', '.join(sorted(missing))}"
        for name in sorted({WEIGHTS, TRAINER} | (set(sums) & {EMA})):
            if digest(folder / name) != sums[name]:
                return f"{name} is not what was written"
    except OSError as error:
        return f"{Path(error.filename or META).name} cannot be read"
    except (CheckpointError, KeyError, TypeError):
        return f"{META} is not what was written"
    return ""


def intact(folder: Path) -> bool:
    """Whether the files are those that were written."""
    return not damage(folder)


def newest(run: Path) -> Path | None:
    """The newest intact checkpoint, saying which newer ones are damaged; none for a fresh run; an error if all are damaged."""
    found = checkpoints(run)
    for _, folder in reversed(found):
        fault = damage(folder)
        if not fault:
            return folder
        console.warn(f"{folder} is damaged ({fault}); falling back to an older checkpoint")
    if found:
        raise CheckpointError(
            f"every checkpoint in {run} is damaged; restore a copy, or remove {run / 'checkpoints'} to start from update 0"
        )
    return None


def chosen(run: Path, average: int = 1, which: str = "last") -> list[Path]:
    """The checkpoints a model is made of: the newest `average`, or `which`: best by validation loss, or an update.

    Damaged ones are never used; where that changes the choice, it is said.
    """
    found = dict(checkpoints(run))
    if not found:
        raise CheckpointError(
            f"{run} is no model folder and has no checkpoints; `bathy train` writes a run, `bathy export` a model"
        )
    if which in map(str, found) and damage(found[int(which)]):
        raise CheckpointError(f"{found[int(which)]} is damaged ({damage(found[int(which)])}); choose another checkpoint")
    for folder in found.values():
        if fault := damage(folder):
            console.warn(f"{folder} is damaged ({fault}) and is not used")
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


def read_trainer(folder: Path) -> dict[str, Any]:
    """The trainer's state, read without unpickling objects."""
    path = folder / TRAINER
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise unreadable(path, error) from error


def read_weights(folder: Path, file: str = WEIGHTS) -> dict[str, Tensor]:
    """The weights of a checkpoint or model folder; one with values that are not finite is refused by name."""
    path = folder / file
    if file == EMA and not path.exists():
        raise CheckpointError(f"{folder} has no moving average of its weights; train with train.ema, e.g. 0.999")
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{path}: {name} has values that are not finite; use an earlier checkpoint")
    return weights


def weights_from(source: Path) -> dict[str, Tensor]:
    """The weights of a run's newest checkpoint, of a checkpoint, or of a model folder, checked."""
    if (source / META).exists() and (fault := damage(source)):
        raise CheckpointError(f"{source} is damaged ({fault}); choose another checkpoint or restore a copy")
    return read_weights(source if (source / WEIGHTS).exists() else chosen(source)[-1])


def averaged(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several weights, summed in float64, one after the other; each keeps its number format."""
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        count += 1
        for name, value in state.items():
            total[name] = total[name] + value.double() if name in total else value.double()
            dtypes[name] = value.dtype
    return {name: (value / count).to(dtypes[name]) for name, value in total.items()}
