"""`bathy reproduce`: the paper's figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_folder


def reproduce(
    items: Annotated[list[str] | None, typer.Argument(help="Figures and tables; --list names all.")] = None,
    scale: Annotated[
        str, typer.Option(help="tiny (minutes, toy corpus), small (hours, Multi30k), medium (hours, Europarl) or paper (GPUs).")
    ] = "tiny",
    data: Annotated[Path | None, typer.Option(help="Folder of raw or prepared text; tiny makes its own.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of what is trained.")] = 1,
    out: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder of data, runs and results; default results/SCALE.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(help="Train only this run, by name or pattern ('admin_6_*'), or none; show what is finished. Repeatable."),
    ] = None,
    again: Annotated[bool, typer.Option(help="Measure anew what is finished; runs are kept.")] = False,
    publish: Annotated[
        Path | None,
        typer.Option(help="Copy the results beside this page and update it; runs kept there are not trained again."),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the items and what each needs.")] = False,
) -> None:
    """Measure the paper's figures and tables anew and judge its claims by them. Run again after a stop, it resumes.

    Example: bathy reproduce figure-3 figure-4 --scale tiny
    """
    from bathy import console
    from bathy.errors import some
    from bathy.lab import reproduce as lab
    from bathy.lab.reproduce.lab import Lab
    from bathy.lab.reproduce.publish import kept_runs
    from bathy.lab.reproduce.publish import publish as update
    from bathy.lab.reproduce.scale import SCALES, find_scale

    if show or not items:
        listed = console.table("items: data, time and memory at each scale", ["item", *SCALES], lab.listing())
        listed.columns[0].no_wrap = True
        console.out.print(listed)
        for known in SCALES.values():
            console.out.print(f"{known.name}: {known.purpose}")
        return
    folder = out or Path("results") / scale
    kept = publish and kept_runs(publish, folder.name)
    place = Lab(find_scale(scale), folder, data, seeds, kept, tuple(train or ("*",)))
    for name in items:
        lab.find_item(name)
    for name in items:
        verdicts = lab.reproduce(name, place, again)
        console.out.print(f"\n{lab.find_item(name).title}: {place.out / name}", style="bold", markup=False)
        for verdict in verdicts:
            console.out.print(lab.line(verdict), markup=False)
        if place.missing:
            console.out.print(f"  not finished, and left out: {some(place.missing)}", markup=False)
        if publish is not None:
            update(place.out, [name], publish)
    lab.check_patterns(place, items)
