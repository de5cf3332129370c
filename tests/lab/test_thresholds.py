"""Live thresholds are fitted on runs, and a family is never judged by thresholds that were fitted on it."""

from dataclasses import replace
from math import inf

import pytest

from bathy.lab.bench import thresholds
from bathy.lab.bench.thresholds import OFF, Thresholds, Trace, Warnings, applied, collapse, shipped, stability


def trace(family: str, outcome: str, size: float) -> Trace:
    return {"family": family, "outcome": outcome, "size": size}


def warner(run: Trace) -> int | None:
    return 10 if run["size"] > stability.STRONG else None


def test_thresholds_hold_within_the_block_only() -> None:
    before = shipped()
    with pytest.raises(ZeroDivisionError), applied(Thresholds(7.0, 3.0, 1e-3, 1e-2, 4, 0.5)):
        assert (
            shipped() == Thresholds(7.0, 3.0, 1e-3, 1e-2, 4, 0.5)
            and {n: x for n, _, x in collapse.SAME}["output_token_variance"] == 1e-6
        )
        raise ZeroDivisionError
    assert shipped() == before


def test_the_fit_warns_of_most_failing_runs_at_few_false_alarms() -> None:
    runs = [trace("a", "fails", 5.5), trace("a", "fails", 3.7), trace("b", "trains", 3.6), trace("b", "trains", 1.0)]
    found = Warnings(runs, warner)
    assert found.fit().strong == 5.0  # 3.5 would warn of the second, too, and of a healthy run; of 4 and 5 the stricter
    assert list(found.under(found.fit())) == [10, inf, inf, inf]
    assert list(found.under(Thresholds(3.0, 4.0, 1e-5, 1e-5, 16, 0.003))) == [10, 10, 10, inf]


def test_a_family_is_judged_by_thresholds_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        trace("a", "fails", 3.2),
        trace("a", "fails", 5.2),
        trace("b", "fails", 5.3),
        trace("b", "trains", 1.0),
        trace("c", "trains", 1.0),
    ]
    found = Warnings(runs, warner)
    assert (
        found.fit() == Thresholds(3.0, 4.0, 1e-5, 1e-5, 16, 0.003) and found.fit(lambda run: run["family"] != "a").strong == 5.0
    )
    assert found.crossed() == [inf, 10, 10, inf, inf]  # of a's first run only a's own runs could tell


def test_rules_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Thresholds] = []
    monkeypatch.setattr(
        thresholds,
        "CANDIDATES",
        {"strong": (3.0,), "leap": (2.0,), "alike": (1e-5,), "nats": (1e-4,), "settled": (8,), "ignored": (0.01,)},
    )
    Warnings([trace("a", "fails", 5.0)], lambda _: seen.append(shipped()))
    alone = [replace(OFF, strong=3.0), replace(OFF, leap=2.0), replace(OFF, ignored=0.01)]
    assert seen == [OFF, *alone, replace(OFF, alike=1e-5, settled=8), replace(OFF, nats=1e-4, settled=8)]
