"""`bathy clinic`: examine the checkpoints of runs, side by side, or any model that can be imported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bathy.cli.imported import FUNCTION, import_model
from bathy.cli.options import output_folder

if TYPE_CHECKING:
    from bathy.clinic.examination import Examination


def clinic(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; several stand side by side.")] = None,
    model: Annotated[str, typer.Option(help=f"{FUNCTION}; instead of runs.")] = "",
    checkpoints: Annotated[int, typer.Option(min=1, help="Checkpoints of each run, evenly spaced, the last among them.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Real tokens of the batch that are used at most.")] = 2048,
    exams: Annotated[str, typer.Option(help="Exams to run, with commas between; all when empty.")] = "",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the step whose output change is measured; else 1e-5.")
    ] = None,
    without: Annotated[str, typer.Option(help="Rules to switch off, with commas between; see docs/findings.md.")] = "",
    out: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for readings and report; else RUN/clinic, or clinic.")
    ] = None,
) -> None:
    """Examine checkpoints of runs, or any model: findings, figures and readings as one page.

    Example: bathy clinic runs/post runs/admin --out comparison
    """
    from bathy import console
    from bathy.clinic.exams import EXAMS
    from bathy.errors import ConfigError

    if bool(runs) == bool(model):
        raise ConfigError("bathy clinic examines run folders or --model package.module:function; give one of the two")
    settings = {"exams": exams.split(",") if exams else tuple(EXAMS), "tokens": tokens, "lr": lr}
    settings["without"] = without.split(",") if without else ()
    folder = output_folder(out or (runs[0] / "clinic" if runs else Path("clinic")))
    found = _model(model, settings) if model else _runs(runs or [], checkpoints, settings)
    found.save(folder / "readings.jsonl")
    found.save(folder / "report.html")
    rows = [
        (finding.severity, finding.model, finding.title, "; ".join(map(str, finding.evidence))) for finding in found.findings
    ]
    console.out.print(console.table("findings", ["severity", "model", "finding", "evidence"], rows))
    console.out.print(f"report: {folder / 'report.html'}")


def _model(name: str, settings: dict[str, Any]) -> Examination:
    """The examination of what an imported function returns."""
    from bathy.clinic.audit import audit
    from bathy.clinic.examination import examine
    from bathy.errors import BathyError

    model, batch, loss = import_model(name)
    label = name.partition(":")[2]
    found = examine(model, batch, loss, name=label, **settings)
    try:
        return replace(found, known=audit(model, batch).findings(label))
    except BathyError:  # a model can be examined that cannot be audited
        return found


def _runs(runs: list[Path], count: int, settings: dict[str, Any]) -> Examination:
    """The examinations of all runs, with what their monitors wrote."""
    from functools import reduce
    from operator import add

    names = [run.name for run in runs]
    labels = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return reduce(add, (_run(run, label, count, settings) for run, label in zip(runs, labels, strict=True)))


def _run(run: Path, label: str, count: int, settings: dict[str, Any]) -> Examination:
    """One run: its monitor's readings, `count` checkpoints, and the updates between them."""
    from bathy.clinic.examination import Examination, examine
    from bathy.clinic.exams import snapshot, updates
    from bathy.clinic.probe import examined
    from bathy.errors import CheckpointError
    from bathy.lab.postmortem.page import known_findings
    from bathy.tasks.models import load
    from bathy.train import checkpoint

    folders = checkpoint.checkpoints(run)
    if not folders:
        raise CheckpointError(f"{run} has no checkpoint to examine; `bathy train` writes them into RUN/checkpoints")
    spaced = sorted({round((i + 1) * len(folders) / count) - 1 for i in range(min(count, len(folders)))})
    batch, loss = _batch(run, settings["tokens"])
    readings, before, origin = _monitored(run, label), None, {}
    for step, folder in (folders[i] for i in spaced):
        model = load(folder)
        found = examine(model, batch, loss, name=label, step=step, **settings)
        with examined(model, batch, loss, label={"model": label, "step": step}) as subject:
            readings += found.readings + (updates(subject, before) if before else [])
            before, origin = snapshot(subject.sites), found.origin
    return Examination(readings, origin | {"run": str(run)}, tuple(settings["without"]), known_findings(run, label))


def _monitored(run: Path, label: str) -> list[Any]:
    """What the run's monitor wrote."""
    from bathy.clinic.readings import read

    path = run / "readings.jsonl"
    return [replace(row, model=label) for row in read(path)[0]] if path.exists() else []


def _batch(run: Path, tokens: int) -> tuple[Any, Any]:
    """The first batch of the run's validation data, and its loss."""
    from bathy.tasks import part, read_config

    config = read_config(run / "config.toml")
    return part(config.task.kind, "task").to_examine(config, tokens)
