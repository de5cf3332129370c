"""What is known of a failed run besides its replays: batches that stand out, and what moved first."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bathy.clinic.probe import discover
from bathy.clinic.readings import Reading, read
from bathy.errors import BathyError
from bathy.files import read_json, write_json
from bathy.lab.postmortem.failure import Failure, Rows, jump
from bathy.train import checkpoint
from bathy.train.log import read_log
from bathy.train.recovery import FILE, MARGIN, copy_checkpoint, effective, points, read_recoveries
from bathy.train.state import begin
from bathy.train.suspects import own_losses, suspects
from bathy.train.task import Task, peek
from bathy.train.world import World

STANDS_OUT = 10.0
"""Deviations by which a batch's loss must exceed those before it where there are no earlier weights to judge it by."""
AWAY = math.log(3)
"""|log| of a reading over its usual value from which on it has moved."""
QUANTITIES = {
    "branch_share": "the branch's share of the stream",
    "token_variance": "the difference between tokens",
    "gradient": "the gradient of the stream",
    "weight_gradient": "the gradient of a matrix",
    "weight_update": "the update of a matrix",
}
"""Readings that can move first, and what they are called."""


def odd_batches(run: Path, task: Task, config: Any, failure: Failure, start: int, control: Path) -> list[int]:
    """Updates whose batches stand out under the weights of the checkpoint at `start`; from update 0, in the control's log."""
    last = min(failure.found, failure.onset + MARGIN)
    if not start:
        step, deviations = jump(read_log(control / "metrics.jsonl"), max(0, failure.onset - 2 * MARGIN), last)
        return [step] if deviations > STANDS_OUT else []
    folder = control.parent / "batches"
    if not (folder / "losses.json").exists():
        if not checkpoint.checkpoints(folder):
            copy_checkpoint(dict(points(run))[start], folder)
        known = [asdict(one) for one in effective(read_recoveries(run)) if one.start <= start]
        write_json(folder / FILE, known)  # the checkpoint may be of a model that a recovery changed
        state = begin(task, config, folder, World())
        losses = own_losses(state.config, state, World(), last)
        write_json(folder / "losses.json", [[step, loss if math.isfinite(loss) else None] for step, loss in losses.items()])
    kept = read_json(folder / "losses.json", list)
    return suspects({step: math.inf if loss is None else loss for step, loss in kept})


def can_be_watched(task: Task) -> bool:
    """Whether the monitor finds residual connections in the task's model."""
    try:
        return bool(discover(task.build(), task.inputs(peek(task.batches(0, 1)))))
    except (BathyError, RuntimeError, TypeError, ValueError):  # a model of the user's own without any
        return False


def moved_first(control: Path, failure: Failure) -> str:
    """What left its usual value first in the unchanged replay, and where; by the monitor's readings and the gradient's norm."""
    path = control / "readings.jsonl"
    found = [_first(rows, failure) for rows in _series(read(path)[0]).values()] if path.exists() else []
    moved = sorted((each for each in found if each), key=lambda each: (each[0].step, -each[1]))
    total = _gradient_norm(read_log(control / "metrics.jsonl"), failure)
    if not moved:
        return total
    row, off = moved[0]
    change = f"{'rose' if off > 0 else 'fell'} by a factor of {math.exp(abs(off)):.1f}"
    role = f" ({row.role})" if row.role else ""
    return f"{QUANTITIES[row.quantity]} at {row.site or row.stack}{role} {change} by update {row.step}; {total}"


def _series(rows: list[Reading]) -> dict[tuple[str, str, str], list[Reading]]:
    series: dict[tuple[str, str, str], list[Reading]] = defaultdict(list)
    for row in rows:
        if row.quantity in QUANTITIES and row.site:
            series[row.quantity, row.site, row.role].append(row)
    return series


def _first(rows: list[Reading], failure: Failure) -> tuple[Reading, float] | None:
    """(first reading from which on two in a row are away from the usual, log of its ratio)."""
    calm = [row.value for row in rows if row.step <= failure.onset and row.value > 0][-9:] or [
        row.value for row in rows[:1] if row.value > 0
    ]
    if not calm:
        return None
    usual = statistics.median(calm)
    off = [math.log(max(row.value, 1e-30) / usual) if math.isfinite(row.value) else math.inf for row in rows]
    for row, now, after in zip(rows, off, off[1:], strict=False):
        if row.step > failure.onset - MARGIN and abs(now) > AWAY and abs(after) > AWAY:
            return row, min(now, 99.0)
    return None


def _gradient_norm(rows: Rows, failure: Failure) -> str:
    """Whether the whole gradient grew before the loss."""
    gradients = [(row["step"], row["gradient_norm"]) for row in rows if row.get("gradient_norm") is not None]
    calm = sorted(value for step, value in gradients if step <= failure.onset) or [value for _, value in gradients[:5]]
    if not calm:
        return "no gradient was finite"
    usual = calm[len(calm) // 2]
    first = next((step for step, value in gradients if value > 5 * usual and step > failure.onset - 20), None)
    if first is None:
        return "the gradient's norm never exceeded five times its usual value"
    return f"the gradient's norm exceeded five times its usual value ({usual:.3g}) at update {first}"
