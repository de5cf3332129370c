"""Every condition is told apart, on evidence; rules see rows only."""

import inspect
import math

import pytest
import tiny
import torch

import bathy
from bathy.clinic import rules
from bathy.clinic.diagnosis import LIVE, RULES, diagnose
from bathy.clinic.readings import Reading
from bathy.lab.bench.copying import Trial
from bathy.lab.bench.diagnosis import (
    at_start,
    with_loud_encoder_attention,
    with_overflow,
    with_silent_layers,
    with_underflow,
)


def names(rows: list[Reading]) -> list[str]:
    return [finding.name for finding in diagnose(rows)]


@pytest.mark.parametrize("scheme", ["pre_ln", "admin"])
@pytest.mark.parametrize("layers", [(8, 8), (16, 0), (0, 16)])
def test_models_that_train_are_found_healthy(scheme: str, layers: tuple[int, int]) -> None:
    assert names(at_start(Trial(scheme, scheme, layers, width=32))) == ["healthy"]


def test_a_deep_post_ln_model_amplifies_and_its_decoders_gradient_vanishes() -> None:
    found = diagnose(at_start(Trial("post_ln", "post_ln", (4, 18), width=32)))
    assert [finding.name for finding in found] == ["amplification", "vanishing"]
    assert "decoder" in found[0].title and "stabilise_" in found[0].advice


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (with_loud_encoder_attention, "vanishing"),
        (with_silent_layers, "silent"),
        (with_overflow, "overflow"),
        (with_underflow, "underflow"),
    ],
)
def test_a_condition_that_was_made_is_the_worst_that_is_found(make: object, expected: str) -> None:
    scheme, depth = ("post_ln", 4) if expected == "vanishing" else ("pre_ln", 3)
    found = diagnose(make(Trial(scheme, scheme, (depth, depth), width=32)))
    assert found[0].name == expected and found[0].evidence


def test_an_overflow_is_found_where_it_began() -> None:
    found = diagnose(with_overflow(Trial("pre_ln", "pre_ln", (3, 2), width=32)))
    assert "encoder.layers.2.ffn" in found[0].title


def shares(values: dict[int, float], site: str = "a", index: int = 1) -> list[Reading]:
    return [Reading("branch_share", value, step=step, site=site, stack="s", index=index) for step, value in values.items()]


def moved(values: dict[int, float]) -> list[Reading]:
    rows = [Reading("weight", 2.0, step=step, site="a", role="q") for step in values]
    return rows + [Reading("weight_update", 2 * value, step=step, site="a", role="q") for step, value in values.items()]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (shares({1: 2.4, 20: 4.5}), True),  # grown 1.9 times, and strong
        (shares({1: 1.0, 20: 2.5}), False),  # grown, but weak
        (shares({1: 4.0, 20: 5.0}), False),  # strong, but not grown
        (moved({1: 0.02, 2: 0.02, 4: 0.02}), True),
        (moved({1: 0.02, 2: 0.02, 4: 0.002}), False),  # the first updates of Adam are large
        (moved({1: 0.005, 2: 0.005, 4: 0.005}), False),  # wide models move as much in health
        (moved({1: 0.005, 2: 0.005, 4: 0.005}) + shares({1: 1.0, 4: 1.4}), True),  # unless their branches grow with it
        ([Reading("loss", math.nan, step=9)], True),
    ],
)
def test_a_learning_rate_is_too_high_by_growth_or_by_updates(rows: list[Reading], found: bool) -> None:
    assert (rules.learning_rate(rows) is not None) is found


@pytest.mark.parametrize(
    ("gap", "loss", "memory", "expected"),
    [(0.001, 2.0, 0.01, "dead_encoder"), (0.001, 2.0, 0.6, "source_unused"), (1.0, 2.0, 0.01, None), (0.001, 4.0, 0.01, None)],
)
def test_an_encoder_is_dead_when_the_loss_fell_without_it(gap: float, loss: float, memory: float, expected: str | None) -> None:
    values = {"source_gap": gap, "loss": loss, "memory_variance": memory, "uniform_loss": 4.1}
    found = rules.dead_encoder([Reading(name, value, step=100) for name, value in values.items()])
    assert (found and found.name) == expected


def test_amplification_counts_at_the_start_and_later_only_where_the_output_still_moves() -> None:
    strong = [row for i in range(20) for row in shares({0: 0.4}, site=str(i), index=i + 1)]
    late = [row for i in range(20) for row in shares({500: 0.4}, site=str(i), index=i + 1)]
    moving = [Reading("output_change", 5e-3, step=500, stack="s", layer=10)]
    still = [Reading("output_change", 1e-4, step=500, stack="s", layer=10)]
    assert [rules.amplification(rows) is not None for rows in (strong, late, late + moving, late + still)] == [
        True, False, True, False,
    ]  # fmt: skip


def test_every_finding_has_evidence_and_says_what_to_do() -> None:
    rows = at_start(Trial("post_ln", "post_ln", (12, 0), width=32)) + at_start(Trial("rezero", "rezero", (2, 2), width=32))
    found = diagnose(rows)
    assert len(found) >= 2 and all(finding.evidence and finding.cause and finding.advice for finding in found)
    assert all(str(evidence.value) and evidence.reference in str(finding) for finding in found for evidence in finding.evidence)


def test_rules_see_no_scheme_and_no_class() -> None:
    code = "".join(inspect.getsource(rule) for rule in RULES).split('"""')[0::2]
    conditions = "".join(line for part in code for line in part.splitlines() if '"' not in line)
    assert not any(name in conditions for name in (*bathy.SCHEMES, "place", "config", "isinstance"))
    assert set(LIVE) <= set(RULES)


def test_no_rows_no_findings_and_all_silent_is_a_note() -> None:
    assert diagnose([]) == [] and diagnose([Reading("seconds", 1.0)]) == []
    model = tiny.model("rezero")
    found = bathy.examine(model, tiny.batch(model), exams=["activations"]).findings
    assert [(finding.name, finding.severity) for finding in found] == [("silent", "note"), ("healthy", "healthy")]
    assert torch.isfinite(torch.tensor([evidence.value for finding in found for evidence in finding.evidence])).all()
