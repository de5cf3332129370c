"""`bathy postmortem`: why a run failed, by replaying it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def postmortem(
    run: Annotated[Path, typer.Argument(help="The folder of a run that failed.")],
    minutes: Annotated[
        float, typer.Option(help="Time for the replays; finished ones are kept, so that a second call resumes.")
    ] = 30.0,
) -> None:
    """Replay a failed run from before its failure with one change each, and say which change prevents it.

    Example: bathy postmortem runs/post_ln --minutes 20
    """
    from bathy import console
    from bathy.lab.postmortem.page import into_clinic, write_page
    from bathy.lab.postmortem.run import check_run
    from bathy.lab.postmortem.run import postmortem as examine_run

    check_run(run)
    result = examine_run(run, minutes)
    if result.failure is None:
        console.out.print(result.verdict.text)
        return
    rows = [
        (name, one.start, one.end, "fails" if one.failed else "trains", one.loss, one.parted or "–")
        for name, one in result.replays.items()
    ]
    columns = ["replay", "from", "to", "outcome", "last loss", "parts from the control at"]
    console.out.print(f"{result.failure.why}; last good update: {result.failure.onset}")
    console.out.print(console.table(f"replays of {run}", columns, rows))
    for name, why in result.left_out.items():
        console.out.print(f"not tried: {name}: {why}")
    if result.moved_first:
        console.out.print(f"what moved first in the unchanged replay: {result.moved_first}")
    if result.verdict.prevents:
        console.out.print(f"changes that prevent the failure: {', '.join(result.verdict.prevents)}")
    if result.note:
        console.out.print(result.note)
    console.out.print(f"cause: {result.verdict.text}. {result.verdict.advice}")
    console.out.print(f"report: {write_page(run, result)}")
    if report := into_clinic(run):
        console.out.print(f"the cause also stands in {report}")
