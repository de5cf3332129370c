"""`bathy sweep`: every point of a grid as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import Set, output_folder


def sweep(
    config: Annotated[Path, typer.Argument(help="TOML file that all runs start from.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=VALUE,…", help="A setting and its values; KEY+KEY moves several together."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(callback=output_folder, help="Folder of the runs; shared by all machines, or a dead run starts over."),
    ] = Path("sweep"),
    storage: Annotated[str, typer.Option(help="SQLAlchemy URL, e.g. postgresql://…; default an SQLite file in OUT.")] = "",
    name: Annotated[str, typer.Option(help="Name of the sweep in its storage.")] = "sweep",
    workers: Annotated[int, typer.Option(min=1, help="Processes on this machine, each with its share of the cores.")] = 1,
    heartbeat: Annotated[int, typer.Option(min=1, help="Seconds between signs of life of a worker.")] = 30,
    grace: Annotated[int, typer.Option(min=2, help="Seconds without one after which its run is taken over.")] = 120,
    set_: Set = None,
) -> None:
    """Train every point of a grid, with any number of workers on any machines; run again, the same command resumes.

    Example: bathy sweep configs/demo.toml --grid optim.lr=1e-4,2e-4,3e-4 --grid optim.beta2=0.99,0.999 --workers 2
    """
    from bathy import console
    from bathy.lab.sweep import Grid, Sweep
    from bathy.lab.sweep.results import report
    from bathy.lab.sweep.study import shown
    from bathy.lab.sweep.train import run_all

    plan = Sweep(Grid.parse(grid or []), out, storage, name, heartbeat, grace)
    run_all(plan, config, set_ or [], workers)
    report(plan)
    console.out.print(f"to look at it: optuna-dashboard '{shown(plan.url)}'")
