"""`bathy corpus`: parallel text in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def corpus(
    name: Annotated[str, typer.Argument(help="toy, folder, iwslt14.de-en, wmt14.en-de, wmt14.en-fr, multi30k.LANG-LANG.")],
    folder: Annotated[Path, typer.Argument(help="Where to write: train.de, train.en, valid.de …, corpus.json.")],
    size: Annotated[int, typer.Option(help="toy: training sentences.", min=1)] = 20_000,
    held_out: Annotated[int, typer.Option(help="toy: sentences each in valid, test and test_structure.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="toy: another seed, other sentences.")] = 1,
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT=FILES", help="folder: train=STEM for STEM.de and STEM.en, or train=A,B; any number."),
    ] = None,
    source: Annotated[str, typer.Option(help="folder: source language.")] = "de",
    target: Annotated[str, typer.Option(help="folder: target language.")] = "en",
    workers: Annotated[int, typer.Option(help="Processes; 0 uses all cores.", min=0)] = 0,
) -> None:
    """Fetch or make parallel text and lay it out as plain files.

    Examples: bathy corpus toy raw/toy --size 20000

    bathy corpus iwslt14.de-en raw/iwslt14

    bathy corpus folder raw/mine --pair train=news --pair train=ted.de.gz,ted.en.gz --pair valid=dev
    """
    from bathy.console import out, table
    from bathy.nmt.corpora.build import build, own
    from bathy.nmt.corpora.recipes import recipe
    from bathy.nmt.corpora.toy import write_toy

    if name == "toy":
        facts = write_toy(folder, size, held_out, seed, workers)
    elif name == "folder":
        facts = own(folder, source, target, pair or [])
    else:
        facts = build(name, recipe(name), folder)
    rows = [[split, row["lines"]] for split, row in facts["splits"].items()]
    title = f"{folder}: {facts['corpus']}, {facts['source']} to {facts['target']}"
    out.print(table(title, ["split", "sentence pairs"], rows))
