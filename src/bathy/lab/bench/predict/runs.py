"""Make the runs of the grid: train, read the monitor's samples, append what came out as one JSON line a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bathy
from bathy import console
from bathy.clinic.odds import Features, features
from bathy.clinic.readings import Reading, groups, select
from bathy.clinic.rehearsal import Recipe, StandIn
from bathy.clinic.rules import relative_updates
from bathy.lab.bench.predict.grid import RATES, Run, designs, next_rate, run_at
from bathy.lab.bench.predict.models import Design, objective
from bathy.lab.bench.predict.outcome import Ending, settle
from bathy.lab.bench.predict.text import Example, batches, unigram_entropy

AFTER = (1, 2, 4, 8, 12, 16)
"""Updates after which a rehearsal is read."""
EVERY = 16
"""Updates between two samples of the monitor, after 1, 2, 4 and 8."""


def make(path: Path, seconds: float = math.inf, seed: int = 0) -> None:
    """Make the runs that the file does not have yet, until the time is over."""
    start, known = time.monotonic(), read(path)
    for once_more, design in product((False, True), designs(seed)):
        endings = {i: ending_of(row) for i in range(len(RATES)) if (row := known.get(run_at(design, i).key))}
        while (rate := next_rate(design, failed(endings), once_more)) is not None:
            if time.monotonic() - start > seconds:
                return
            row = record(run_at(design, rate))
            endings[rate] = ending_of(row)
            known[row["key"]] = row
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            console.err.print(f"{row['key']}: {endings[rate].outcome}, {row['seconds']:.0f} s")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The runs of a file, by key."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def add_forecasts(path: Path, out: Path) -> None:
    """The runs of a file with a forecast as it is made now, appended to another file unless they are there."""
    known = read(out)
    for key, row in read(path).items():
        if key not in known:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rounded(row | {"forecast": forecast(run_of(row))}), ensure_ascii=False) + "\n")


def run_of(row: dict[str, Any]) -> Run:
    """The settings of a recorded run."""
    own = {name: row[name] for name in ("lr", "warmup", "beta2", "optimizer", "steps")}
    return Run(Design(**row["design"]), **own)


def failed(endings: Mapping[int, Ending]) -> dict[int, bool]:
    """Which of a design's runs failed, by rate."""
    return {rate: outcome == "fails" for rate, outcome in settle(endings).items()}


def ending_of(row: dict[str, Any]) -> Ending:
    """What a recorded run's outcome is decided on; null is a number that was not finite."""
    held = [math.nan if value is None else value for value in row["ending"]["held_out"]]
    return Ending(row["ending"]["unigram"], held, row["ending"]["source_gap"])


def record(run: Run) -> dict[str, Any]:
    """Train; returns the run's settings, outcome, losses, gradient norms and samples."""
    start = time.monotonic()
    design = run.design
    model = design.build(next(batches(design.kind, design.seed))).train()
    optimizer = make_optimizer(run, model)
    losses: list[float] = []
    norms: list[float] = []
    samples: list[dict[str, Any]] = []
    held: list[tuple[float, float | None]] = []
    example = next(batches(design.kind, design.seed))
    with bathy.Monitor(model, optimizer=optimizer, every=EVERY, batch=example.inputs) as monitor:
        for step, example in enumerate(islice(batches(design.kind, design.seed), run.steps), 1):
            others = _others(model, monitor) if monitor.due(step) else {}
            loss, norm = update(model, optimizer, example, run.lr * min(1.0, step / run.warmup))
            losses.append(loss)
            norms.append(norm)
            monitor.step(loss)
            if others:
                samples.append(sample(monitor.readings, step) | {"others": moved(others)})
            if not math.isfinite(loss):
                break
            if step % (run.steps // 8) == 0:
                held.append(look(model, design.kind))
    row: dict[str, Any] = {"key": run.key, **asdict(run), "forecast": forecast(run)}
    ending = Ending(_unigram(design.kind), [h for h, _ in held], [g for _, g in held if g is not None])
    row |= {
        "ending": asdict(ending),
        "warned": [[finding.step, finding.name] for finding in monitor.findings],
        "samples": samples,
    }
    return rounded(row | {"losses": losses, "gradients": norms, "seconds": time.monotonic() - start})


def forecast(run: Run) -> dict[int, Features]:
    """What a rehearsal of the run, on other batches, reads after each number of updates; made on a fresh model."""
    design = run.design
    model = design.build(next(batches(design.kind, design.seed))).train()
    examples = list(islice(batches(design.kind, design.seed + 5_000), 16))
    recipe = Recipe(examples, objective, lambda copied, lr: make_optimizer(run, copied), lambda example: example.inputs)
    rehearsal = StandIn(model, recipe).rehearse(run.lr, max(AFTER))
    return {updates: features(rehearsal, updates, run.warmup) for updates in AFTER}


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
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), norm.item()


@torch.no_grad()
def look(model: nn.Module, kind: Any) -> tuple[float, float | None]:
    """Held-out loss, and what a wrong source costs where there is one."""
    model.eval()
    examples = list(islice(batches(kind, 0, held_out=True), 6))
    true = sum(objective(model, example).item() for example in examples) / len(examples)
    gap = None
    if kind == "translation":
        wrong = [Example((e.inputs[0].roll(1, 0), e.inputs[1]), e.target) for e in examples]
        gap = sum(objective(model, example).item() for example in wrong) / len(wrong) - true
    model.train()
    return true, gap


@cache
def _unigram(kind: Any) -> float:
    return unigram_entropy(kind)


def _others(model: nn.Module, monitor: bathy.Monitor) -> dict[str, tuple[Tensor, Tensor]]:
    """Matrices outside the branches, and copies of them."""
    inside = {id(matrix.parameter) for site in monitor._sites for matrix in site.matrices}
    own = {name: p for name, p in model.named_parameters() if p.dim() == 2 and id(p) not in inside}
    return {name: (p, p.detach().clone()) for name, p in own.items()}


@torch.no_grad()
def moved(others: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """‖ΔW‖/‖W‖ of each."""
    return {name: float((p - before).norm() / before.norm().clamp_min(1e-12)) for name, (p, before) in others.items()}


def sample(readings: Sequence[Reading], step: int) -> dict[str, Any]:
    """One sample, each site's numbers in order of execution, by stack."""
    rows = select(readings, step=step)
    found: dict[str, Any] = {"step": step}
    for quantity in ("branch_share", "token_variance", "gradient"):
        found[quantity] = {stack: [row.value for row in own] for (stack,), own in groups(select(rows, quantity), "stack")}
    return found | {"update": relative_updates(rows).get(step)}


def rounded(value: Any) -> Any:
    """The same with floats of four digits; what is not finite becomes null."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
