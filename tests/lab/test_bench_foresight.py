"""The benchmarks of forecasts, warnings and audits: what they compute, and that the shipped odds are the fit of the grid."""

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch

from bathy.clinic.odds import fitted
from bathy.lab.bench import monitor
from bathy.lab.bench.predict import COMMITTED, LOOKS, READINGS, table_rows
from bathy.lab.bench.predict.cases import cases_of, compact, load, settled
from bathy.lab.bench.predict.fit import auroc, calibration, ece, ece_by_chance, fit
from bathy.lab.bench.predict.grid import RATES, Run, designs, held_out, small
from bathy.lab.bench.predict.models import Design
from bathy.lab.bench.predict.outcome import Ending, settle
from bathy.lab.bench.predict.rates import Rate, crossing
from bathy.lab.bench.predict.runs import look, make, read, run_of
from bathy.lab.bench.predict.text import PAD, Kind, batches, unigram_entropy, vocabulary


@pytest.mark.parametrize("look", LOOKS)
def test_the_shipped_odds_are_the_fit_of_the_committed_grid(look: str) -> None:
    odds = fit(cases_of(load(COMMITTED), "development", "held out"), LOOKS[look], READINGS)
    assert fitted(look).weights == pytest.approx(odds.weights) and fitted(look).bias == pytest.approx(odds.bias)


ROOT = Path(__file__).parents[2]


def test_the_pages_show_what_the_benchmarks_wrote() -> None:
    forecasts, warnings = (
        json.loads((ROOT / f"docs/results/bench_{name}.json").read_text(encoding="utf-8"))["result"]
        for name in ("predict", "monitor")
    )
    predict, clinic = ((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("predict", "clinic"))
    for row in table_rows(forecasts["looks"]):
        assert f"| {' | '.join(row)} |" in predict
    for row in warnings["grid"]:
        assert f"| {' | '.join(row.values())} |" in clinic


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    assert auroc([0.9, 0.4, 0.4, 0.1], [True, True, False, False]) == (1 + 1 + 0.5 + 1) / 4
    assert math.isnan(auroc([0.5], [True]))


def test_calibration_compares_probability_and_share() -> None:
    rows = calibration([0.05, 0.06, 0.95, 1.0], [False, False, True, False])
    assert [value for row in rows for value in row] == pytest.approx([0.055, 0.0, 2, 0.975, 0.5, 2])
    assert ece([0.05, 0.06, 0.95, 1.0], [False, False, True, False]) == pytest.approx((0.055 + 0.475) / 2)


def test_chance_leaves_a_calibration_error_that_falls_with_the_number_of_runs() -> None:
    few, many = ece_by_chance([0.3] * 20), ece_by_chance([0.3] * 2000)
    assert few == pytest.approx(0.8 * math.sqrt(0.3 * 0.7 / 20), rel=0.2) and many < 0.2 * few  # mean |error| of a share
    assert ece_by_chance([0.0, 1.0] * 10) == 0


@pytest.mark.parametrize(
    ("held", "gap", "outcome"),
    [
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3], [], "trains"),
        ([3.3, 3.2, 3.2, 3.2, 3.2, 3.2, 3.2, 3.2], [], "fails"),  # guesses by frequency
        ([4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3], [], "slow"),  # still falling
        ([3, 2.5, 2.3, 2.2, 2.2, 2.5, 2.9, 3.0], [], "fails"),  # lost what it had
        ([3, 2.5, math.nan], [], "fails"),
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.5, 2.5], [0.0] * 5 + [0.05, 0.06, 0.07], "trains"),
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.5, 2.5], [0.0] * 8, "fails"),  # ignores the source
    ],
)
def test_outcomes_follow_the_rules(held: list[float], gap: list[float], outcome: str) -> None:
    assert Ending(3.2, held, gap).outcome == outcome


@pytest.mark.parametrize(
    ("held", "gap", "decided"),
    [
        ([3.1, 3.0, 2.9, 2.8], [], True),  # clearly trains
        ([3.2, 3.1, 3.1, 3.05], [], False),  # below guessing, not by much
        ([3.1, 3.0, 2.9, 2.8], [0.0, 0.0, 0.0, 0.05], False),  # uses its source, but little
        ([3.3, 3.2, 3.2, 3.2], [], False),  # at guessing, for one stage only
        ([3.3] + [3.21] * 7, [], True),
        ([3.2] + [3.15] * 7, [], False),  # a little better than guessing
        ([4.0, 3.8, 3.7, 3.6, 3.5, 3.45, 3.4, 3.35], [], False),  # still falling
        ([3.0, math.nan], [], True),
    ],
)
def test_a_run_goes_on_until_it_is_decided(held: list[float], gap: list[float], decided: bool) -> None:
    assert Ending(3.2, held, gap).decided == decided


def test_a_slow_run_fails_where_a_lower_rate_trains() -> None:
    slow = Ending(3.2, [4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3], [])
    good = Ending(3.2, [3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3], [])
    assert settle({2: good, 5: slow}) == {2: "trains", 5: "fails"} and settle({2: slow, 5: good}) == {2: "slow", 5: "trains"}


