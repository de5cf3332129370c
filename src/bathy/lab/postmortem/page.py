"""The post-mortem's page: the cause on top, the replays' losses as a picture, the table, what made it."""

from __future__ import annotations

from pathlib import Path

from bathy.clinic.curves import curves
from bathy.files import origin, write_text
from bathy.lab.postmortem.replay import folder_of
from bathy.lab.postmortem.run import FOLDER, Postmortem
from bathy.pages import Summary, render_page
from bathy.train.log import read_log

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
