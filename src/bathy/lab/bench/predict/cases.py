"""The committed grid: readings and outcomes of every run, and the rehearsals of every design at all rates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bathy.lab.bench.predict.fit import Case, architecture, left_out
from bathy.lab.bench.predict.grid import RATES
from bathy.lab.bench.predict.models import Design
from bathy.lab.bench.predict.outcome import Outcome, settle
from bathy.lab.bench.predict.runs import ending_of


def settled(rows: Iterable[dict[str, Any]]) -> dict[str, Outcome]:
    """The outcome of every run by key, each design's runs taken together."""
    designs: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        designs.setdefault(json.dumps([row["design"], row["steps"]]), {})[rate_of(row["lr"])] = row
    found: dict[str, Outcome] = {}
    for own in designs.values():
        outcomes = settle({rate: ending_of(row) for rate, row in own.items()})
        found |= {own[rate]["key"]: outcome for rate, outcome in outcomes.items()}
    return found


def rate_of(lr: float) -> int:
    """Which of RATES a rate is."""
    return min(range(len(RATES)), key=lambda i: abs(math.log(RATES[i] / lr)))


def compact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is committed of the runs: settings, outcome, held-out losses and readings of the rehearsal."""
    outcomes = settled(rows)
    return [
        {
            **{name: row[name] for name in ("key", "design", "lr", "warmup", "beta2", "optimizer", "steps", "ending")},
            "outcome": outcomes[row["key"]],
            "forecast": row["forecast"],
        }
        for row in rows
        if "forecast" in row
    ]


def cases_of(rows: Iterable[dict[str, Any]]) -> list[Case]:
    """The runs that decided something: they train or they fail.

    RAdam with β2 = 0.999 is left out: the warm-up that is built into it outlasts these runs, which never see its full rate.
    """
    return [
        Case(
            family=(design := Design(**row["design"])).family,
            architecture=architecture(design.family),
            kind=design.kind,
            design=json.dumps([asdict(design), row["steps"]]),
            lr=row["lr"],
            fails=row["outcome"] == "fails",
            features={int(updates): values for updates, values in row["forecast"].items()},
        )
        for row in rows
        if row["outcome"] != "slow" and not (row["optimizer"] == "RAdam" and row["beta2"] == 0.999)
    ]


def largest_rates(cases: list[Case], updates: int, names: list[str]) -> list[tuple[float, float, float]]:
    """(rate told, largest that trained, smallest that failed) of every design, by odds that have not seen its family.

    The rate told is where the probability of failing crosses a half, on a line in log rate and log odds through the design's
    own rehearsals.
    """
    chances = dict(zip(((c.design, c.lr) for c in cases), left_out(cases, updates, names, lambda c: c.family), strict=True))
    found = []
    for design in dict.fromkeys(case.design for case in cases):
        own = sorted((case for case in cases if case.design == design), key=lambda case: case.lr)
        trained = max((case.lr for case in own if not case.fails), default=0.0)
        failed = min((case.lr for case in own if case.fails and case.lr > trained), default=math.inf)
        if trained and len(own) > 1:
            found.append((crossing([(case.lr, chances[design, case.lr]) for case in own]), trained, failed))
    return found


def crossing(points: list[tuple[float, float]]) -> float:
    """The rate at which the probability crosses a half, on the straight line through (log rate, log odds)."""
    x = np.log([rate for rate, _ in points])
    y = np.array([math.log(p / (1 - p)) for _, p in ((rate, min(1 - 1e-6, max(1e-6, p))) for rate, p in points)])
    slope, offset = np.polyfit(x, y, 1) if len(points) > 1 else (1.0, 0.0)
    rate = -offset / slope if slope > 1e-3 else x[int(np.argmin(np.abs(y)))]
    return float(np.exp(np.clip(rate, x.min() - math.log(4), x.max() + math.log(4))))


def load(path: Path) -> dict[str, Any]:
    """The committed grid."""
    return dict(json.loads(path.read_text(encoding="utf-8")))
