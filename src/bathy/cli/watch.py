"""`bathy watch`: follow runs in a browser while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_file


def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold runs; they may appear later.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8890,
    minutes: Annotated[float, typer.Option(min=0, help="Stop by itself after so many minutes; 0: never.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option(callback=output_file, help="Write the page to this file instead, as it is now.")
    ] = None,
) -> None:
    """Show loss, rate, branch shares, warnings and samples of runs, side by side, as they train; finished runs too.

    The page is for this machine only (127.0.0.1). Ctrl-C stops the server; the runs are not touched.

    Example: bathy watch runs/demo
    """
    from bathy import console
    from bathy.files import write_text
    from bathy.lab.watch import Watch, serve

    found = Watch(runs)
    for folder in runs:
        if not folder.exists():
            console.warn(f"{folder} does not exist yet; it is shown once a run writes there")
    if out:
        write_text(out, found.page(live=False))
        console.out.print(f"wrote {out}", highlight=False)
    else:
        serve(found, port, minutes)
