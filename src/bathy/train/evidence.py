"""What is known of a failed run besides its losses: batches that stand out, a raised rate, numbers that did not fit, depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bathy.admin.profile import profile
from bathy.errors import BathyError
from bathy.train.task import Task, peek

RAISED = 2.0
"""How many times faster than in proportion to the updates a rate must grow to count as raised."""
BEFORE = 10
"""Rows before a raise that it is compared with."""


@dataclass(frozen=True)
class Raise:
    """A rate that went up at once."""

    step: int
    before: float
    after: float

    def __str__(self) -> str:
        return f"from {self.before:.3g} to {self.after:.3g} at update {self.step}"


@dataclass(frozen=True)
class Evidence:
    """What speaks for one change rather than another."""

    suspects: Sequence[int] = field(default_factory=list)
    """Updates whose batches stand out by their own loss."""
    raised: Raise | None = None
    """A sudden raise of the rate."""
    depth: float = 0.0
    """The largest Σβ² of a stack at the start."""
    overflow: bool = False
    """Whether the run ended because numbers did not fit their format."""


def find_raise(rows: Sequence[dict[str, Any]], last: int) -> Raise | None:
    """The last sudden raise of the rate up to update `last`; a warm-up is none: it grows in proportion to the updates."""
    logged = [(row["step"], row["lr"]) for row in rows if row.get("lr") is not None and row["step"] <= last]
    for i in range(len(logged) - 1, 0, -1):
        step, rate = logged[i]
        earlier = [(at, value * max(1.0, step / at)) for at, value in logged[max(0, i - BEFORE) : i] if value > 0]
        if earlier and rate > RAISED * max(value for _, value in earlier) and rate > RAISED * logged[i - 1][1]:
            return Raise(step, max(value for _, value in logged[max(0, i - BEFORE) : i]), rate)
    return None


def depth(config: Any, task: Task) -> float:
    """The largest Σβ² of a stack of the fresh model on the first batch; 0 where it cannot be profiled."""
    torch.manual_seed(config.train.seed)
    try:
        result = profile(task.build(), task.inputs(peek(task.batches(0, 1))))
        return max(result.change(stack) for stack in {site.stack for site in result.sites})
    except (BathyError, RuntimeError, TypeError, ValueError):  # a model of the user's own that cannot be profiled
        return 0.0
