"""Benchmarks: what a thing costs, compared inside one run, never asserted in a test.

Each module here has `run(data, quick) -> dict`: it prints a table and returns its numbers;
`bathy bench` adds what made them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from bathy.lab.bench.apart import Apart

BENCHES: dict[str, str] = {
    "admin": "bathy.lab.bench.admin",
    "audit": "bathy.lab.bench.audit",
    "diagnosis": "bathy.lab.bench.diagnosis",
    "foreign": "bathy.lab.bench.foreign",
    "monitor": "bathy.lab.bench.monitor",
    "postmortem": "bathy.lab.bench.postmortem",
    "predict": "bathy.lab.bench.predict",
    "ring": "bathy.lab.bench.ring",
    "sites": "bathy.lab.bench.sites",
    "prepare": "bathy.lab.bench.prepare",
    "translate": "bathy.lab.bench.translate",
    "serve": "bathy.lab.bench.serve",
    "distil": "bathy.lab.bench.distil",
    "depth": "bathy.lab.bench.depth",
    "train": "bathy.lab.bench.train",
    "lm": "bathy.lab.bench.lm",
    "lm-parts": "bathy.lab.bench.language.parts",
    "lm-deep": "bathy.lab.bench.language.deep",
}
"""Name to the module that measures it; `bathy bench --list` shows the first line of its docstring."""

Timer = Callable[[], float]


def interleaved(
    actions: Mapping[str, Callable[[], object]], rounds: int, clock: Timer = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each action in each round, run as A, B, A, B …, after one round that is not counted.

    An action in a process of its own has measured itself.
    """
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = clock()
            action()
            seconds[name].append(action.seconds if isinstance(action, Apart) else clock() - start)
    return seconds


def ratio(of: list[float], to: list[float]) -> tuple[float, float, float]:
    """Median of the paired ratios, with the 95 % interval of the median by order statistics."""
    ratios = sorted(a / b for a, b in zip(of, to, strict=True))
    half = 0.98 * len(ratios) ** 0.5  # normal approximation of the binomial(n, 1/2) quantile
    low, high = max(0, int(len(ratios) / 2 - half)), min(len(ratios) - 1, int(len(ratios) / 2 + half))
    return statistics.median(ratios), ratios[low], ratios[high]


def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    return import_module(BENCHES[name])


def purpose(name: str) -> str:
    """The first line of a benchmark's docstring."""
    return (load(name).__doc__ or "").partition("\n")[0]
