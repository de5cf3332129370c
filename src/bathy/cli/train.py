"""`bathy train`: from a data folder to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set


def train(
    config: Annotated[Path, typer.Argument(help="TOML file with [data], [model], [optim] and [train].")],
    run: Annotated[
        Path | None,
        typer.Option("--run", "--out", help="The run's folder (train.run); default: runs/ and the config's name."),
    ] = None,
    allow_changes: Annotated[bool, typer.Option(help="Resume a run although its config has changed.")] = False,
    plan: Annotated[bool, typer.Option(help="Print parameters, memory, steps and time instead; needs no data.")] = False,
    gpus: Annotated[str, typer.Option(help="Numbers of GPUs that the plan compares.")] = "1,8,64",
    device: Annotated[str, typer.Option(help="Kind of GPU that the plan is for: v100, a100 or h100.")] = "a100",
    set_: Set = None,
) -> None:
    """Train a model; an existing run resumes where it stopped. Under torchrun, on many devices.

    Example: bathy train configs/demo.toml --set model.encoder_scheme=pre_ln --set model.decoder_scheme=pre_ln

    Example: torchrun --nproc-per-node 8 -m bathy train configs/wmt14_ende_18l.toml --out runs/18l

    Under torchrun write --out instead of --run, which torchrun takes for an option of its own.
    """

    from bathy.errors import ConfigError
    from bathy.settings import change
    from bathy.tasks import make_task, read_config

    changes = [change("train.run", run)] if run else []
    settings = read_config(config, [*changes, *(set_ or [])])
    task = make_task(settings)
    if plan:
        from bathy.train.plan import make_plan, show

        numbers = gpus.split(",")
        if not all(number.strip().isdigit() and int(number) for number in numbers):
            raise ConfigError(f"--gpus is {gpus}; write numbers with commas between, for example 1,8,64")
        show(make_plan(task, settings, [int(number) for number in numbers], device), device)
        return
    from bathy.train.folder import run_folder
    from bathy.train.loop import fit

    fit(task, settings, run_folder(settings, config), allow_changes=allow_changes)
