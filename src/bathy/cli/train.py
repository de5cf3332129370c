"""`bathy train`: from a data folder to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set


def train(
    config: Annotated[Path, typer.Argument(help="TOML file with [data], [model], [optim] and [train].")],
    run: Annotated[
        Path | None, typer.Option(help="The run's folder (train.run); default: runs/ and the config's name.")
    ] = None,
    allow_changes: Annotated[bool, typer.Option(help="Go on with a run although its config has changed.")] = False,
    set_: Set = None,
) -> None:
    """Train a translation model; on an existing run, go on where it stopped.

    Example: bathy train configs/demo.toml --set model.encoder_scheme=pre_ln --set model.decoder_scheme=pre_ln
    """
    import json

    from bathy.nmt.config import read_config
    from bathy.nmt.train import run_folder
    from bathy.nmt.train import train as start
    from bathy.nmt.world import joined

    changes = [f"train.run={json.dumps(str(run))}"] if run else []
    settings = read_config(config, [*changes, *(set_ or [])])
    with joined() as world:
        start(settings, run_folder(settings, config), world, allow_changes)
