"""`bathy corpus`: text in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bathy.cli.options import output_folder, refuse_unused

USED_BY = dict.fromkeys(("size", "held_out", "seed", "workers"), "toy") | dict.fromkeys(
    ("pair", "source", "target", "text"), "folder"
)
"""Option to the only corpus on which it has an effect."""


def corpus(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="toy, folder, iwslt14.de-en, wmt14.en-de, wmt14.en-fr, multi30k.LANG-LANG; language: stdlib, tinyshakespeare."
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            callback=output_folder, help="Where to write: train.de, train.en, valid.de …; language: train.jsonl …; corpus.json."
        ),
    ],
    size: Annotated[int, typer.Option(help="toy: training sentences.", min=1)] = 20_000,
    held_out: Annotated[int, typer.Option(help="toy: sentences each in valid, test and test_structure.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="toy: another seed, other sentences.")] = 1,
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT=FILES", help="folder: train=STEM for STEM.de and STEM.en, or train=A,B; any number."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="folder: a file or folder of plain text, for language modelling.")] = None,
    source: Annotated[str, typer.Option(help="folder: source language.")] = "de",
    target: Annotated[str, typer.Option(help="folder: target language.")] = "en",
    workers: Annotated[int, typer.Option(help="Processes; 0 uses all cores.", min=0)] = 0,
) -> None:
    """Fetch or make text, parallel or plain, and lay it out as files that `bathy prepare` reads.

    Examples: bathy corpus toy raw/toy --size 20000

    bathy corpus iwslt14.de-en raw/iwslt14

    bathy corpus folder raw/mine --pair train=news --pair train=ted.de.gz,ted.en.gz --pair valid=dev

    bathy corpus stdlib raw/stdlib
    """
    from bathy.console import out, table
    from bathy.tasks.language import corpora

    refuse_unused(context, [option for option, corpus in USED_BY.items() if corpus != name], f"the corpus {name}")
    if name in corpora.NAMES or text:
        refuse_unused(context, ["pair", "source", "target"], "plain text")
        found = corpora.write(name, folder, text)
        cells = [[split, row["documents"], row["characters"]] for split, row in found["splits"].items()]
        out.print(table(f"{folder}: {name}", ["split", "documents", "characters"], cells))
        return
    from bathy.tasks.translation.corpora.build import build, own
    from bathy.tasks.translation.corpora.recipes import recipe
    from bathy.tasks.translation.corpora.toy import write_toy

    if name == "toy":
        facts = write_toy(folder, size, held_out, seed, workers)
    elif name == "folder":
        facts = own(folder, source, target, pair or [])
    else:
        facts = build(name, recipe(name), folder)
    rows = [[split, row["lines"]] for split, row in facts["splits"].items()]
    title = f"{folder}: {facts['corpus']}, {facts['source']} to {facts['target']}"
    out.print(table(title, ["split", "sentence pairs"], rows))
