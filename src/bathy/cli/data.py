"""`bathy data`: look into a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_file


def data(
    folder: Annotated[Path, typer.Argument(help="Data folder, as prepare writes it.")],
    split: Annotated[str, typer.Option(help="The split to look at.")] = "train",
    tokens: Annotated[int, typer.Option(help="Token budget of a batch for the padding report.", min=1)] = 4096,
    samples: Annotated[int, typer.Option(help="How many random pairs to show.", min=0)] = 3,
    picture: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also draw the length histogram: .svg, .png or .pdf.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare every file with its checksum in the manifest.")] = False,
) -> None:
    """Summary, lengths, samples, and how full batches would be.

    Example: bathy data data/toy --tokens 4096 --picture lengths.svg
    """
    from bathy import console
    from bathy.tasks import kind_of_folder

    if kind_of_folder(folder) == "language":
        _text(folder, split, samples, check)
        return
    from bathy.tasks.translation import overview
    from bathy.tasks.translation.data import Split, verify

    opened = Split(folder, split)
    if check:
        verify(folder, opened.manifest)
    console.out.print(overview.summary(folder, opened.manifest))
    console.out.print(overview.histogram(opened))
    if samples:
        console.out.print(overview.samples(opened, samples))
    report = overview.padding(opened, tokens)
    console.out.print(console.table(f"{split}: an epoch at {tokens:,} tokens a batch", list(report), [list(report.values())]))
    if picture:
        overview.picture(opened, picture)
        console.out.print(f"wrote {picture}")


def _text(folder: Path, split: str, samples: int, check: bool) -> None:
    """The same for a folder of language modelling."""
    from bathy import console
    from bathy.tasks.language import overview
    from bathy.tasks.language.data import TextStream, read_manifest, verify

    manifest = read_manifest(folder)
    stream = TextStream(folder, split)
    if check:
        verify(folder, manifest)
    console.out.print(overview.summary(folder, manifest))
    console.out.print(overview.lengths(stream))
    if samples:
        console.out.print(overview.samples(stream, samples))
