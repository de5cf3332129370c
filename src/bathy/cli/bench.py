"""`bathy bench`: measure what a thing costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_file


def bench(
    what: Annotated[str, typer.Argument(help="What to measure; --list names all.")] = "",
    data: Annotated[Path | None, typer.Option(help="Folder of parallel text; without it the toy corpus, said so.")] = None,
    out: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also write the numbers, and what made them, as JSON.")
    ] = None,
    only: Annotated[str, typer.Option(help="Measure only the models whose name contains this (translate, train).")] = "",
    quick: Annotated[bool, typer.Option(help="Fewer rounds and smaller models: a look, not a measurement.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
) -> None:
    """Measure what a thing costs here: ratios inside one run, interleaved.

    Example: bathy bench admin --out admin.json
    """
    from inspect import signature

    from bathy import console
    from bathy.errors import ConfigError, unknown
    from bathy.files import origin, write_json
    from bathy.lab.bench import BENCHES, load, purpose

    if show or not what:
        rows = [(name, purpose(name)) for name in BENCHES]
        console.out.print(console.table("benchmarks", ["name", "what it measures"], rows))
        return
    if what not in BENCHES:
        raise ConfigError(unknown("benchmark", what, BENCHES))
    run = load(what).run
    if only and "only" not in signature(run).parameters:
        raise ConfigError(f"--only does not apply to bathy bench {what}, which measures one thing")
    result = run(data=data, quick=quick, **({"only": only} if only else {}))
    if out:
        write_json(out, {"benchmark": what, **origin(), "result": result})
