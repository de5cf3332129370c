"""What an item is: one figure or table of the paper, what it needs, how it is measured, tabulated and drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bathy.clinic.readings import Reading, groups
from bathy.lab.claims.predicate import half_width

if TYPE_CHECKING:
    from bathy.lab.reproduce.lab import Lab

Value = float | dict[str, float]
"""One number, or one per seed."""


@dataclass(frozen=True)
class Needs:
    """What an item takes at a scale, when nothing of it is there yet."""

    data: str
    hours: float
    """Wall-clock hours, one seed: on two CPU cores up to medium, on the paper's GPUs at paper."""
    gigabytes: float
    """Memory, or memory of each GPU."""

    @property
    def time(self) -> str:
        """The hours as people say them."""
        if self.hours < 1:
            return f"{60 * self.hours:.0f} min"
        return f"{self.hours:.0f} h" if self.hours < 72 else f"{self.hours / 24:.0f} days"


@dataclass(frozen=True)
class Table:
    """Rows as in the paper, ours beside its numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table for a page."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass
class Measured:
    """What an item gathered: named numbers, by which claims are judged, and the rows that figures are drawn from."""

    numbers: dict[str, Value] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def by_seed(self, name: str) -> dict[str, float]:
        """A trained run's number, seed by seed; nothing where it was not measured."""
        value = self.numbers.get(name, {})
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True)
class Item:
    """One figure, table or sentence of the paper as something that can be run."""

    name: str
    title: str
    shows: str
    """What the paper shows there, in one sentence."""
    needs: Mapping[str, Needs]
    """By scale; a scale that is missing cannot run it."""
    measure: Callable[[Lab], Measured]
    table: Callable[[Mapping[str, Value]], Table]
    draw: Callable[[Measured], Any] | None = None
    """The figure in the paper's form, as an Altair chart."""


def over_seeds(readings: Sequence[Reading]) -> list[Reading]:
    """Each place's geometric mean over seeds."""
    keys = ("quantity", "exam", "model", "step", "site", "stack", "kind", "layer", "index", "role", "j")
    found = groups(readings, *keys)
    return [replace(rows[0], value=_geometric_mean([row.value for row in rows]), seed=0) for _, rows in found]


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if min(values) > 0 else 0.0


def shown(numbers: Mapping[str, Value], name: str, digits: int = 3) -> str:
    """A number for a table: mean ± deviation over seeds, 'failed' for an infinite one, – where it was not measured."""
    value = numbers.get(name)
    values = list(value.values()) if isinstance(value, dict) else [] if value is None else [value]
    if not values:
        return "–"
    if not all(map(math.isfinite, values)):
        return "failed"
    spread = f" ± {statistics.stdev(values):.{max(1, digits - 2)}g}" if len(set(values)) > 1 else ""
    mean = statistics.fmean(values)
    return (f"{mean:,.0f}" if abs(mean) >= 10**digits else f"{mean:.{digits}g}") + spread


def difference(numbers: Mapping[str, Value], one: str, other: str) -> str:
    """One number minus another for a table: the mean over the seeds that both have, with its 95 % interval."""
    first, second = numbers.get(one), numbers.get(other)
    if one == other or not isinstance(first, dict) or not isinstance(second, dict):
        return ""
    values = [first[seed] - second[seed] for seed in first if seed in second]
    if not values or not all(map(math.isfinite, values)):
        return ""
    interval = f" ± {half_width(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):+.3g}{interval}"


def each_seed(numbers: Mapping[str, Value], name: str) -> str:
    """A number of each seed for a table, in the order of the seeds; nothing where it was not measured."""
    value = numbers.get(name, {})
    return ", ".join(f"{one:.2g}" for one in value.values()) if isinstance(value, dict) else f"{value:.2g}"
