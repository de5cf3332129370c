"""Runs: train a config in a folder unless that is done, and say what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a run gave."""

    loss: float
    """Validation loss in nats for each target token; infinite where the run blew up."""
    ppl: float
    stopped: bool = False
    """Whether divergence detection ended it."""
    why: str = ""
    """What the detection said."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(update, validation loss)."""

    def row(self) -> dict[str, Any]:
        """The outcome without its curve."""
        return {"loss": self.loss, "ppl": self.ppl, "stopped": self.stopped, "why": self.why}
