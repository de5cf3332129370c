"""What the updates since the last row of the log gave on average, and how fast they were."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any


def perplexity(loss: float) -> float:
    """exp(loss); infinite where that says nothing any more."""
    return math.exp(loss) if loss < 50 else math.inf


@dataclass(frozen=True)
class Update:
    """What one update gave, over all ranks."""

    loss: float
    """What is minimised, per token."""
    nll: float
    """The plain loss, per token."""
    tokens: float
    """What the loss is summed over."""
    efficiency: float
    """Real tokens among all."""
    norm: float
    """The gradient's norm; not finite where the update was skipped."""
    flops: float
    """Operations that the real tokens need."""
    overflow: str = ""
    """Where an overflow began."""


@dataclass
class Meter:
    """Updates since the last row of the log; a checkpoint carries them, so that a resumed run writes the same rows."""

    peak: float = math.inf
    """Operations per second that all ranks could reach."""
    updates: list[Update] = field(default_factory=list)
    timed: int = 0
    """How many of them this process took: only their time is known."""
    started: float = field(default_factory=time.monotonic)

    def add(self, update: Update) -> None:
        """Take in an update."""
        self.updates.append(update)
        self.timed += 1

    def seconds_per_update(self) -> float:
        """Time of an update of this process."""
        return (time.monotonic() - self.started) / max(1, self.timed)

    def row(self) -> dict[str, float]:
        """Means over the updates, and speed; starts anew."""
        good = [update for update in self.updates if math.isfinite(update.loss)]
        tokens = sum(update.tokens for update in good)
        seconds = max(time.monotonic() - self.started, 1e-9)
        timed = self.updates[-self.timed :] if self.timed else []
        nll = sum(update.nll * update.tokens for update in good) / tokens if good else math.nan
        row = {
            "loss": sum(update.loss * update.tokens for update in good) / tokens if good else math.nan,
            "nll": nll,
            "ppl": perplexity(nll),
            "gradient_norm": self.updates[-1].norm if self.updates else math.nan,
            "skipped": sum(not math.isfinite(update.norm) for update in self.updates),
            "efficiency": sum(update.efficiency for update in self.updates) / max(1, len(self.updates)),
            "tokens_per_second": sum(update.tokens for update in timed) / seconds,
            "mfu": sum(update.flops for update in timed) / seconds / self.peak,
        }
        self.updates, self.timed, self.started = [], 0, time.monotonic()
        return row

    def state_dict(self) -> dict[str, Any]:
        """The updates so far, as plain numbers."""
        keys = ("loss", "nll", "tokens", "efficiency", "norm", "flops", "overflow")
        return {"updates": [[getattr(update, key) for key in keys] for update in self.updates]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what was saved; version 0.1 saved nothing."""
        self.updates = [Update(*values) for values in state.get("updates", [])]
