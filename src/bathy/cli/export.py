"""`bathy export`: a model that other engines run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bathy.cli.options import output_folder, refuse_unused

if TYPE_CHECKING:
    from bathy.tasks.translation.export.compare import Comparison
    from bathy.tasks.translation.text import Codec


def export(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="Run, checkpoint or model folder.")],
    to: Annotated[
        str,
        typer.Option(
            help="bathy, marian (a Hugging Face folder) ctranslate2 or argos; language: bathy, huggingface or its class."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(callback=output_folder, help="Folder to write; default: beside the run, named after the target."),
    ] = None,
    kind: Annotated[str, typer.Option("--type", help="translation: float32, or int8 for ctranslate2 and argos.")] = "float32",
    average: Annotated[float | None, typer.Option(help="Last checkpoints to average: a number, or a share of the run.")] = None,
    checkpoint: Annotated[
        str, typer.Option(help="last (and those before it, averaged), best, or an update's number.")
    ] = "last",
    beam: Annotated[int | None, typer.Option(help="translation: beam that the target is set to, and that is compared.")] = None,
    sample: Annotated[
        Path | None, typer.Option(help="translation: sentences to compare; default: the run's validation data.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The sample's translations: also report both engines' BLEU.")] = None,
) -> None:
    """Average checkpoints, fold ω away, write weights, settings and tokenizer for another engine; then compare what both say.

    Example: bathy export runs/toy --to ctranslate2 --type int8 --out models/toy-int8

    Example: bathy export runs/lm_stdlib_24l --to huggingface
    """
    from bathy import console
    from bathy.errors import ConfigError
    from bathy.tasks import kind_of_folder
    from bathy.tasks.models import home

    if kind_of_folder(home(model)) == "language":
        refuse_unused(context, ["kind", "beam", "sample", "reference"], "the export of a language model")
        _language(model, to, out, average or 1, checkpoint)
        return
    from bathy.tasks.lines import read_lines
    from bathy.tasks.translation.export import export as run
    from bathy.tasks.translation.text import Codec
    from bathy.tasks.translation.translate import decode_settings

    if reference and not sample:
        raise ConfigError("--reference needs --sample: the sentences that it translates")
    folder = output_folder(out or model.with_name(f"{model.name}-{to}" + ("" if kind == "float32" else f"-{kind}")))
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
    from bathy.tasks.lines import read_texts
    from bathy.tasks.translation.score import score

    for row in rows:
        systems = {"bathy float32": codec.decode(row.ours), to: codec.decode(row.theirs)}
        ours, theirs = score(systems, [read_texts(reference)], ["bleu"], samples=0)
        console.out.print(
            f"beam {row.beam}: BLEU {ours.score:.2f} by bathy float32, {theirs.score:.2f} by {to}; {ours.signature}"
        )


def _language(model: Path, to: str, out: Path | None, average: float, checkpoint: str) -> None:
    """The same for a language model."""
    from bathy import console
    from bathy.tasks.language.export import export as run

    folder = output_folder(out or model.with_name(f"{model.name}-{to}"))
    name, found = run(model, to, folder, average, checkpoint)
    columns = ["sequences", "identical", "ties", "different", "largest difference in logits"]
    row = (found.sequences, found.identical, found.ties, found.different, f"{found.distance:.1e}")
    console.out.print(console.table(f"bathy and {name} on the same text", columns, [row]))
    if found.different:
        console.warn(f"wrote {folder}, but some sequences differ; look at the table before using it")
        return
    console.out.print(f"wrote {folder} as {name}; its README.md shows how to run it")
