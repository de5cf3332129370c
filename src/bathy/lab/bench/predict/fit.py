"""Fit the odds on the grid and judge them on families that the fit has not seen."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bathy.clinic.odds import Odds
from bathy.lab.bench.predict.cases import Case

RIDGE = 1.0
"""Weight of the penalty on standardised coefficients, in observations: keeps the fit finite where classes separate."""


def fit(cases: Sequence[Case], updates: int, names: Sequence[str], ridge: float = RIDGE) -> Odds:
    """The logistic of these features with a small ridge, by Newton's method; rehearsals that broke down need none."""
    cases = [case for case in cases if case.decides and not case.features(updates)["broken"]]
    x, y = _matrix(cases, updates, names), np.array([float(case.fails) for case in cases])
    mean, scale = x.mean(0), np.maximum(x.std(0), 1e-6)
    z = np.column_stack([(x - mean) / scale, np.ones(len(x))])
    penalty = np.diag([ridge] * len(names) + [1e-3])
    w = np.zeros(z.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(z @ w, -30, 30)))
        hessian = (z * (p * (1 - p))[:, None]).T @ z + penalty
        step = np.linalg.solve(hessian, z.T @ (y - p) - penalty @ w)
        w += step
        if np.abs(step).max() < 1e-9:
            break
    weights = w[:-1] / scale
    return Odds(updates, dict(zip(names, weights.tolist(), strict=True)), float(w[-1] - weights @ mean))


def _matrix(cases: Sequence[Case], updates: int, names: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[case.features(updates)[name] for name in names] for case in cases], dtype=np.float64)


def left_out(
    cases: Sequence[Case], updates: int, names: Sequence[str], group: Callable[[Case], str], ridge: float = RIDGE
) -> list[float]:
    """The probability of failing for each case, from a fit that has seen no case of its group."""
    fits = {key: fit([case for case in cases if group(case) != key], updates, names, ridge) for key in set(map(group, cases))}
    return [fits[group(case)].failure(case.features(updates)) for case in cases]


def auroc(probabilities: Sequence[float], fails: Sequence[bool]) -> float:
    """The chance that a failing run has the higher probability of a pair; ties count half."""
    bad = [p for p, f in zip(probabilities, fails, strict=True) if f]
    good = [p for p, f in zip(probabilities, fails, strict=True) if not f]
    if not bad or not good:
        return math.nan
    wins = sum((b > g) + 0.5 * (b == g) for b in bad for g in good)
    return wins / (len(bad) * len(good))


def calibration(probabilities: Sequence[float], fails: Sequence[bool], bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean probability, share that failed, runs) for each bin of equal width that has runs."""
    found = []
    for i in range(bins):
        own = [(p, f) for p, f in zip(probabilities, fails, strict=True) if i == min(bins - 1, int(p * bins))]
        if own:
            found.append((sum(p for p, _ in own) / len(own), sum(f for _, f in own) / len(own), len(own)))
    return found


def ece(probabilities: Sequence[float], fails: Sequence[bool]) -> float:
    """Expected calibration error: the mean distance of probability and share, weighted by runs."""
    rows = calibration(probabilities, fails)
    return sum(abs(p - share) * runs for p, share, runs in rows) / sum(runs for *_, runs in rows)


def ece_by_chance(probabilities: Sequence[float], draws: int = 200) -> float:
    """The calibration error that these probabilities have if all of them are right: few runs leave some by chance."""
    draw = random.Random(0)
    return statistics.fmean(ece(probabilities, [draw.random() < p for p in probabilities]) for _ in range(draws))


def groups_of() -> dict[str, Callable[[Case], str]]:
    """What is left out as a whole, by name."""
    return {"family": lambda c: c.family, "architecture": lambda c: c.architecture, "task": lambda c: c.kind}
