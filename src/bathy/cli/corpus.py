"""`bathy corpus`: parallel text in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def corpus(
    name: Annotated[str, typer.Argument(help="toy")],
    folder: Annotated[Path, typer.Argument(help="Where to write: train.de, train.en, valid.de …")],
    size: Annotated[int, typer.Option(help="toy: training sentences.", min=1)] = 20_000,
    held_out: Annotated[int, typer.Option(help="toy: sentences each in valid, test and test_structure.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="toy: another seed, other sentences.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes; 0 uses all cores.", min=0)] = 0,
) -> None:
    """Fetch or make parallel text and lay it out as plain files.

    Example: bathy corpus toy raw/toy --size 20000
    """
    from bathy.nmt.corpora.toy import write_toy

    write_toy(folder, size, held_out, seed, workers)
