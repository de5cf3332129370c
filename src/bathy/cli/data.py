"""`bathy data`: look into a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_file, refuse_unused


def data(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Data folder, as prepare writes it.")],
    split: Annotated[str, typer.Option(help="The split to look at.")] = "train",
    tokens: Annotated[int, typer.Option(help="translation: token budget of a batch for the padding report.", min=1)] = 4096,
    samples: Annotated[int, typer.Option(help="How many random pairs, or pieces of text, to show.", min=0)] = 3,
    picture: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also draw the length histogram: .svg, .png or .pdf.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare every file with its checksum in the manifest.")] = False,
) -> None:
    """Summary, lengths, samples, and how full batches would be.

    Example: bathy data data/toy --tokens 4096 --picture lengths.svg
    """
    from bathy import console
    from bathy.tasks import kind_of_folder, part

    kind = kind_of_folder(folder)
    overview = part(kind, "overview")
    if not hasattr(overview, "padding"):
        refuse_unused(context, ["tokens"], f"the task {kind}, whose batches have no padding")
    manifest, opened = overview.look(folder, split, check)
    console.out.print(overview.summary(folder, manifest))
    console.out.print(overview.histogram(opened))
    if samples:
        console.out.print(overview.samples(opened, samples))
    if hasattr(overview, "padding"):
        report = overview.padding(opened, tokens)
        title = f"{split}: an epoch at {tokens:,} tokens a batch"
        console.out.print(console.table(title, list(report), [list(report.values())]))
    if picture:
        overview.picture(opened, picture)
        console.out.print(f"wrote {picture}")
