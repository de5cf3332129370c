"""What the live monitor costs a training step, and how often and how early it warns, against simple rules on the loss.

The runs are those of the forecast's grid (traces.jsonl.gz: losses, gradient norms and the monitor's samples of each). The loss
shows a failure at the update from which it stays at the level of guessing. The shipped thresholds were fitted on the
development families; beside them, every run is judged by thresholds that were fitted on the runs of other families.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import bathy
from bathy import console
from bathy.clinic.diagnosis import KEPT, diagnose
from bathy.clinic.monitor import LOSSES, Level, level, risen, spread
from bathy.clinic.readings import Reading
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.copying import Trial, inputs, objective, sentences
from bathy.lab.bench.others import installed
from bathy.lab.bench.predict.cases import load, part_of, settled
from bathy.lab.bench.thresholds import Trace, Warner, Warnings
from bathy.lab.bench.thresholds import shipped as shipped_thresholds

TRACES = Path(__file__).parent / "predict" / "traces.jsonl.gz"
NEAR = 0.1
"""Nats above guessing at the most, from where on a loss shows that it is stuck there."""
OTHERS: dict[str, Warner] = {
    "loss above its mean by 3 deviations": lambda trace: z_score(trace["losses"], 3.0),
    "loss above its mean by 6 deviations": lambda trace: z_score(trace["losses"], 6.0),
    "gradient norm above its mean by 6 deviations": lambda trace: z_score(trace["gradients"], 6.0),
}


GROUPS = {
    "grid": ("development", "held out"), "held-out families": ("held out",), "larger": ("larger",),
    "all": ("development", "held out", "larger"),
}  # fmt: skip
"""Parts of the grid that are judged together."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Cost at k = 50, then every rule on every run of each group; a quick look takes every tenth run."""
    result: dict[str, Any] = {"cost": _cost(rounds=2 if quick else 5)}
    traces = [trace for trace in load(data / TRACES.name if data else TRACES) if trace["outcome"] != "slow"]
    traces = traces[:: 10 if quick else 1]
    plain = Warnings([trace for trace in traces if trace["part"] in GROUPS["grid"]], shipped)
    result["thresholds"] = {
        "shipped": asdict(shipped_thresholds()),
        "fitted": asdict(plain.fit(lambda trace: trace["part"] == "development")),
    }
    found = first_warnings(traces, plain)
    for group, parts in GROUPS.items():
        own = [trace for trace in traces if trace["part"] in parts]
        rows = [
            judged(name, at, found["Monitor"], own) for name, at in found.items() if all(trace["key"] in at for trace in own)
        ]
        if own:
            failing, healthy, trailing = (
                sum(t["outcome"] == outcome for t in own) for outcome in ("fails", "trains", "trails")
            )
            title = f"{group}: {failing} failing and {healthy} healthy runs, and {trailing} that trail a lower rate"
            console.out.print(console.table(title, COLUMNS, rows))
            result[group] = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return result


def first_warnings(traces: Sequence[Trace], plain: Warnings) -> dict[str, dict[str, float]]:
    """For each rule, the update of its first warning of each run by key; infinite where it never speaks."""
    rules: dict[str, Warner] = {"Monitor": shipped, **OTHERS}
    found = {name: {trace["key"]: _or_never(warner(trace)) for trace in traces} for name, warner in rules.items()}
    for name, package in installed().items():
        found[name] = {trace["key"]: _or_never(package(trace["losses"])) for trace in traces}
    crossed = dict(zip((trace["key"] for trace in plain.traces), plain.crossed(), strict=True))
    return {"Monitor": found.pop("Monitor"), "Monitor, thresholds of other families": crossed, **found}


def _or_never(at: int | None) -> float:
    return math.inf if at is None else float(at)


