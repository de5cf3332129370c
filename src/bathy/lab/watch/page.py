"""The page of `bathy watch`: the template, charts and summary of every other page, rendered again as runs go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from bathy.clinic.curves import curves
from bathy.clinic.plots import FIGURES
from bathy.errors import ConfigError
from bathy.files import origin
from bathy.lab.watch.run import Run
from bathy.pages import Summary, environment, render_page, specs

PANELS = {
    "nll": "training loss", "valid_loss": "validation loss", "lr": "learning rate", "gradient_norm": "gradient norm",
    "source_gap": "source gap", "bits_per_byte": "bits per byte",
}  # fmt: skip
CAPTIONS = {
    "curves": "Metrics over the updates, one line per run.",
    "history": "What the monitor saw over the updates: loss, Σβ² of each stack, mean relative update.",
    "scales": "Branch share β² and variance of the stream at each sub-layer, at the monitor's last sample.",
}
MARKS = ("metrics.jsonl", "config.toml")
"""A folder with one of these is a run."""


class Watch:
    """Runs that are looked at together; folders of runs are searched again at every look."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"{folder} is a file; `bathy watch` takes run folders, or folders that hold runs")
        self.folders = list(folders)
        self.runs: dict[Path, Run] = {}
        self._lock = Lock()

    def look(self) -> list[Run]:
        """Every run, as far as it has come."""
        for folder in self._found():
            if folder not in self.runs:
                names = {run.name for run in self.runs.values()}
                self.runs[folder] = Run(folder, str(folder) if folder.name in names or not folder.name else folder.name)
        for run in self.runs.values():
            run.look()
        return list(self.runs.values())

    def _found(self) -> list[Path]:
        """Run folders: those named, and those inside a named folder that is no run itself."""
        found: list[Path] = []
        for folder in self.folders:
            inside = [] if any((folder / mark).exists() for mark in MARKS) else _inside(folder)
            found += inside or [folder]
        known = [folder for folder in found if folder not in self.folders or any((folder / mark).exists() for mark in MARKS)]
        return list(dict.fromkeys(known or found))

    def state(self) -> dict[str, Any]:
        """What changes on the page: its blocks as HTML, and its charts."""
        with self._lock:
            runs = self.look()
            charts = _charts(runs)
            parts = environment("bathy.lab.watch").get_template("blocks.html").module
            blocks = {
                "summary": parts.head(summary(runs)),
                "runs": parts.cards(runs),
                "figures": parts.pictures(_captions(charts)),
            }
            return {"blocks": {name: str(text) for name, text in blocks.items()}, "specs": specs(charts)}

    def page(self, live: bool) -> str:
        """The whole page; one that is not live is a report that stands alone."""
        with self._lock:
            runs = self.look()
            charts = _charts(runs)
            return render_page(
                "bathy.lab.watch", "report.html", charts, runs=runs, summary=summary(runs), figures=_captions(charts),
                live=live, origin=origin(),
            )  # fmt: skip


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and any((path / mark).exists() for mark in MARKS))
    except OSError:
        return []


def _charts(runs: Sequence[Run]) -> dict[str, Any]:
    readings = [row for run in runs for sample in run.samples for row in sample]
    charts = {"curves": curves({run.name: run.rows for run in runs}, PANELS)}
    charts |= {name: FIGURES[name](readings) for name in ("history", "scales")}
    return {name: chart for name, chart in charts.items() if chart is not None}


def _captions(charts: dict[str, Any]) -> dict[str, str]:
    return {name: CAPTIONS[name] for name in charts}


def summary(runs: Sequence[Run]) -> Summary:
    """The worst of the runs: what is wrong, since when, what to do."""
    for run in runs:
        if run.stopped:
            todo = f"bathy postmortem {run.folder} finds the cause; bathy clinic {run.folder} shows where it fails."
            return Summary("serious", f"{run.name} was stopped: {run.stopped}", f"update {run.step}", todo, badge="stopped")
    warned = [(run, finding) for run in runs for finding in run.findings if finding.severity in ("serious", "warning")]
    if warned:
        run, worst = min(warned, key=lambda pair: ("serious", "warning").index(pair[1].severity))
        more = f" (and {len(warned) - 1} more)" if len(warned) > 1 else ""
        what = f"{run.name}: {worst.title}{more}"
        return Summary(worst.severity, what, f"update {worst.step}", f"{worst.first}.", badge="warning")
    silent = [run.name for run in runs if run.state == "silent"]
    if silent:
        todo = "Run the same bathy train command again; it resumes where it stopped."
        return Summary("warning", f"No news from {', '.join(silent)}.", todo=todo, badge="silent")
    states = [run.state for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return Summary("healthy" if any(run.rows for run in runs) else "note", f"No problems found: {counts}.", badge="runs")
