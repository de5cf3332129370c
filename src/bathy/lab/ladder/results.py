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
    keys = dict.fromkeys((row["scheme"], row["layers"]) for row in rows)
    return [_rung(scheme, layers, [r for r in rows if (r["scheme"], r["layers"]) == (scheme, layers)], chance)
            for scheme, layers in keys]  # fmt: skip


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


def transfer(found: Sequence[Rung], scheme: str) -> float:
    """How far the best rate moves from the shallowest to the deepest rung that trains, as a factor; 1: it transfers."""
    own = sorted((rung for rung in found if rung.scheme == scheme and math.isfinite(rung.loss)), key=lambda rung: rung.layers)
    return own[-1].best_rate / own[0].best_rate if len(own) > 1 else math.nan
