"""How a short run ended, by rules that were fixed before the first run; every amendment since is named here.

A model that has stopped seeing its input ends at the unigram entropy: it guesses by frequency. Held-out loss is read at least
four times in a run, always on the same text, on which the entropy is taken, too, so that differences carry no sampling noise.

The rules were fixed before the first run. Amended after 18 of them, before any forecast was made: a run that is still falling
but not below guessing counts as failed where a lower rate of the same design trains (it was falling towards guessing). Amended
before the grid of version 2 was run: a run goes on until it is decided, up to four times as long. After 120 updates, where all
runs ended before, a quarter of them was too slow to tell, and translations that had just begun to use their source counted as
failed. Amended once more after half of that grid: a run ends as stuck only if it is no better than guessing at all (a GPT-2
just below guessing had been ended at a rate below two that train); the runs concerned were made again. Amended when two thirds
of it were there: guessing is measured on the text that runs are measured on (before, on other text: 0.26 nats off for masked
models; the recorded losses were judged again, and the runs that were undecided then made again), and a run that trains decides
nothing where a lower rate of the same design has more than twice its improvement after as many updates. Such runs collapse at a
high rate and recover, some hundreds of updates later: a warning is right, and so is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["trains", "fails", "slow", "trails"]
"""Slow: not yet below guessing but still falling when the run ended, and no lower rate got there. Trails: trains, but a lower
rate of the same design has more than twice its improvement after as many updates. Both decide nothing."""
BETTER = 0.1
"""Nats by which the end of a run must be below the unigram entropy."""
LOST = 0.5
"""Share of its best improvement over guessing that a run may lose again."""
FALLING = 0.02
"""Nats over the last quarter of a run that count as falling still."""
UNUSED = 0.05
"""Source gap over improvement below which a translation model does not use its source."""
CLEAR, USED = 0.3, 0.2
"""Nats below guessing, and source gap over improvement, from which a run trains without being trained further."""
TWICE = 8
"""Looks at held-out text, those of two stages, before a run that stays at guessing is given up."""


@dataclass(frozen=True)
class Ending:
    """What the outcome is decided on."""

    unigram: float
    """Nats per token of guessing by frequency."""
    held_out: list[float]
    """Held-out loss at even distances."""
    source_gap: list[float]
    """Loss with a wrong source minus loss with the right one, at the same updates; empty where there is no source."""
    broken: bool = False
    """Whether the run ended with a loss that is not finite."""

    @property
    def finite(self) -> bool:
        """Whether every loss is a number."""
        return not self.broken and all(map(math.isfinite, self.held_out))

    @property
    def gained(self) -> float:
        """Nats below guessing at the end."""
        return self.unigram - self.held_out[-1]

    @property
    def falling(self) -> bool:
        """Whether the loss was falling still in the last quarter."""
        return self._before(self.held_out) - self.held_out[-1] > FALLING

    @staticmethod
    def _before(values: list[float]) -> float:
        """The value before the last quarter."""
        return values[-1 - len(values) // 4]

    @property
    def outcome(self) -> Outcome:
        """Whether the run trains: finite, below guessing at the end, most of its best kept, and the source used."""
        if not self.finite:
            return "fails"
        if self.gained < BETTER:
            return "slow" if self.falling else "fails"
        if self.gained < (1 - LOST) * (self.unigram - min(self.held_out)):
            return "fails"
        if self.source_gap and self.source_gap[-1] < UNUSED * self.gained:
            grows = self.source_gap[-1] - self._before(self.source_gap) > FALLING * self.gained
            return "slow" if grows or self.falling else "fails"
        return "trains"

    @property
    def decided(self) -> bool:
        """Whether more updates would tell nothing new: it clearly trains, is not finite, or has stayed at guessing."""
        if not self.finite:
            return True
        if self.gained < 0:
            return not self.falling and len(self.held_out) >= TWICE
        used = not self.source_gap or self.source_gap[-1] >= USED * self.gained
        return self.outcome == "trains" and self.gained >= CLEAR and used


def settle(endings: Mapping[float, Ending]) -> dict[float, Outcome]:
    """The outcomes of one design's runs by rate: a slow run fails where a lower rate trains, one that trains may trail it."""
    outcomes = {rate: ending.outcome for rate, ending in endings.items()}
    slowest = min((rate for rate, outcome in outcomes.items() if outcome == "trains"), default=math.inf)
    for rate, outcome in outcomes.items():
        if outcome == "slow" and rate > slowest:
            outcomes[rate] = "fails"
        elif outcome == "trains" and _outdone(rate, endings):
            outcomes[rate] = "trails"
    return outcomes


def _outdone(rate: float, endings: Mapping[float, Ending]) -> bool:
    """Whether a lower rate has, after as many updates, a clear improvement of which this one has less than half."""
    own = endings[rate]
    pairs = [list(zip(own.held_out, ending.held_out, strict=False)) for lower, ending in endings.items() if lower < rate]
    gained = [(own.unigram - pair[-1][0], own.unigram - pair[-1][1]) for pair in pairs if pair]
    return any(other >= CLEAR and this < (1 - LOST) * other for this, other in gained)
