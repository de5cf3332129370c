"""The committed grid: what each run's rehearsal read, and what came of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bathy.clinic.odds import Features, features
from bathy.clinic.rehearsal import RECTIFIED, Point
from bathy.lab.bench.predict.grid import LONG, held_out
from bathy.lab.bench.predict.models import Design
from bathy.lab.bench.predict.outcome import Outcome, settle
from bathy.lab.bench.predict.runs import ending_of

Part = Literal["development", "held out", "border", "larger"]
"""Border: runs of an earlier grid, whose rates were sought by bisection next to the border between training and failing.
Chosen by their outcomes and rehearsed without gradients, they say nothing of odds; warnings are judged on them apart."""


@dataclass(frozen=True)
class Case:
    """One run of the grid that decided something: what was read before it, and whether it failed."""

    part: Part
    family: str
    architecture: str
    """native, torch or hugging_face."""
    kind: str
    design: str
    lr: float
    warmup: float
    fails: bool
    points: list[Point]

    def features(self, updates: int) -> Features:
        """What a forecast rests on after that many updates."""
        return features(self.points, updates, self.warmup)


def settled(rows: Iterable[dict[str, Any]]) -> dict[str, Outcome]:
    """The outcome of every run by key, each design's runs taken together."""
    designs: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows:
        own_settings = [row[name] for name in ("design", "steps", "optimizer", "warmup", "beta2")]
        designs.setdefault(json.dumps([*own_settings, row.get("border", False)]), {})[row["lr"]] = row
    found: dict[str, Outcome] = {}
    for own in designs.values():
        outcomes = settle({rate: ending_of(row) for rate, row in own.items()})
        found |= {own[rate]["key"]: outcome for rate, outcome in outcomes.items()}
    return found


def compact(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is committed of the runs: settings, outcome, held-out losses and the points of the rehearsal."""
    rows = [row for row in rows if part_of(row) != "border"]
    outcomes = settled(rows)
    names = ("key", "design", "lr", "warmup", "beta2", "optimizer", "steps", "ending", "seconds")
    return [{**{name: row[name] for name in names}, "outcome": outcomes[row["key"]], "points": row["points"]} for row in rows]


def part_of(row: dict[str, Any]) -> Part:
    """To which part of the grid a run belongs."""
    if row.get("border"):
        return "border"
    if row["steps"] >= LONG:
        return "larger"
    return "held out" if row["design"]["family"] in held_out() else "development"


def cases_of(rows: Iterable[dict[str, Any]], *parts: Part) -> list[Case]:
    """The runs of these parts (of all, where none is named) that train or fail."""
    return [
        Case(
            part=part_of(row),
            family=(design := Design(**row["design"])).family,
            architecture=architecture(design.family),
            kind=design.kind,
            design=json.dumps([asdict(design), row["steps"]]),
            lr=row["lr"],
            warmup=row["warmup"] + (RECTIFIED / (1 - row["beta2"]) if row["optimizer"] == "RAdam" else 0.0),
            fails=row["outcome"] == "fails",
            points=[_point(point) for point in row["points"]],
        )
        for row in rows
        if row["outcome"] != "slow" and (not parts or part_of(row) in parts)
    ]


def _point(values: dict[str, Any]) -> Point:
    """A recorded point; null is a number that was not finite, or the gradient of the last point, which no update follows."""
    stacks = {name: [math.nan if v is None else v for v in own] for name, own in values["stacks"].items()}
    numbers = {name: math.nan if values[name] is None else values[name] for name in ("loss", "gradient")}
    return Point(**values | numbers | {"stacks": stacks})


def architecture(family: str) -> str:
    """Who built the model."""
    return "torch" if family.startswith("torch") else "hugging_face" if family in ("gpt2", "bert", "llama") else "native"


def load(path: Path) -> list[dict[str, Any]]:
    """The committed runs, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def save(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write runs, one a line."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
