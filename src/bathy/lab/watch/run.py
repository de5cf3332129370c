"""One run as it is followed: its rows, its monitor's samples, its warnings, and what it says of itself."""

from __future__ import annotations

import math
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from bathy.clinic.diagnosis import KEPT, new_findings
from bathy.clinic.findings import Finding
from bathy.clinic.readings import Reading, from_row
from bathy.lab.watch.tail import Tail
from bathy.train.view import FIELDS, clock

QUIET = 120.0
"""Seconds without a new row after which a run that has not ended is said to be silent."""
MOST_SAMPLES = 60
"""Samples of the monitor that are held; of more, every second one in the middle goes."""
LABELS = {"source_gap": ("source gap", ".3f"), "bleu": ("BLEU", ".1f"), "bits_per_byte": ("bits per byte", ".3f")}
Rows = list[dict[str, Any]]


class Run:
    """A run's folder, read as far as it has been written."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.rows: Rows = []
        self.samples: list[list[Reading]] = []
        self.findings: list[Finding] = []
        self._metrics, self._readings = Tail(folder / "metrics.jsonl"), Tail(folder / "readings.jsonl")

    def look(self) -> None:
        """Take up what has been written since the last look."""
        rows, again = self._metrics.new()
        self.rows = ([] if again else self.rows) + [row for row in rows if isinstance(row.get("step"), int)]
        rows, again = self._readings.new()
        if again:
            self.samples, self.findings = [], []
        self._take([reading for row in rows if (reading := from_row(row)) is not None])

    def _take(self, readings: list[Reading]) -> None:
        """The readings as samples of one update each; warnings as the monitor gave them."""
        for reading in readings:
            row = replace(reading, model=self.name)
            if not self.samples or self.samples[-1][0].step != row.step:
                self._warn()
                self.samples.append([])
                if len(self.samples) > MOST_SAMPLES:
                    self.samples[1:-KEPT] = self.samples[1:-KEPT:2]
            self.samples[-1].append(row)
        if readings:
            self._warn()

    def _warn(self) -> None:
        self.findings += new_findings(self.samples, self.findings)

    @property
    def steps(self) -> int:
        """Updates in the whole run; 0 where its config does not say."""
        try:
            config = tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))
            return int(config["train"]["steps"])
        except (OSError, ValueError, KeyError, TypeError):  # not there yet, half written, or a config of another kind
            return 0

    def latest(self, key: str) -> Any:
        """The newest value of a metric; nothing where there is none."""
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)

    @property
    def step(self) -> int:
        """The last update that was logged."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def stopped(self) -> str:
        """Why divergence detection ended the run; empty where it did not, or where the run resumed since."""
        last = self.rows[-1] if self.rows else {}
        return str(last.get("stopped") or "")

    @property
    def state(self) -> str:
        """waiting, training, silent, finished or stopped."""
        if not self.rows:
            return "waiting"
        if self.stopped:
            return "stopped"
        if (self.steps and self.step >= self.steps) or "best_weights" in self.rows[-1]:
            return "finished"
        return "silent" if self._age() > QUIET else "training"

    def _age(self) -> float:
        try:
            return time.time() - self._metrics.path.stat().st_mtime
        except OSError:
            return 0.0

    @property
    def tone(self) -> str:
        """How bad it is: as a finding's severity."""
        found = {finding.severity for finding in self.findings}
        if self.stopped or "serious" in found:
            return "serious"
        return "warning" if "warning" in found or self.state == "silent" else "healthy" if self.rows else "note"

    def facts(self) -> list[tuple[str, str]]:
        """The newest value of each metric, in words."""
        found = []
        for key, (label, form) in (FIELDS | LABELS).items():
            value = self.latest(key)
            if isinstance(value, int | float) and math.isfinite(value) and not (key == "eta" and self.state == "finished"):
                found.append((label, clock(value) if key == "eta" else format(value, form)))
        return found

    def shown(self) -> list[tuple[int, str]]:
        """The newest samples of text, or translations, with their updates: the last first."""
        texts = [(row["step"], text) for row in reversed(self.rows) if (text := _text(row))]
        return texts[:3]


def _text(row: dict[str, Any]) -> str:
    """What a validation shows a person: a sample, or translations."""
    if isinstance(row.get("sample"), str):
        return str(row["sample"]).replace(" ↵ ", "\n")
    pairs = row.get("translations")
    return "\n".join(map(str, pairs)) if isinstance(pairs, list) else ""
