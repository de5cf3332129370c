"""From readings to the probability that training fails: a logistic in a few readings, fitted on runs (`bathy bench predict`).

    p = 1 / (1 + exp(−(b + Σ_i w_i f_i)))

odds.json has the coefficients with what they were fitted on; docs/results/forecast.json the readings and outcomes themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bathy.clinic.readings import Reading, groups, select
from bathy.clinic.rehearsal import Rehearsal
from bathy.clinic.rules.rows import amplified

LEAST = 1e-12
"""Token variance that stands for none, and for a loss that is not finite."""
MOST = 1e4
"""Σβ² that stands for one that is not finite."""
BROKEN = 0.999
"""Probability of failing where a rehearsal becomes non-finite."""
Features = dict[str, float]


def features(rehearsal: Rehearsal, updates: int, warmup: int) -> Features:
    """What a forecast rests on, after that many updates at the peak rate.

    tokens: log10 of the token variance at the last site of a stack, the lowest of all stacks (without sites, of the output);
    lowest: the same over all sites; amplification: log10 Σβ², the largest of all stacks; growth: log10 of Σβ² over its first
    value; information: log10 of the nats by which the output depends on the input; rise: nats by which the loss is above its
    first; warmup: log10(1 + warm-up updates); broken: 1 where the loss became non-finite, else 0.
    """
    rows = rehearsal.readings
    reached = max((row.step for row in rows), default=0)
    finite = len(rehearsal.losses) > updates and all(map(math.isfinite, rehearsal.losses[: updates + 1]))
    step = min(updates, reached)
    last, lowest = _token_variances(rows, step)
    now, start = (_amplification(rows, at) for at in (step, 0))
    found = {
        "tokens": math.log10(_clamped(last if finite else 0.0, LEAST)),
        "lowest": math.log10(_clamped(lowest if finite else 0.0, LEAST)),
        "amplification": math.log10(_clamped(now if finite else MOST, 1e-3)),
        "growth": math.log10(_clamped(now if finite else MOST, 1e-3) / _clamped(start, 1e-3)),
        "information": math.log10(_clamped(_information(rows, step) if finite else 0.0, 1e-9)),
        "rise": max(-5.0, min(5.0, rehearsal.losses[step] - rehearsal.losses[0])) if finite else 5.0,
        "warmup": math.log10(1 + warmup),
        "broken": float(not finite),
    }
    return {name: value if math.isfinite(value) else 0.0 for name, value in found.items()}


def _clamped(value: float, least: float) -> float:
    return min(MOST, max(least, value)) if math.isfinite(value) else least


def _token_variances(rows: list[Reading], step: int) -> tuple[float, float]:
    """Token variance at the last site and the lowest at any site, the lowest of all stacks; else that of the output."""
    own = select(rows, "token_variance", step=step)
    if not own:
        output = [row.value for row in select(rows, "output_token_variance", step=step)]
        return (output[0], output[0]) if output else (1.0, 1.0)
    last = [max(stack, key=lambda row: row.index).value for _, stack in groups(own, "stack")]
    return min(last), min(row.value for row in own)


def _information(rows: list[Reading], step: int) -> float:
    """Nats by which the output depends on the input; token variance of the output where it is one number."""
    found = select(rows, "information", step=step) or select(rows, "output_token_variance", step=step)
    return found[0].value if found else 1.0


def _amplification(rows: list[Reading], step: int) -> float:
    """The largest Σβ² of all stacks; 1 where no branch can be watched."""
    return max(amplified(select(rows, "branch_share", step=step)).values(), default=1.0)


@dataclass(frozen=True)
class Odds:
    """A fitted logistic."""

    updates: int
    weights: Mapping[str, float]
    bias: float

    def failure(self, found: Features) -> float:
        """The probability that training fails; near 1 where the rehearsal itself became non-finite."""
        if found.get("broken"):
            return BROKEN
        score = self.bias + sum(weight * found[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


@cache
def fitted(look: str) -> Odds:
    """The logistic of one kind of look, as shipped."""
    values = json.loads((Path(__file__).parent / "odds.json").read_text(encoding="utf-8"))[look]
    return Odds(values["updates"], values["weights"], values["bias"])
