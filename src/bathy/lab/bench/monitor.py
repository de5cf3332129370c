"""What the live monitor costs a training step, and how long before the loss it warns.

Five runs that fail stand beside five that train, each pair with the same data. The loss shows the failure at the first update
from which its mean over ten updates stays 0.15 nats above its healthy twin's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import bathy
from bathy import console
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.copying import Trial, inputs, objective, sentences, train

PAIRS: list[tuple[Trial, Trial]] = [
    (Trial("post_ln", "post_ln", (10, 10)), Trial("admin", "admin", (10, 10))),
    (Trial("post_ln", "pre_ln", (14, 4)), Trial("pre_ln", "pre_ln", (14, 4))),
    (Trial("admin", "admin", (8, 8), lr=1e-2, seed=1), Trial("admin", "admin", (8, 8), seed=1)),
    (Trial("pre_ln", "pre_ln", (8, 8), lr=3e-2, seed=1), Trial("pre_ln", "pre_ln", (8, 8), seed=1)),
    (Trial("post_ln", "post_ln", (0, 24)), Trial("admin", "admin", (0, 24))),
]
"""(a run that fails, its healthy twin)."""
BEHIND = 0.15
"""Nats above the twin at which the loss shows a failure."""
SPAN = 10
"""Updates over which losses are averaged."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Cost at k = 50, then the warnings of every run."""
    cost = _cost(rounds=2 if quick else 5)
    steps = 120 if quick else 200
    rows: list[tuple[Any, ...]] = []
    for bad, good in console.track(PAIRS[:2] if quick else PAIRS, "runs that fail and their twins"):
        (failing, _, warned), (healthy, _, quiet) = train(bad, steps), train(good, steps)
        shows = first_behind(failing, healthy)
        rows.append((bad.name, _first(warned), shows or "-", failing[-1], ", ".join(f.name for f in warned.findings)))
        rows.append((good.name, _first(quiet), "-", healthy[-1], ", ".join(f.name for f in quiet.findings)))
    columns = ["run", "warned at", "loss shows it at", "last loss", "warnings"]
    console.out.print(console.table("five failing runs, each above its healthy twin", columns, rows))
    return {"cost": cost, "runs": [dict(zip(columns, row, strict=True)) for row in rows]}


def first_behind(failing: list[float], healthy: list[float]) -> int | None:
    """The first update from which the failing run's mean loss stays BEHIND above its twin's."""
    gaps = [sum(failing[i - SPAN : i]) / SPAN - sum(healthy[i - SPAN : i]) / SPAN for i in range(SPAN, len(failing) + 1)]
    behind = [not gap <= BEHIND for gap in gaps]
    if not behind[-1]:
        return None
    return SPAN + max((i + 1 for i, now in enumerate(behind) if not now), default=0)


def _first(monitor: bathy.Monitor) -> int | str:
    return min((finding.step for finding in monitor.findings), default="-")


def _cost(rounds: int, every: int = 50) -> dict[str, float]:
    """Seconds of 50 updates with and without the monitor, interleaved; one of the 50 is sampled, as in a long run."""
    trial = Trial("admin", "admin", (4, 4), width=128)
    model = trial.model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    batches = sentences(0, rows=32, length=24)

    def updates() -> None:
        for _ in range(every):
            batch = next(batches)
            objective(batch[2])(model(*inputs(model, batch)), None).backward()
            optimizer.step()
            optimizer.zero_grad()
            if watch:
                watch.step()

    watch: bathy.Monitor | None = None

    def watched() -> None:
        nonlocal watch
        with bathy.Monitor(model, optimizer=optimizer, every=every, start=every) as watch:
            updates()
        watch = None

    seconds = interleaved({"plain": updates, "monitored": watched}, rounds)
    middle, low, high = ratio(seconds["monitored"], seconds["plain"])
    row = (f"every {every}", 100 * (middle - 1), 100 * (low - 1), 100 * (high - 1))
    console.out.print(console.table("cost of the monitor, % of a step", ["sampled", "median", "low", "high"], [row]))
    return {"percent": row[1], "low": row[2], "high": row[3]}
