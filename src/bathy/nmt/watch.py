"""Divergence: a run that has lost what it had learned, has learned nothing long after its warm-up, or does not read its source.

The reference is the unigram entropy of the targets, the NLL of a model that knows token frequencies alone: where the paper's
deep Post-LN models end up. A loss that stays there has not begun to translate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bathy.nmt.data import Split

LOST, FOR = 1.0, 200
"""Nats above the lowest mean, and updates in a row, after which what was learned counts as lost."""
NEAR, PATIENCE = 0.1, 2000
"""Nats below the unigram entropy that count as nothing learned, and updates after twice the warm-up until then."""
DEAF, SPOKEN, UNHEARD = 0.1, 0.3, 400
"""Share of the nats learned that the source gives, least nats learned, and updates in a row after twice the warm-up: a decoder
that speaks but does not listen. Healthy runs have a share of 0.2 and more by then. As many updates a validation may be worse by
LOST than guessing."""
MOST_TOKENS = 10_000_000
"""Tokens of each folder that the entropy is taken over."""


def unigram_entropy(splits: Sequence[Split]) -> float:
    """Entropy in nats of the splits' target tokens, end marks counted."""
    counts = [np.bincount(np.asarray(split.target.ids[:MOST_TOKENS])) for split in splits]
    total = np.zeros(max(map(len, counts)))
    for count in counts:
        total[: len(count)] += count
    share = total[total > 0] / total.sum()
    return float(-(share * np.log(share)).sum())


@dataclass
class Watch:
    """Follows a running mean of the NLL over about 50 updates."""

    entropy: float
    """Unigram entropy of the targets."""
    warmup: int
    mean: float = 0.0
    weight: float = 0.0
    lowest: float = float("inf")
    high: int = 0
    """Updates in a row at which the mean was far above its lowest."""
    failing: int = 0
    """Update since which validations found a decoder that does not listen or is worse than guessing; 0: the last did not."""

    def update(self, step: int, nll: float) -> str:
        """Learn the NLL of an update; returns why the run should stop, or nothing."""
        self.weight = 0.98 * self.weight + 0.02
        self.mean += 0.02 / self.weight * (nll - self.mean)
        if step < 50:
            return ""
        self.lowest = min(self.lowest, self.mean)
        self.high = self.high + 1 if self.mean > self.lowest + LOST else 0
        if self.high >= FOR:
            return f"the loss rose from {self.lowest:.2f} to {self.mean:.2f} nats and stayed there for {FOR} updates"
        if step >= 2 * self.warmup + PATIENCE and self.mean > self.entropy - NEAR:
            return (
                f"after {step} updates the loss, {self.mean:.2f} nats, is still that of guessing by token frequency "
                f"({self.entropy:.2f})"
            )
        return ""

    def validated(self, step: int, loss: float, gap: float) -> str:
        """Learn a validation's loss and source gap; returns why the run should stop, or nothing.

        A translation model hears its source soon after it has learned to speak. One whose encoder is dead goes on learning
        the target language alone: its loss falls, and only the gap tells. One whose stream has collapsed may learn with dropout
        what it cannot do without: its training loss falls, and only the validation tells.
        """
        learned = self.entropy - loss
        unheard = learned > SPOKEN and gap < DEAF * learned
        failing = (unheard or learned < -LOST) and step >= 2 * self.warmup
        self.failing = (self.failing or step) if failing else 0
        if not failing or step - self.failing < UNHEARD:
            return ""
        if unheard:
            return (
                f"since update {self.failing} the decoder hardly uses its source: a wrong source takes {gap:.3f} of the "
                f"{learned:.2f} nats it has learned"
            )
        return (
            f"since update {self.failing} the validation loss, now {loss:.2f} nats, is worse than guessing by token frequency "
            f"({self.entropy:.2f})"
        )

    def state_dict(self) -> dict[str, Any]:
        """What it has seen."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; what an older version did not know yet stays as it is."""
        for key in ("mean", "weight", "lowest", "high", "failing"):
            setattr(self, key, state.get(key, getattr(self, key)))
