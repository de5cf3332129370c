"""The committed grid: what each run's rehearsal read, and what came of the run."""

from __future__ import annotations

import gzip
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

Part = Literal["development", "held out", "larger"]


@dataclass(frozen=True)
class Case:
    """One run of the grid that was not too slow to tell: what was read before it, and what came of it."""

    part: Part
    family: str
    architecture: str
    """native, torch or hugging_face."""
    kind: str
    design: str
    lr: float
    warmup: float
    outcome: Outcome
    points: list[Point]

    @property
    def fails(self) -> bool:
        """Whether it failed."""
        return self.outcome == "fails"

    @property
    def decides(self) -> bool:
        """Whether it says something of odds: a run that trails a lower rate does not."""
        return self.outcome != "trails"

    def features(self, updates: int) -> Features:
        """What a forecast rests on after that many updates."""
        return features(self.points, updates, self.warmup)


def settled(rows: Iterable[dict[str, Any]]) -> dict[str, Outcome]:
    """The outcome of every run by key, each design's runs taken together."""
    designs: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows:
        own_settings = [row[name] for name in ("design", "steps", "optimizer", "warmup", "beta2")]
        designs.setdefault(json.dumps(own_settings), {})[row["lr"]] = row
    found: dict[str, Outcome] = {}
    for own in designs.values():
        outcomes = settle({rate: ending_of(row) for rate, row in own.items()})
        found |= {own[rate]["key"]: outcome for rate, outcome in outcomes.items()}
    return found


def compact(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is committed of the runs: settings, outcome, held-out losses and the points of the rehearsal."""
    rows = list(rows)
    outcomes = settled(rows)
    names = ("key", "design", "lr", "warmup", "beta2", "optimizer", "steps", "ending", "seconds")
    return [{**{name: row[name] for name in names}, "outcome": outcomes[row["key"]], "points": row["points"]} for row in rows]


def part_of(row: dict[str, Any]) -> Part:
    """To which part of the grid a run belongs."""
    if row["steps"] >= LONG:
        return "larger"
    return "held out" if row["design"]["family"] in held_out() else "development"


def cases_of(rows: Iterable[dict[str, Any]], *parts: Part) -> list[Case]:
    """The runs of these parts (of all, where none is named) that were not too slow to tell."""
    return [
        Case(
            part=part_of(row),
            family=(design := Design(**row["design"])).family,
            architecture=architecture(design.family),
            kind=design.kind,
            design=json.dumps([asdict(design), row["steps"]]),
            lr=row["lr"],
            warmup=row["warmup"] + (RECTIFIED / (1 - row["beta2"]) if row["optimizer"] == "RAdam" else 0.0),
            outcome=row["outcome"],
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
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def save(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write runs, one a line, packed."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
