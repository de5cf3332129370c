"""The post-mortem's page: the cause on top, the replays' losses as a picture, the table, what made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bathy.clinic.report import render_page
from bathy.errors import require
from bathy.files import origin, write_text
from bathy.lab.postmortem.run import FOLDER, Postmortem
from bathy.train.log import read_log


def write_page(run: Path, result: Postmortem) -> Path:
    """Write RUN/postmortem/report.html; returns its path."""
    path = run / FOLDER / "report.html"
    charts = {"curves": curves(run, result)} if result.replays else {}
    write_text(path, render_page("bathy.lab.postmortem", charts, run=run.name, result=result, origin=origin()))
    return path


def curves(run: Path, result: Postmortem) -> Any:
    """Loss of the run and of every replay over the updates."""
    alt = require("altair", "clinic")
    folders = {"the run": run} | {name: run / FOLDER / name.replace(" ", "_") for name in result.replays}
    points = [
        {"replay": name, "update": row["step"], "loss": row["nll"]}
        for name, folder in folders.items()
        for row in read_log(folder / "metrics.jsonl")
        if row.get("nll") is not None
    ]
    chart = alt.Chart(alt.Data(values=points), width=640, height=280).mark_line()
    return chart.encode(
        x=alt.X("update:Q"),
        y=alt.Y("loss:Q", title="loss, nats per token", scale=alt.Scale(zero=False)),
        color=alt.Color("replay:N", title=None, sort=list(folders)),
        strokeDash=alt.StrokeDash("replay:N", title=None, sort=list(folders)),
        tooltip=["replay:N", "update:Q", "loss:Q"],
    )
