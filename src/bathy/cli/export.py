"""`bathy export`: a model that other engines run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bathy.nmt.export.compare import Comparison
    from bathy.nmt.text import Codec


def export(
    model: Annotated[Path, typer.Argument(help="Run, checkpoint or model folder.")],
    to: Annotated[str, typer.Option(help="bathy, marian (a Hugging Face folder) or ctranslate2.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: beside the run, named after the target.")] = None,
    kind: Annotated[str, typer.Option("--type", help="float32, or int8 for ctranslate2.")] = "float32",
    average: Annotated[int | None, typer.Option(help="Last checkpoints of a run to average.")] = None,
    checkpoint: Annotated[
        str, typer.Option(help="last (and those before it, averaged), best, or an update's number.")
    ] = "last",
    beam: Annotated[int | None, typer.Option(help="Beam that the target is set to, and that is compared.")] = None,
    sample: Annotated[Path | None, typer.Option(help="Sentences to compare; default: the run's validation data.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The sample's translations: also report both engines' BLEU.")] = None,
) -> None:
    """Average checkpoints, fold ω away, write weights, settings and tokenizer for another engine; then compare translations.

    Example: bathy export runs/toy --to ctranslate2 --type int8 --out models/toy-int8
    """
    from bathy import console
    from bathy.errors import ConfigError
    from bathy.nmt.export import export as run
    from bathy.nmt.lines import read_lines
    from bathy.nmt.text import Codec
    from bathy.nmt.translate import decode_settings

    if reference and not sample:
        raise ConfigError("--reference needs --sample: the sentences that it translates")
    folder = out or model.with_name(f"{model.name}-{to}" + ("" if kind == "float32" else f"-{kind}"))
    decode = decode_settings(model, average=average, beam=beam)
    lines = list(read_lines(sample)) if sample else None
    measure, rows = run(model, to, folder, decode, kind=kind, which=checkpoint, sample=lines)
    columns = ["beam", "sentences", "identical", "ties", "cut", "different", f"largest difference in {measure}"]
    table = [(row.beam, row.sentences, row.identical, row.ties, row.cut, row.different, f"{row.distance:.1e}") for row in rows]
    console.out.print(console.table(f"bathy and {to} {kind} on the same sentences", columns, table))
    if reference:
        _report(rows, Codec.load(folder), reference, to)
    if kind != "float32" or not sum(row.different for row in rows):
        console.out.print(f"wrote {folder}; its README.md shows how to run it")
        return
    console.err.print(f"[yellow]warning:[/] wrote {folder}, but some translations differ; look at the table before using it")


def _report(rows: list[Comparison], codec: Codec, reference: Path, to: str) -> None:
    from bathy import console
    from bathy.nmt.lines import read_texts
    from bathy.nmt.score import score

    for row in rows:
        systems = {"bathy float32": codec.decode(row.ours), to: codec.decode(row.theirs)}
        ours, theirs = score(systems, [read_texts(reference)], ["bleu"], samples=0)
        console.out.print(
            f"beam {row.beam}: BLEU {ours.score:.2f} by bathy float32, {theirs.score:.2f} by {to}; {ours.signature}"
        )
