"""The thresholds of the live rules, fitted on runs: as many failing runs warned as may be, at few false alarms.

A run is warned of by the first rule that speaks. Each threshold belongs to one rule, so every rule is tried by itself, with the
others switched off, and any choice of thresholds follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

stability: Any = import_module("bathy.clinic.rules.stability")
collapse: Any = import_module("bathy.clinic.rules.collapse")  # the package also has a rule of this name
Trace = dict[str, Any]
Updates = NDArray[np.float64]
"""The update of the first warning of each run; infinite where there is none."""
Warner = Callable[[Trace], int | None]
"""From a run to the update at which it is warned of."""
FALSE = 0.02
"""Share of the healthy runs that may be warned of."""


@dataclass(frozen=True)
class Thresholds:
    """What is fitted: Σβ² that is strong, an update that is a leap, token variance, information and influence that are none."""

    strong: float
    leap: float
    alike: float
    nats: float
    settled: int
    """The update from which token variance and information count."""
    ignored: float


CANDIDATES: dict[str, tuple[float, ...]] = {
    "strong": (3.0, 3.5, 4.0, 5.0, 6.0), "leap": (0.5, 1.0, 2.0, 4.0),
    "alike": (1e-5, 3e-5, 1e-4, 3e-4), "nats": (1e-5, 3e-5, 1e-4, 3e-4), "settled": (8, 16),
    "ignored": (0.003, 0.005, 0.01, 0.02),
}  # fmt: skip
COUNTED = ("alike", "nats")
"""Thresholds that count from the update `settled` on."""
RULES = ("strong", "leap", "ignored", *COUNTED)
"""Thresholds that have a rule of their own."""
OFF = Thresholds(inf, inf, 0.0, 0.0, 16, 0.0)


def shipped() -> Thresholds:
    """Those of the rules as they are."""
    nats = next(limit for name, _, limit in collapse.SAME if name == "information")
    return Thresholds(stability.STRONG, stability.LEAP, collapse.ALIKE, nats, collapse.SETTLED, collapse.IGNORED)


@contextmanager
def applied(chosen: Thresholds) -> Iterator[None]:
    """A block in which the rules have these thresholds."""
    kept = shipped(), collapse.SAME
    try:
        _set(chosen)
        yield
    finally:
        _set(kept[0])
        collapse.SAME = kept[1]


def _set(chosen: Thresholds) -> None:
    stability.STRONG, stability.LEAP = chosen.strong, chosen.leap
    collapse.ALIKE, collapse.SETTLED, collapse.IGNORED = chosen.alike, chosen.settled, chosen.ignored
    collapse.SAME = tuple((name, what, chosen.nats if name == "information" else limit) for name, what, limit in collapse.SAME)


def _alone(name: str, value: float, settled: int) -> Thresholds:
    """One threshold with the other rules switched off."""
    changed: dict[str, Any] = {name: value} | ({"settled": settled} if name in COUNTED else {})
    return replace(OFF, **changed)


class Warnings:
    """When each run is warned of under any of the candidates."""

    def __init__(self, traces: Sequence[Trace], warner: Warner) -> None:
        self.traces = list(traces)
        self.others = self._of(OFF, warner)
        tried = [
            _alone(name, value, int(settled))
            for settled in CANDIDATES["settled"]
            for name in RULES
            for value in CANDIDATES[name]
        ]
        self.single = {single: self._of(single, warner) for single in dict.fromkeys(tried)}

    def _of(self, thresholds: Thresholds, warner: Warner) -> Updates:
        with applied(thresholds):
            return np.array([inf if (at := warner(trace)) is None else float(at) for trace in self.traces])

    def under(self, thresholds: Thresholds) -> Updates:
        """The update of each run's first warning; infinite where there is none."""
        single = (_alone(name, getattr(thresholds, name), thresholds.settled) for name in RULES)
        return np.min([self.others, *(self.single[one] for one in single)], axis=0)

    def fit(self, of: Callable[[Trace], bool] = lambda _: True) -> Thresholds:
        """The best thresholds on these runs: most failing warned, at FALSE alarms at most."""
        bad, good = ([trace["outcome"] == what and of(trace) for trace in self.traces] for what in ("fails", "trains"))

        def merit(thresholds: Thresholds) -> tuple[float, ...]:
            spoken = self.under(thresholds) < inf
            false, warned = int(spoken[good].sum()), int(spoken[bad].sum())
            strict = (
                thresholds.settled,
                thresholds.strong,
                thresholds.leap,
                -thresholds.alike,
                -thresholds.nats,
                -thresholds.ignored,
            )  # of equals, what speaks least
            return (1.0, warned, -false, *strict) if false <= FALSE * sum(good) else (0.0, -false, warned, *strict)

        return max((Thresholds(*values) for values in product(*CANDIDATES.values())), key=merit)  # type: ignore[arg-type]

    def crossed(self) -> list[float]:
        """The first warning of each run with thresholds fitted on the runs of other families."""
        by_family: dict[str, Updates] = {}
        for trace in self.traces:
            family = trace["family"]
            if family not in by_family:
                by_family[family] = self.under(self.fit(lambda other, family=family: other["family"] != family))  # type: ignore[misc]
        return [float(by_family[trace["family"]][i]) for i, trace in enumerate(self.traces)]