def traces_of(rows: Sequence[dict[str, Any]]) -> list[Trace]:
    """What this benchmark keeps of recorded runs."""
    outcomes = settled(rows)
    names = ("key", "losses", "gradients", "samples")
    return [
        {name: row[name] for name in names}
        | {"family": row["design"]["family"], "part": part_of(row), "outcome": outcomes[row["key"]]}
        | {"unigram": row["ending"]["unigram"]}
        for row in rows
    ]


COLUMNS = [
    "rule",
    "failing runs warned",
    "healthy runs warned",
    "trailing runs warned",
    "median updates before the loss shows it",
    "Monitor no later",
]


def judged(name: str, at: dict[str, float], monitor: dict[str, float], traces: Sequence[Trace]) -> tuple[str, ...]:
    """One row of the table; ahead: of the failing runs that this rule warns of, those where the Monitor does so no later."""
    counts = []
    for outcome in ("fails", "trains", "trails"):
        own = [at[trace["key"]] < math.inf for trace in traces if trace["outcome"] == outcome]
        counts.append(f"{sum(own)} of {len(own)}")
    warned = [trace for trace in traces if trace["outcome"] == "fails" and at[trace["key"]] < math.inf]
    leads = [stuck_from(trace) - at[trace["key"]] for trace in warned]
    ahead = sum(monitor[trace["key"]] <= at[trace["key"]] for trace in warned)
    lead = f"{statistics.median(leads):.0f}" if leads else "–"
    return name, *counts, lead, f"{ahead} of {len(leads)}"


def stuck_from(trace: Trace) -> int:
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
    seen: list[list[Reading]] = []
    before = 0
    lowest: Level | None = None
    for sample in trace["samples"]:
        step = int(sample["step"])
        now = level([loss for loss in trace["losses"][:step] if loss is not None])
        levels = [Reading(name, value, step=step) for name, value in risen(now, lowest).items()]
        seen.append([*rows_of(sample), *loss_rows(trace["losses"], before, step), *levels])
        before, lowest = step, min(filter(None, (now, lowest)), default=None)
        recent = seen[:1] + seen[1:][-KEPT:]
        if diagnose([row for rows in recent for row in rows], live=True):
            return step
    return len(trace["losses"]) if None in trace["losses"] else None


def loss_rows(losses: Sequence[float | None], before: int, step: int) -> Iterator[Reading]:
    """The rows that a monitor has of the losses since its last sample."""
    finite = [math.nan if loss is None else loss for loss in losses[:step]]
    kept = [loss for loss in finite[:before] if math.isfinite(loss)][-LOSSES:]
    for name, value in (spread(kept, finite[before:]) | {"loss": finite[-1]}).items():
        yield Reading(name, value, step=step)


def rows_of(sample: dict[str, Any]) -> Iterator[Reading]:
    """The rows that the live rules read: of each stack Σβ² and token variances, the output's, and sizes of updates."""
    step = sample["step"]
    for stack, values in sample["stacks"].items():
        place = {"step": step, "stack": stack, "site": stack, "index": 1}
        total, _, lowest, entry = (math.nan if value is None else value for value in values)
        yield Reading("branch_share", math.inf if math.isnan(total) else total, **place)
        yield Reading("token_variance", 0.0 if math.isnan(lowest) else lowest, **place)
        yield Reading("input_token_variance", entry, **place)
    named = {"output": "output_token_variance", "information": "information", "influence": "source_influence"}
    for name, quantity in named.items():
        if sample[name] is not None:
            yield Reading(quantity, sample[name], step=step)
    if sample["usual"] is not None:
        yield Reading("usual_update", sample["usual"], step=step)
    if sample["update"] is not None:
        place = {"step": step, "stack": "all", "site": "all"}
        yield from (Reading("weight", 1.0, **place), Reading("weight_update", sample["update"], **place))
    if sample["outside"] is not None:
        yield from (
            Reading("weight", 1.0, step=step, site="outside"),
            Reading("weight_update", sample["outside"], step=step, site="outside"),
        )


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
