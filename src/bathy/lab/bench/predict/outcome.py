"""How a short run ended, by rules that were fixed before the runs were made.

A model that has stopped seeing its input ends at the unigram entropy: it guesses by frequency. Held-out loss is read eight
times in a run, always on the same batches, so that its differences carry no sampling noise.

The rules were fixed before the first run, and amended once after 18 of them, before any forecast was made: a run that is still
falling but not below guessing counts as failed where a lower rate of the same design trains (it was falling towards guessing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["trains", "fails", "slow"]
"""Slow: not yet below guessing but still falling when the run ended, and no lower rate got there; such runs decide nothing."""
BETTER = 0.1
"""Nats by which the end of a run must be below the unigram entropy."""
LOST = 0.5
"""Share of its best improvement over guessing that a run may lose again."""
FALLING = 0.02
"""Nats over the last quarter of a run that count as falling still."""
UNUSED = 0.05
"""Source gap over improvement below which a translation model does not use its source."""


@dataclass(frozen=True)
class Ending:
    """What the outcome is decided on."""

    unigram: float
    """Nats per token of guessing by frequency."""
    held_out: list[float]
    """Held-out loss after each eighth of the run; shorter where the run ended early, with a loss that is not finite."""
    source_gap: list[float]
    """Loss with a wrong source minus loss with the right one, at the same updates; empty where there is no source."""

    @property
    def outcome(self) -> Outcome:
        """Whether the run trains: finite, below guessing at the end, most of its best kept, and the source used."""
        if len(self.held_out) < 8 or not all(map(math.isfinite, self.held_out)):
            return "fails"
        gained, best = self.unigram - self.held_out[-1], self.unigram - min(self.held_out)
        falling = self.held_out[5] - self.held_out[-1] > FALLING
        if gained < BETTER:
            return "slow" if falling else "fails"
        if gained < (1 - LOST) * best:
            return "fails"
        if self.source_gap and self.source_gap[-1] < UNUSED * gained:
            return "slow" if self.source_gap[-1] - self.source_gap[5] > FALLING * gained or falling else "fails"
        return "trains"


def settle(endings: Mapping[float, Ending]) -> dict[float, Outcome]:
    """The outcomes of one design's runs by rate: a slow run fails where a lower rate trains."""
    outcomes = {rate: ending.outcome for rate, ending in endings.items()}
    slowest = min((rate for rate, outcome in outcomes.items() if outcome == "trains"), default=math.inf)
    return {rate: "fails" if outcome == "slow" and rate > slowest else outcome for rate, outcome in outcomes.items()}
