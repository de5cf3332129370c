"""`bathy verify`: check a folder whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    path: Annotated[Path, typer.Argument(help="Run, checkpoint, model, data or corpus folder.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired without losing anything intact.")
    ] = False,
) -> None:
    """Check every file of a folder: checksums, shapes, vocabulary, finite weights, a config that loads.

    Prints what is wrong and the way out; exits with code 1 if anything is wrong, and stays so after --repair.

    Example: bathy verify runs/toy --repair
    """
    from bathy.console import out
    from bathy.errors import redact
    from bathy.tasks.verify import repair as repair_folder
    from bathy.tasks.verify import verify as check

    report = check(path)
    for fault in report.faults:
        out.print(redact(str(fault)), markup=False)
    if report.faults and repair:
        for done in repair_folder(report):
            out.print(redact(done), markup=False)
        report = check(path)
    number = len(report.faults)
    what = "no problems found" if not number else f"{number} {'problem' if number == 1 else 'problems'} found"
    out.print(f"{path}: {report.kind} folder, {what}", markup=False)
    if report.faults:
        raise typer.Exit(1)
