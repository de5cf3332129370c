"""The post-mortem's page: the cause on top, the replays' losses as a picture, the table, what made it; and its finding."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from bathy.clinic.curves import curves
from bathy.clinic.examination import Examination
from bathy.clinic.findings import Evidence, Finding
from bathy.errors import DataError
from bathy.files import origin, write_text
from bathy.lab.postmortem.replay import folder_of
from bathy.lab.postmortem.run import FOLDER, Postmortem
from bathy.pages import Summary, render_page
from bathy.train.log import read_log
from bathy.train.recovered import recovery_findings

CAPTION = "Training loss of the run and of its replays, each with one change, from a checkpoint before the failure."


def write_page(run: Path, result: Postmortem) -> Path:
    """Write RUN/postmortem/report.html; returns its path."""
    path = run / FOLDER / "report.html"
    folders = {"the run": run} | folder_of(list(result.replays), run)
    rows = {name: read_log(folder / "metrics.jsonl") for name, folder in folders.items()}
    chart = curves(rows, {"nll": "training loss, nats per token"}, height=280) if result.replays else None
    charts = {"curves": chart} if chart is not None else {}
    page = render_page(
        "bathy.lab.postmortem", "report.html", charts, run=run.name, result=result, summary=summary(result),
        figures=dict.fromkeys(charts, CAPTION), origin=origin(),
    )  # fmt: skip
    write_text(path, page)
    return path


def summary(result: Postmortem) -> Summary:
    """The cause, the last good update, and what to do."""
    what = result.verdict.text[:1].upper() + result.verdict.text[1:]
    if not result.failure:
        return Summary("healthy", f"{what}.", badge="no failure")
    verdict, since = result.verdict, f"after update {result.failure.onset}, the last good one"
    tone, badge = ("serious", "cause") if verdict.cause else ("warning", "no cause found")
    return Summary(tone, f"{what}.", since, f"{verdict.advice}." if verdict.advice else "", badge)


def known_findings(run: Path, label: str) -> tuple[Finding, ...]:
    """What is known of a run besides its readings: its post-mortem, and what it recovered from."""
    return (*finding_of(run, label), *recovery_findings(run, label))


def finding_of(run: Path, label: str) -> tuple[Finding, ...]:
    """What the post-mortem of a run found, for the clinic's report; nothing where there was none, or no failure."""
    path = run / FOLDER / "postmortem.json"
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        failure, verdict, replays = found["failure"], found["verdict"], found["replays"]
        evidence = tuple(
            Evidence(
                f"loss of the replay {'without a change' if name == 'control' else f'with {name}'} at update {one['end']}",
                math.nan if one["loss"] is None else one["loss"],
                "it fails" if one["failed"] else "it trains",
            )
            for name, one in replays.items()
        )
        moved = f" In the unchanged replay, {found['moved_first']}." if found["moved_first"] else ""
        return (
            Finding(
                "postmortem", "serious" if verdict["cause"] else "warning", f"post-mortem: {verdict['text']}", evidence,
                f"How it showed: {failure['why']}; the last good update was {failure['onset']}.{moved}",
                f"{verdict['advice']}.", label, failure["found"],
            ),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no post-mortem ({error}); run `bathy postmortem {run}` again") from error


def into_clinic(run: Path) -> Path | None:
    """Draw RUN/clinic/report.html again with the post-mortem's finding; nothing where `bathy clinic` was not run yet."""
    rows, report = run / "clinic" / "readings.jsonl", run / "clinic" / "report.html"
    if not rows.exists():
        return None
    replace(Examination.load(rows), known=known_findings(run, run.name)).save(report)
    return report
