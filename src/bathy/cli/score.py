"""`bathy score`: how good translations are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bathy.cli.options import output_file, refuse_unused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bathy.tasks.translation.score import Score


def score(
    context: typer.Context,
    hypotheses: Annotated[
        list[Path],
        typer.Argument(
            help="Translations: text, .json or .jsonl; further ones are compared with the first. With --text: runs or models."
        ),
    ],
    reference: Annotated[
        list[Path] | None, typer.Option("--reference", "-r", help="Reference translation; may be given several times.")
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Files or folders of text whose loss under language models is wanted.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", "-m", help="bleu, chrf, ter, or tokenised: the paper's BLEU on Moses tokens. Default: all four."
        ),
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the text, for Moses tokens.")] = "en",
    lowercase: Annotated[bool, typer.Option(help="Compare without regard to case.")] = False,
    samples: Annotated[int, typer.Option(min=0, help="Bootstrap samples for intervals and p; 0: none.")] = 1000,
    out: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also write the scores, and what made them, as JSON.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score translations against references, with sacreBLEU's signatures; several systems by paired bootstrap.

    With --text: loss, perplexity and bits per byte of a text under language models.

    Example: bathy score base.txt admin.txt --reference test.en --out score.json

    Example: bathy score runs/lm_stdlib_24l --text README.md
    """
    from bathy.errors import ConfigError
    from bathy.files import check_output, origin

    if bool(reference) == bool(text):
        raise ConfigError("give --reference, to score translations, or --text, to score language models on it")
    check_output(out)
    if text:
        refuse_unused(context, ["metric", "language", "lowercase", "samples"], "language models, scored with --text")
        _language(hypotheses, text, out, json)
        return
    reference = reference or []
    from bathy.tasks.translation.score import METRICS, as_rows, score_files

    scores = score_files(
        hypotheses, reference, metrics=metric or list(METRICS), language=language, lowercase=lowercase, samples=samples
    )
    value = {**origin(), "references": [str(path) for path in reference], "scores": as_rows(scores)}
    if not _delivered(value, out, json):
        _show(scores)


def _show(scores: Sequence[Score]) -> None:
    """A table of all systems and metrics, and what each metric is."""
    from bathy import console

    rows = [
        (
            one.system,
            one.metric,
            f"{one.score:.2f}",
            f"± {one.half_width:.2f}" if one.half_width is not None else "–",
            f"{one.p:.4f}" if one.p is not None else "–",
        )
        for one in scores
    ]
    console.out.print(console.table("scores", ["system", "metric", "score", "95 %", "p against the first"], rows))
    for name, signature in {one.metric: one.signature for one in scores}.items():
        console.out.print(f"{name}: {signature}")


def _delivered(value: dict[str, Any], out: Path | None, json: bool) -> bool:
    """Write the scores to a file if one is given; whether they were also printed as JSON, so that no table is wanted."""
    from json import dumps

    from bathy.files import write_json

    if out:
        write_json(out, value)
    if json:
        typer.echo(dumps(value, indent=2, ensure_ascii=False))
    return json


def _language(runs: list[Path], texts: list[Path], out: Path | None, json: bool) -> None:
    """The texts' loss under each run's model."""
    from dataclasses import asdict

    from bathy import console
    from bathy.files import origin
    from bathy.tasks.language.score import score_run
    from bathy.tasks.language.text import documents

    found = {str(run): score_run(run, (text for path in texts for text in documents(path))) for run in runs}
    value = {**origin(), "texts": [str(path) for path in texts], "scores": {name: asdict(one) for name, one in found.items()}}
    if _delivered(value, out, json):
        return
    columns = ["model", "tokens", "bytes", "loss", "perplexity", "bits per byte", "accuracy", "unknown"]
    rows = [[name, *("–" if cell is None else cell for cell in asdict(one).values())] for name, one in found.items()]
    console.out.print(console.table(f"{', '.join(map(str, texts))}", columns, rows))
