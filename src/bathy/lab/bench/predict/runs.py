"""Make the runs of the grid: rehearse, train, read the monitor's samples, append what came out as one JSON line a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bathy
from bathy import console
from bathy.clinic.readings import Reading, select
from bathy.clinic.rehearsal import Point, Recipe, StandIn, point_of
from bathy.clinic.rules import relative_updates
from bathy.clinic.rules.rows import update_ratios
from bathy.lab.bench.predict.grid import LONG, STAGE, Run
from bathy.lab.bench.predict.models import Design, objective
from bathy.lab.bench.predict.outcome import Ending
from bathy.lab.bench.predict.text import PAIRS, Example, batches, held_out, unigram_entropy

REHEARSED = 20
"""Updates of a rehearsal, each of which is recorded."""
EVERY, LATER = 8, 24
"""Updates between two samples of the monitor, after 1, 2 and 4: in the first stage, and after it."""
LOOKS = 4
"""Looks at held-out text in each stage."""


def make(runs: Iterable[Run], path: Path, seconds: float = math.inf) -> None:
    """Make the runs that the file does not have yet, until the time is over."""
    start, known = time.monotonic(), read(path)
    for run in runs:
        if time.monotonic() - start > seconds:
            return
        if run.key not in known:
            row = record(run)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            console.err.print(f"{row['key']}: {ending_of(row).outcome}, {row['seconds']:.0f} s")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The runs of a file, by key."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def run_of(row: dict[str, Any]) -> Run:
    """The settings of a recorded run."""
    own = {name: row[name] for name in ("lr", "warmup", "beta2", "optimizer", "steps")}
    return Run(Design(**row["design"]), **own)


def ending_of(row: dict[str, Any]) -> Ending:
    """What a recorded run's outcome is decided on; null is a number that was not finite."""
    held = [math.nan if value is None else value for value in row["ending"]["held_out"]]
    return Ending(**row["ending"] | {"held_out": held})


def record(run: Run) -> dict[str, Any]:
    """Rehearse and train; returns settings, what the rehearsal read, how the run ended, and its trace for the monitor."""
    start, design = time.process_time(), run.design
    example = next(batches(design.kind, design.seed))
    model = design.build(example).train()
    row: dict[str, Any] = {"key": run.key, **asdict(run), "points": [asdict(point) for point in rehearsed(run, model)]}
    rehearsal = time.process_time() - start
    optimizer = make_optimizer(run, model)
    losses, norms, samples = list[float](), list[float](), list[dict[str, Any]]()
    ending = Ending(unigram_entropy(design.kind), [], [])
    stage = min(run.steps, LONG // 2 if run.steps >= LONG else STAGE)
    with bathy.Monitor(model, optimizer=optimizer, every=EVERY, batch=example.inputs, on_warning=lambda _: None) as monitor:
        for step, example in enumerate(islice(batches(design.kind, design.seed), run.steps), 1):
            loss, norm = update(model, optimizer, example, run.lr * min(1.0, step / run.warmup))
            losses.append(loss)
            norms.append(norm)
            due = monitor.due(step)
            monitor.step(loss)
            if due:
                samples.append(sample(monitor.latest, step))
            if not math.isfinite(loss):
                ending = replace(ending, broken=True)
                break
            if step % (stage // LOOKS) == 0:
                ending = look(model, design.kind, ending)
            if step % stage == 0:
                monitor.every = LATER
                if ending.decided and run.steps < LONG:
                    break
    warned = [[finding.step, finding.name] for finding in monitor.findings]
    row |= {"ending": asdict(ending), "warned": warned, "samples": samples}
    spent = {"seconds": time.process_time() - start, "rehearsal_seconds": rehearsal}
    return rounded(row | {"losses": losses, "gradients": norms, **spent})


def rehearsed(run: Run, model: nn.Module) -> list[Point]:
    """What a rehearsal of the run, on other batches, reads."""
    examples = list(islice(batches(run.design.kind, run.design.seed + 5_000), REHEARSED))
    recipe = Recipe(examples, objective, lambda copied, lr: make_optimizer(run, copied), lambda example: example.inputs)
    return StandIn(model, recipe).rehearse(run.lr, REHEARSED).points


def make_optimizer(run: Run, model: nn.Module) -> torch.optim.Optimizer:
    """The run's optimiser."""
    extra = {"weight_decay": 0.1} if run.optimizer == "AdamW" else {}
    extra |= {"fused": True} if run.optimizer in ("Adam", "AdamW") else {}
    return getattr(torch.optim, run.optimizer)(model.parameters(), run.lr, betas=(0.9, run.beta2), **extra)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, example: Example, lr: float) -> tuple[float, float]:
    """One update; the loss and the norm of the whole gradient."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = objective(model, example)
    loss.backward()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), norm.item()


@torch.no_grad()
def look(model: nn.Module, kind: Any, before: Ending) -> Ending:
    """The ending as it is now: with held-out loss, and what a wrong source costs where there is one."""
    model.eval()
    example = held_out(kind)
    true, gap = objective(model, example).item(), []
    if kind in PAIRS:
        wrong = Example((example.inputs[0].roll(1, 0), example.inputs[1]), example.target)
        gap = [objective(model, wrong).item() - true]
    model.train()
    return replace(before, held_out=[*before.held_out, true], source_gap=[*before.source_gap, *gap])


def sample(rows: Sequence[Reading], step: int) -> dict[str, Any]:
    """One sample: what the live rules read, in few numbers."""
    point = point_of(rows, 0.0)
    outside = [ratio for row, ratio in update_ratios(rows) if not row.stack]
    usual = [row.value for row in select(rows, "usual_update")]
    return {
        "step": step, "stacks": point.stacks, "output": point.output, "information": point.information,
        "influence": point.influence,
        "update": relative_updates(rows).get(step), "usual": usual[0] if usual else None, "outside": max(outside, default=None),
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """The same with floats of four digits; what is not finite becomes null."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
