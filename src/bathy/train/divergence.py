"""Divergence: a run whose loss rose and stayed high, that never improved on guessing, or that a validation shows to fail.

The reference is the task's loss of guessing: for text the unigram entropy, the NLL of a model that knows token frequencies
alone, where the paper's deep Post-LN models end up.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

RISE, LEAST_RISE, WINDOW = 1.0, 0.5, 200
"""Nats above the lowest mean (or half the improvement over guessing, if that is less, but not below the second), and updates in
a row, after which what was learned counts as lost."""
NEAR_LOWEST = 0.2
"""Nats above the lowest mean within which an update is good."""
IMPROVEMENT, PATIENCE = 0.1, 10
"""Nats below guessing that count as no improvement, and windows after twice the warm-up until then."""
FAILING = 2
"""Windows after twice the warm-up over which every validation must fail before the run is stopped."""


@dataclass
class Divergence:
    """Follows a running mean of the loss over about a quarter of its window of updates, and what validations show."""

    chance: float
    """The loss of guessing; infinite where the task does not know it."""
    warmup: int
    window: int = WINDOW
    """Updates in a row with a high loss after which the run counts as diverged."""
    mean: float = 0.0
    weight: float = 0.0
    lowest: float = float("inf")
    high: int = 0
    """Updates in a row at which the mean was far above its lowest."""
    good: int = 0
    """Last update at which the mean was near its lowest."""
    failing: int = 0
    """Update since which every validation has failed; 0: the last one did not."""
    lowest_valid: float = float("inf")
    """The lowest validation loss."""

    @property
    def rise(self) -> float:
        """Nats above the lowest mean that count as lost."""
        return min(RISE, max(LEAST_RISE, (self.chance - self.lowest) / 2))

    @property
    def last_good(self) -> int:
        """Last update worth going back to; 0 where the loss was never better than guessing."""
        return 0 if self.lowest > self.chance - IMPROVEMENT else self.good

    def update(self, step: int, nll: float) -> str:
        """Take in the loss of an update; returns why the run should stop, or nothing."""
        share = 4 / max(self.window, 8)
        self.weight = (1 - share) * self.weight + share
        self.mean += share / self.weight * (nll - self.mean)
        if step < self.window // 4:
            return ""
        self.lowest = min(self.lowest, self.mean)
        self.high = self.high + 1 if self.mean > self.lowest + self.rise else 0
        self.good = step if self.mean < self.lowest + NEAR_LOWEST else self.good
        if self.high >= self.window:
            return f"the loss rose from {self.lowest:.2f} to {self.mean:.2f} nats and stayed there for {self.window} updates"
        guessing = math.isfinite(self.chance) and self.mean > self.chance - IMPROVEMENT
        if step >= 2 * self.warmup + PATIENCE * self.window and guessing:
            return f"after {step} updates the loss, {self.mean:.2f} nats, is still that of guessing ({self.chance:.2f})"
        return ""

    def validated(self, step: int, loss: float, problem: str) -> str:
        """Take in a validation's loss and what the task found wrong with it; returns why the run should stop, or nothing.

        A stream that has collapsed may learn with dropout what it cannot do without: its training loss falls, and only the
        validation shows that it is worse than guessing. One that is worse than guessing and lower than ever is slow.
        """
        slow = loss < self.lowest_valid
        self.lowest_valid = min(self.lowest_valid, loss)
        if math.isfinite(self.chance) and not loss <= self.chance + RISE and not slow and not problem:
            problem = f"the validation loss, now {loss:.2f} nats, is worse than guessing ({self.chance:.2f})"
        failing = bool(problem) and step >= 2 * self.warmup
        self.failing = (self.failing or step) if failing else 0
        if not failing or step - self.failing < FAILING * self.window:
            return ""
        return f"since update {self.failing} {problem}"

    def state_dict(self) -> dict[str, Any]:
        """What it has seen."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; what an older version did not know yet stays as it is."""
        for key in ("mean", "weight", "lowest", "high", "good", "failing", "lowest_valid"):
            setattr(self, key, state.get(key, getattr(self, key)))
