"""`bathy prepare`: raw text to a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set


def prepare(
    config: Annotated[Path | None, typer.Argument(help="TOML file with [data] and [prepare]; flags alone do too.")] = None,
    raw: Annotated[Path | None, typer.Option(help="Folder of raw text: train.de, train.en, valid.de …")] = None,
    out: Annotated[Path | None, typer.Option(help="Data folder to write (data.path).")] = None,
    source: Annotated[str | None, typer.Option(help="Source language, the ending of its files.")] = None,
    target: Annotated[str | None, typer.Option(help="Target language.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Size of the vocabulary (data.vocab).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0 uses all cores.")] = None,
    set_: Set = None,
) -> None:
    """Tokenise, learn BPE, encode: what `bathy train` reads. Stopped or repeated, it goes on where it was.

    Example: bathy prepare --raw raw/toy --out data/toy --vocab 4000
    """
    import json

    from bathy.console import out as screen
    from bathy.nmt.dataconfig import read_preparing
    from bathy.nmt.overview import summary
    from bathy.nmt.prepare import prepare as run

    flags = {"prepare.raw": raw, "data.path": out, "prepare.source": source, "prepare.target": target}
    numbers = {"data.vocab": vocab, "prepare.workers": workers}
    changes = [f"{key}={json.dumps(str(value))}" for key, value in flags.items() if value is not None]
    changes += [f"{key}={value}" for key, value in numbers.items() if value is not None]
    settings = read_preparing(config, [*changes, *(set_ or [])])
    manifest = run(settings)
    screen.print(summary(settings.data.folders[0], manifest))
