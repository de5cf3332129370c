"""`bathy score`: how good translations are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    hypotheses: Annotated[
        list[Path], typer.Argument(help="Translations: text, .json or .jsonl; further ones are compared with the first.")
    ],
    reference: Annotated[
        list[Path], typer.Option("--reference", "-r", help="Reference translation; may be given several times.")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", "-m", help="bleu, chrf, ter, or tokenised: the paper's BLEU on Moses tokens. Default: all four."
        ),
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the text, for Moses tokens.")] = "en",
    lowercase: Annotated[bool, typer.Option(help="Compare without regard to case.")] = False,
    samples: Annotated[int, typer.Option(min=0, help="Bootstrap samples for intervals and p; 0: none.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Also write the scores, and what made them, as JSON.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score translations against references, with sacreBLEU's signatures; several systems by paired bootstrap.

    Example: bathy score base.txt admin.txt --reference test.en --out score.json
    """
    from json import dumps

    from bathy import console
    from bathy.files import origin, write_json
    from bathy.nmt.score import METRICS, as_rows, score_files

    scores = score_files(
        hypotheses, reference, metrics=metric or list(METRICS), language=language, lowercase=lowercase, samples=samples
    )
    value = {**origin(), "references": [str(path) for path in reference], "scores": as_rows(scores)}
    if out:
        write_json(out, value)
    if json:
        typer.echo(dumps(value, indent=2, ensure_ascii=False))
        return
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
