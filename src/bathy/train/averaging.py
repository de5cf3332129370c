"""Weights averaged over the end of a run: which checkpoints, whether they are better than the last, and which ones to use.

An average over too much of a run holds weights from before the model was good. So a window is a share of the run, a tenth by
default, and at the end of training the average, the moving average if there is one, and the last weights are all validated;
`average.json` says which was best, and `translate`, `sample` and `export` use that unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bathy import console
from bathy.errors import ConfigError
from bathy.files import read_json, write_json
from bathy.train import checkpoint
from bathy.train.checkpoint import EMA, WEIGHTS, averaged, read_weights
from bathy.train.config import Config

if TYPE_CHECKING:
    from bathy.train.state import State
    from bathy.train.world import World

FILE = "average.json"
SHARE, WIDE = 0.1, 0.2
"""The window where nothing else is said, and the share of a run beyond which one is warned of."""
Rename = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Choice:
    """Checkpoints whose weights are used together."""

    folders: Sequence[Path]
    file: str = WEIGHTS

    def weights(self, rename: Rename = dict) -> dict[str, Tensor]:
        """Their mean, under the names that `rename` gives."""
        states = (rename(read_weights(folder, self.file)) for folder in self.folders)
        return averaged(states) if len(self.folders) > 1 else next(states)


def choose(run: Path, average: float = 0, which: str = "last") -> Choice:
    """What a run's model is made of: `which` names a checkpoint (best, an update) or ema; else the last ones, averaged.

    `average`: 0, what the end of training found best, else the last tenth; below 1, a share of the run; else a number.
    """
    if average < 0:
        raise ConfigError(f"the average is {average}; give a number of checkpoints, or a share of the run between 0 and 1")
    if which == "ema":
        return Choice(checkpoint.chosen(run)[-1:], EMA)
    if which != "last":
        return Choice(checkpoint.chosen(run, which=which))
    found = checkpoint.chosen(run, average=2**31)
    if not average and (best := _found_best(run, found)):
        return best
    folders = window(found, average or SHARE)
    if len(folders) > 1 and _step(folders[-1]) - _step(folders[0]) > WIDE * _step(folders[-1]):
        console.warn(
            f"{run}: the average spans updates {_step(folders[0])} to {_step(folders[-1])}, more than a fifth of the run: "
            "weights from before the model was good make it worse; lower decode.average or save more often"
        )
    return Choice(folders)


def window(folders: Sequence[Path], average: float) -> list[Path]:
    """The last `average` checkpoints, or those of the last share of the run; at least the newest."""
    if average >= 1:
        return list(folders[-int(average) :])
    end = _step(folders[-1])
    return [folder for folder in folders if _step(folder) > (1 - average) * end] or list(folders[-1:])


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def _found_best(run: Path, folders: Sequence[Path]) -> Choice | None:
    """What average.json says, if it is about these checkpoints."""
    if not (run / FILE).exists():
        return None
    said, by_step = read_json(run / FILE), {_step(folder): folder for folder in folders}
    steps = said.get("steps", [])
    if said.get("last") != _step(folders[-1]) or not all(step in by_step for step in steps):
        return None
    chosen = {"last": Choice(folders[-1:]), "ema": Choice(folders[-1:], EMA)}
    return chosen.get(said.get("best", ""), Choice([by_step[step] for step in steps]) if steps else None)


def compare(
    config: Config, state: State, run: Path, world: World, validate: Callable[[], float | None]
) -> dict[str, Any] | None:
    """Validate the averaged weights beside the last ones and write which are better; a row for the log, or nothing.

    `validate` gives the loss of the model as it is. Shards of FSDP2 take no whole weights, so that nothing is compared there.
    """
    if config.train.parallel == "fsdp" and world.size > 1:
        return None
    candidates = _candidates(state, run, world)
    if not candidates:
        return None
    own = {name: value.clone() for name, value in checkpoint.weights_of(state.model).items()}
    losses = {"last": state.valid}
    for name, weights in candidates.items():
        _put(state, weights, world)
        losses[name] = validate() or float("inf")
    _put(state, own, world)
    best = min(losses, key=lambda name: losses[name])
    if world.first:
        steps = [_step(folder) for folder in window(checkpoint.chosen(run, average=2**31), SHARE)]
        write_json(run / FILE, {"last": state.step, "steps": steps, "losses": losses, "best": best})
    return {f"valid_loss_{name}": loss for name, loss in losses.items() if name != "last"} | {"best_weights": best}


def _candidates(state: State, run: Path, world: World) -> dict[str, dict[str, Tensor]]:
    """Weights to be compared with the last; the first rank has the files and knows whether there is an average."""
    found: dict[str, dict[str, Tensor]] = {}
    folders = window(checkpoint.chosen(run, average=2**31), SHARE) if world.first else []
    if world.any(len(folders) > 1):
        found["average"] = (
            Choice(folders).weights(lambda weights: checkpoint.current_names(state.model, weights)) if folders else {}
        )
    if state.ema:
        found["ema"] = state.ema
    return found


def _put(state: State, weights: dict[str, Tensor], world: World) -> None:
    """Give the model these weights on all ranks; only the first need have them."""
    own = checkpoint.weights_of(state.model)
    with torch.no_grad():
        for name, value in own.items():
            if name in weights:
                value.copy_(weights[name])
    world.share(list(own.values()))
