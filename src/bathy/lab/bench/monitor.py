"""What the live monitor costs a training step, and how often and how early it warns, against simple rules on the loss.

The runs are those of the forecast's grid (traces.json: losses, gradient norms and the monitor's samples of each). The loss
shows a failure at the update from which it stays at the level of guessing. Thresholds are also fitted on the other families.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

import bathy
from bathy import console
from bathy.clinic.diagnosis import KEPT, diagnose
from bathy.clinic.readings import Reading
from bathy.clinic.rules.collapse import ALIKE, SETTLED
from bathy.clinic.rules.stability import EARLY, GROWN, STRONG
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.copying import Trial, inputs, objective, sentences

Trace = dict[str, Any]
Warner = Callable[[Trace], int | None]
"""From a run to the update at which it is warned of."""
TRACES = Path(__file__).parent / "predict" / "traces.json"
NEAR = 0.1
"""Nats above guessing at the most, from where on a loss shows that it is stuck there."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Cost at k = 50, then every rule on every run."""
    cost = _cost(rounds=2 if quick else 5)
    traces = [trace for trace in load_traces() if trace["outcome"] != "slow"]
    fitted = fitted_elsewhere(traces)
    warners: dict[str, Warner] = {
        "Monitor as shipped": shipped,
        "Monitor, thresholds from other families": lambda trace: by_rule(trace, *fitted[trace["family"]]),
        "loss above its mean by 3 deviations": lambda trace: z_score(trace["losses"], 3.0),
        "loss above its mean by 6 deviations": lambda trace: z_score(trace["losses"], 6.0),
        "gradient norm above its mean by 6 deviations": lambda trace: z_score(trace["gradients"], 6.0),
    }
    rows = [judged(name, warner, traces) for name, warner in warners.items()]
    columns = ["rule", "failing runs warned", "healthy runs warned", "median updates before the loss shows it"]
    failing = sum(trace["outcome"] == "fails" for trace in traces)
    console.out.print(console.table(f"{failing} failing and {len(traces) - failing} healthy runs", columns, rows))
    return {"cost": cost, "rules": [dict(zip(columns, row, strict=True)) for row in rows], "runs": len(traces)}


def load_traces() -> list[Trace]:
    """The committed runs."""
    return list(json.loads(TRACES.read_text(encoding="utf-8")))


def judged(name: str, warner: Warner, traces: Sequence[Trace]) -> tuple[str, str, str, str]:
    """One row of the table."""
    bad = [trace for trace in traces if trace["outcome"] == "fails"]
    good = [trace for trace in traces if trace["outcome"] == "trains"]
    caught = [(trace, at) for trace in bad if (at := warner(trace)) is not None]
    false = sum(warner(trace) is not None for trace in good)
    leads = [shows - at for trace, at in caught if (shows := stuck_from(trace)) is not None]
    lead = f"{statistics.median(leads):.0f}" if leads else "–"
    return name, f"{len(caught)} of {len(bad)}", f"{false} of {len(good)}", lead


def stuck_from(trace: Trace) -> int | None:
    """The update at which the loss shows the failure: a tenth of the run in which it has come to guessing and stays there."""
    losses = [math.inf if loss is None else loss for loss in trace["losses"]]
    span = max(1, len(losses) // 10)
    for start in range(span, len(losses) - span + 1):
        before, after = statistics.fmean(losses[start - span : start]), statistics.fmean(losses[start : start + span])
        if after > trace["unigram"] - NEAR and before - after < NEAR:
            return start + span
    return len(losses)


def shipped(trace: Trace) -> int | None:
    """The first warning of the live rules, applied to the samples as the monitor does."""
    samples = [list(rows_of(sample)) for sample in trace["samples"]]
    for i, sample in enumerate(trace["samples"]):
        recent = samples[:1] + samples[1 : i + 1][-KEPT:] if i else samples[:1]
        if diagnose([row for rows in recent for row in rows], live=True):
            return int(sample["step"])
    return len(trace["losses"]) if None in trace["losses"] else None


def rows_of(sample: dict[str, Any]) -> Iterator[Reading]:
    """The rows that the live rules read: Σβ² and the lowest token variance of each stack."""
    for stack, (total, lowest) in sample["stacks"].items():
        place = {"step": sample["step"], "stack": stack, "site": stack, "index": 1}
        yield Reading("branch_share", math.inf if total is None else total, **place)
        yield Reading("token_variance", 0.0 if lowest is None else lowest, **place)


def by_rule(trace: Trace, strong: float, grown: float, alike: float) -> int | None:
    """The two live rules with other thresholds: Σβ² above `strong` and grown, or token variance below `alike` twice."""
    start = {stack: total for stack, (total, _) in trace["samples"][0]["stacks"].items()}
    low = 0
    for sample in trace["samples"]:
        for stack, (total, _) in sample["stacks"].items():
            now = math.inf if total is None else total
            if sample["step"] >= EARLY and now > strong and now > grown * (start.get(stack) or 0.0):
                return int(sample["step"])
        alike_now = any((lowest or 0.0) < alike for _, lowest in sample["stacks"].values())
        low = low + 1 if sample["step"] >= SETTLED and alike_now else 0
        if low == 2:
            return int(sample["step"])
    return len(trace["losses"]) if None in trace["losses"] else None


def fitted_elsewhere(traces: Sequence[Trace]) -> dict[str, tuple[float, float, float]]:
    """For each family the thresholds that do best on all others: failing runs warned less three times the healthy ones."""
    others = product((4.0, STRONG, 6.0, 7.0), (1.0, GROWN, 1.5), (1e-4, ALIKE, 1e-6))
    tried = [(STRONG, GROWN, ALIKE), *others]  # of equals the first wins
    won = {
        (trace["key"], setting): (by_rule(trace, *setting) is not None) * (1 if trace["outcome"] == "fails" else -3)
        for trace in traces
        for setting in tried
    }
    return {
        family: max(tried, key=lambda setting: sum(won[t["key"], setting] for t in traces if t["family"] != family))
        for family in {trace["family"] for trace in traces}
    }


def z_score(values: Sequence[float | None], limit: float, window: int = 20) -> int | None:
    """The first update whose value is so many deviations above the mean of those before it, or not finite."""
    for i in range(window, len(values)):
        before, now = [value for value in values[i - window : i] if value is not None], values[i]
        if now is None or now > statistics.fmean(before) + limit * statistics.pstdev(before) + 1e-9:
            return i + 1
    return None


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
