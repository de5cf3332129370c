"""`bathy prepare`: raw text to a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set, output_folder


def prepare(
    config: Annotated[Path | None, typer.Argument(help="TOML file with [data] and [prepare]; flags alone do too.")] = None,
    task: Annotated[str | None, typer.Option(help="translation or language (task.kind), where no config says it.")] = None,
    raw: Annotated[
        Path | None, typer.Option(help="Raw text: a folder of train.de, train.en, valid.de …; language: any text.")
    ] = None,
    out: Annotated[Path | None, typer.Option(callback=output_folder, help="Data folder to write (data.path).")] = None,
    source: Annotated[str | None, typer.Option(help="Source language, the ending of its files.")] = None,
    target: Annotated[str | None, typer.Option(help="Target language.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Size of the vocabulary (data.vocab).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0 uses all cores.")] = None,
    set_: Set = None,
) -> None:
    """Tokenise, learn BPE, encode: what `bathy train` reads. Stopped or repeated, it resumes where it was.

    Example: bathy prepare --raw raw/toy --out data/toy --vocab 4000

    Example: bathy prepare --task language --raw raw/stdlib --out data/stdlib --vocab 4096
    """
    from bathy.console import out as screen
    from bathy.settings import change
    from bathy.tasks import prepare_data

    flags: dict[str, object] = {"prepare.raw": raw, "data.path": out, "prepare.source": source, "prepare.target": target}
    others = {"task.kind": task, "data.vocab": vocab, "prepare.workers": workers}
    changes = [change(key, value) for key, value in (flags | others).items() if value is not None] + (set_ or [])
    screen.print(prepare_data(config, changes))
