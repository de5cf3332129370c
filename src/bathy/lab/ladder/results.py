"""What a ladder shows: for each scheme, the best loss, the largest rate that trains and the best rate, against depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any

TRAINS = 0.75
"""A run trains if divergence detection did not stop it and its validation loss is at most this share of the loss of guessing,
the unigram entropy: fixed before any ladder was run. At bigram frequencies alone a model of English characters is at 0.74."""

FAILED = "failed"
"""What JSON has for a loss that is infinite, where null is one that was not measured."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """One scheme at one depth."""

    scheme: str
    layers: int
    loss: float
    """Validation loss at the best rate, mean over its seeds; infinite where no rate trains."""
    deviation: float
    """Over the seeds."""
    seeds: int
    best_rate: float
    largest_rate: float
    """Largest rate at which every seed trains; 0: none."""
    trained: int
    runs: int
    hours: float
    """Of all its runs, on one core."""


def trains(row: Row, chance: float) -> bool:
    """Whether a run counts as trained."""
    loss = row["loss"]
    return row["state"] == "trained" and loss is not None and math.isfinite(loss) and loss <= TRAINS * chance


def rungs(rows: Sequence[Row], chance: float) -> list[Rung]:
    """One rung for each scheme and depth, from flat rows of layers, scheme, lr, seed, state, loss and seconds."""
    own: dict[tuple[str, int], list[Row]] = {}
    for row in _ended(rows):
        own.setdefault((row["scheme"], row["layers"]), []).append(row)
    return [_rung(scheme, layers, found, chance) for (scheme, layers), found in own.items()]


def _ended(rows: Sequence[Row]) -> list[Row]:
    """Without runs that wait, or are being trained."""
    return [row for row in rows if row["state"] in ("trained", "stopped")]


def _rung(scheme: str, layers: int, rows: Sequence[Row], chance: float) -> Rung:
    by_rate: dict[float, list[Row]] = {}
    for row in rows:
        by_rate.setdefault(row["lr"], []).append(row)
    whole = {rate: found for rate, found in by_rate.items() if all(trains(row, chance) for row in found)}
    means = {rate: mean(row["loss"] for row in found) for rate, found in whole.items()}
    best = min(means, key=lambda rate: means[rate], default=math.nan)
    losses = [row["loss"] for row in whole.get(best, [])]
    return Rung(
        scheme=scheme,
        layers=layers,
        loss=means.get(best, math.inf),
        deviation=pstdev(losses) * math.sqrt(len(losses) / (len(losses) - 1)) if len(losses) > 1 else 0.0,
        seeds=len(losses),
        best_rate=best,
        largest_rate=max(whole, default=0.0),
        trained=sum(trains(row, chance) for row in rows),
        runs=len(rows),
        hours=sum(row.get("seconds") or 0.0 for row in rows) / 3600,
    )


@dataclass(frozen=True)
class Moved:
    """How far a scheme's best rate moves from its shallowest rung that trains to its deepest."""

    scheme: str
    shallow: int
    deep: int
    """Layers of the two."""
    shallow_rate: float
    deep_rate: float
    lost: float
    """Nats that the deep rung gives up with the shallow one's best rate; infinite: it does not train with it; NaN: not run."""

    @property
    def factor(self) -> float:
        """1: the rate transfers."""
        return self.deep_rate / self.shallow_rate


def transfers(found: Sequence[Rung], rows: Sequence[Row], chance: float) -> list[Moved]:
    """One for each scheme that trains at two depths or more."""
    result = []
    for scheme in dict.fromkeys(rung.scheme for rung in found):
        own = sorted((r for r in found if r.scheme == scheme and math.isfinite(r.loss)), key=lambda r: r.layers)
        if len(own) > 1:
            first, last = own[0], own[-1]
            same = [r for r in _ended(rows) if (r["scheme"], r["layers"], r["lr"]) == (scheme, last.layers, first.best_rate)]
            whole = all(trains(row, chance) for row in same)
            lost = (mean(row["loss"] for row in same) - last.loss if whole else math.inf) if same else math.nan
            result.append(Moved(scheme, first.layers, last.layers, first.best_rate, last.best_rate, lost))
    return result


def read_rungs(rows: Sequence[Row]) -> list[Rung]:
    """Rungs as JSON holds them, where null is a loss that is infinite or a rate that is not a number."""
    return [Rung(**row | {"loss": _or(row["loss"], math.inf), "best_rate": _or(row["best_rate"], math.nan)}) for row in rows]


def read_transfers(rows: Sequence[Row]) -> list[Moved]:
    """Transfers as JSON holds them: `lost` as a number, null where it was not run, `failed` where the rate does not train."""
    return [Moved(**row | {"lost": math.inf if row["lost"] == FAILED else _or(row["lost"], math.nan)}) for row in rows]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