def test_a_run_trails_where_a_lower_rate_has_twice_its_improvement_after_as_many_updates() -> None:
    good = Ending(3.2, [3.0, 2.8, 2.6, 2.4], [])  # ended early: it clearly trains
    late = Ending(3.2, [3.2, 3.2, 3.1, 2.9, 2.7, 2.5, 2.4, 2.3], [])
    near = Ending(3.2, [3.1, 3.0, 2.9, 2.7, 2.6, 2.5, 2.4, 2.3], [])
    assert settle({2: good, 5: late, 9: near}) == {2: "trains", 5: "trails", 9: "trains"}
    assert settle({2: late, 5: good}) == {2: "trains", 5: "trains"}  # a higher rate that is faster says nothing of a lower one


def test_runs_of_one_design_are_settled_apart_where_they_were_optimised_otherwise() -> None:
    slow, good = [4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3], [3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3]
    rows = [
        {"key": f"{warmup} {lr}", "design": {}, "steps": 8, "optimizer": "Adam", "beta2": 0.9, "warmup": warmup, "lr": lr,
         "ending": {"unigram": 3.2, "held_out": held, "source_gap": []}}
        for warmup, lr, held in ((1, 1e-3, good), (1, 1e-2, slow), (9, 1e-2, slow))
    ]  # fmt: skip
    assert settled(rows) == {"1 0.001": "trains", "1 0.01": "fails", "9 0.01": "slow"}


def test_every_design_is_run_at_the_same_rates_and_whole_families_are_held_out() -> None:
    runs = list(small())
    assert len(runs) >= 200 and len({run.key for run in runs}) == len(runs)
    for design in designs():
        rates = [run.lr for run in runs if run.design == design]
        assert rates == list(RATES[len(RATES) - len(rates) :]) and len(rates) >= 5
    families = {run.design.family for run in runs}
    assert held_out() < families and len(held_out()) == 7 and held_out() == held_out()


def test_the_crossing_is_where_the_probability_is_a_half() -> None:
    points = [(rate, 1 / (1 + (3e-3 / rate) ** 2)) for rate in (1e-4, 1e-3, 1e-2)]
    assert crossing(points) == pytest.approx(3e-3, rel=1e-3)
    assert crossing(points, 0.1) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("told", "trained", "failed", "right"),
    [
        (3e-3, 2e-3, 4e-3, True),
        (9e-3, 2e-3, 4e-3, False),
        (5e-3, 9e-3, math.inf, True),
        (4e-3, 9e-3, math.inf, False),
        (1e-4, 0.0, 1e-4, True),
    ],
)
def test_a_rate_is_right_within_a_factor_of_two(told: float, trained: float, failed: float, right: bool) -> None:
    assert Rate(told, told, told, trained, failed).right == right


def test_a_run_is_made_recorded_and_read_again(tmp_path: Path) -> None:
    runs = [Run(Design("post_ln", "causal", 2, 32), 1e-3, 1, 0.98, "Adam", 8)]
    make(runs, tmp_path / "runs.jsonl")
    make(runs, tmp_path / "runs.jsonl")  # what is there is not made again
    (row,) = read(tmp_path / "runs.jsonl").values()
    assert run_of(row) == runs[0] and len(row["losses"]) == 8 and len(row["ending"]["held_out"]) == 4
    (case,) = cases_of([compact([row])[0] | {"outcome": "fails"}])
    assert len(case.points) == 21 and case.points[1].drift > 0 and case.features(4)["gradient"] > 0
    (trace,) = monitor.traces_of([row])
    assert [sample["step"] for sample in trace["samples"]] == [1, 2, 4, 8]
    assert {reading.quantity for reading in monitor.rows_of(trace["samples"][0])} > {"branch_share", "information", "weight"}


def test_the_live_rules_catch_more_failing_runs_than_z_scores_with_fewer_false_alarms() -> None:
    traces = load(monitor.TRACES)[::3]
    bad, good = ([t for t in traces if t["outcome"] == outcome] for outcome in ("fails", "trains"))
    ours = [sum(monitor.shipped(trace) is not None for trace in part) for part in (bad, good)]
    theirs = [sum(monitor.z_score(trace["losses"], 3.0) is not None for trace in part) for part in (bad, good)]
    assert ours[0] > theirs[0] and ours[1] < theirs[1]


@pytest.mark.parametrize("kind", ["causal", "masked", "translation"])
def test_guessing_is_measured_on_the_text_that_runs_are_measured_on(kind: Kind) -> None:
    class Guesses(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            seen = torch.cat([example.target.flatten() for example in islice(batches(kind, 10_001), 200)])
            counts = torch.bincount(seen[seen.ne(PAD)], minlength=vocabulary(kind)) + 0.01
            return (counts / counts.sum()).log().expand(*inputs[-1].shape, -1)

    ending = look(Guesses(), kind, Ending(unigram_entropy(kind), [], []))
    assert ending.gained == pytest.approx(0, abs=1e-4) and ending.source_gap == ([0.0] if kind == "translation" else [])
