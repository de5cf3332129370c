"""`bathy demo`: the first ten minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_folder


def demo(
    folder: Annotated[Path, typer.Option(callback=output_folder, help="Where everything goes.")] = Path("demo"),
    quick: Annotated[
        bool, typer.Option(help="Two minutes instead of ten: smaller models, fewer updates, poorer translations.")
    ] = False,
) -> None:
    """Train three deep translation models side by side: one fails, two learn, and a page shows why.

    Example: bathy demo --folder demo
    """
    from bathy.lab.demo import demo as run

    run(folder, quick)
