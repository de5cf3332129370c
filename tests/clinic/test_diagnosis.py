# mypy: disable-error-code="union-attr, operator, index"
"""Every condition is told apart, on evidence; rules see rows only."""

import ast
import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

import bathy
from bathy.clinic import rules
from bathy.clinic.diagnosis import diagnose
from bathy.clinic.readings import Reading
from bathy.clinic.rules.collapse import HEARD
from bathy.errors import ConfigError
from bathy.lab.bench.copying import Trial
from bathy.lab.bench.diagnosis import (
    at_start,
    with_loud_cross_attention,
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
        (with_loud_cross_attention, "vanishing"),
        (with_silent_layers, "silent"),
        (with_overflow, "overflow"),
        (with_underflow, "underflow"),
    ],
)
def test_a_condition_that_was_made_is_the_worst_that_is_found(make: Any, expected: str) -> None:
    scheme, depth = ("post_ln", 4) if expected == "vanishing" else ("pre_ln", 3)
    found = diagnose(make(Trial(scheme, scheme, (depth, depth), width=32)))
    assert found[0].name == expected and found[0].evidence


def test_an_overflow_is_found_where_it_began() -> None:
    found = diagnose(with_overflow(Trial("pre_ln", "pre_ln", (3, 2), width=32)))
    assert "encoder.layers.2.ffn" in found[0].title


def test_a_broken_weight_is_named_where_it_breaks_things_and_no_rate_is_blamed() -> None:
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True), 3)
    with torch.no_grad():
        model.layers[1].linear1.weight[0, 0] = math.nan
    batch = torch.randn(3, 5, 16)
    found = bathy.examine(model, batch, lr=1e-3).findings
    assert found[0].name == "not_finite" and found[0].site == "layers.1.ffn"
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with bathy.Monitor(model, optimizer=optimizer, every=1, batch=batch) as monitor:
        warned = []
        for _ in range(3):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warned += [finding.name for finding in monitor.step(loss)]
    assert not {"step", "learning_rate"} & {finding.name for finding in found} and warned == ["not_finite"]


def shares(values: dict[int, float], site: str = "a", index: int = 1) -> list[Reading]:
    return [Reading("branch_share", value, step=step, site=site, stack="s", index=index) for step, value in values.items()]


def moved(values: dict[int, float], stack: str = "s", usual: float = 1.0) -> list[Reading]:
    rows = [Reading("weight", 2.0, step=step, site=stack or "embedding", stack=stack) for step in values]
    rows += [Reading("usual_update", usual, step=step) for step in values if stack]
    return rows + [
        Reading("weight_update", 2 * value, step=step, site=stack or "embedding", stack=stack) for step, value in values.items()
    ]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (shares({1: 2.4, 20: 5.5}), True),  # grown, and strong
        (shares({1: 1.0, 20: 2.5}), False),  # grown, but weak
        (shares({1: 5.2, 20: 5.3}), False),  # strong, but not grown
        (shares({1: 2.0, 100: 5.0, 200: 5.5, 300: 6.0, 400: 6.5}), False),  # grown, but slowly, as a healthy Post-LN stack
        (shares({1: 2.4, 4: 5.5}), False),  # too early to tell
        (moved({8: 0.4, 16: 0.4, 32: 0.4}), True),  # the weights are replaced
        (moved({1: 0.4, 2: 0.4, 4: 0.4}), False),  # the first updates of Adam are large
        (moved({1: 5.0}, usual=5.0), True),  # but not that large: nothing of the weights is left
        (moved({1: 5.0, 2: 0.4}, usual=5.0), False),  # said at once, not again later
        (moved({8: 0.02, 16: 0.02, 32: 0.02}), False),  # small matrices move as much in health
        (moved({8: 0.02, 16: 0.02, 32: 0.02}, usual=0.004), True),  # unless that is more than the optimiser makes of the rate
        ([Reading("loss", math.nan, step=9)], True),
    ],
)
def test_a_learning_rate_is_too_high_by_growth_or_by_updates(rows: list[Reading], found: bool) -> None:
    assert (rules.RULES["learning_rate"].look(rows) is not None) is found


@pytest.mark.parametrize(
    ("gap", "loss", "memory", "expected"),
    [(0.001, 2.0, 0.01, "dead_encoder"), (0.001, 2.0, 0.6, "source_unused"), (1.0, 2.0, 0.01, None), (0.001, 4.0, 0.01, None)],
)
def test_an_encoder_is_dead_when_the_loss_fell_without_it(gap: float, loss: float, memory: float, expected: str | None) -> None:
    values = {"source_gap": gap, "loss": loss, "memory_variance": memory, "uniform_loss": 4.1}
    found = rules.RULES["dead_encoder"].look([Reading(name, value, step=100) for name, value in values.items()])
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("influence", "found"),
    [
        ({HEARD: 0.001, HEARD + 8: 0.002}, True),
        ({HEARD: 0.001, HEARD + 8: 0.2}, False),  # it comes back
        ({HEARD: 0.2, HEARD + 8: 0.001}, False),  # one sample
        ({1: 0.001, 8: 0.002}, False),  # every decoder begins with the target's frequencies
        ({}, False),  # no source
    ],
)
def test_a_source_is_ignored_where_the_loss_does_not_depend_on_it(influence: dict[int, float], found: bool) -> None:
    rows = [Reading("source_influence", value, step=step) for step, value in influence.items()]
    assert (rules.RULES["source_ignored"].look(rows) is not None) is found


@pytest.mark.parametrize(
    ("now", "error", "found"),
    [(3.0, 0.01, True), (2.25, 0.01, False), (3.0, 0.2, False), (2.0, 0.01, False)],  # far above; not far; noisy; not above
)
def test_a_loss_has_risen_where_its_level_is_far_above_the_lowest(now: float, error: float, found: bool) -> None:
    values = {"loss_level": now, "lowest_level": 2.0, "level_error": error}
    rows = [Reading(name, value, step=100) for name, value in values.items()]
    assert (rules.RULES["rise"].look(rows) is not None) is found


def test_while_training_amplification_counts_where_updates_are_large_enough_to_be_amplified() -> None:
    start = [row for i in range(20) for row in shares({1: 0.4}, site=str(i), index=i + 1)]
    found = {
        (step, size): rules.RULES["amplification"].look(start + moved({step: size})) is not None
        for step, size in ((8, 0.01), (8, 1e-4), (1, 0.01))
    }
    assert found == {(8, 0.01): True, (8, 1e-4): False, (1, 0.01): False}  # Adam's first updates are large in any run


def test_amplification_counts_at_the_start_and_later_only_where_the_output_still_moves() -> None:
    strong = [row for i in range(20) for row in shares({0: 0.4}, site=str(i), index=i + 1)]
    late = [row for i in range(20) for row in shares({500: 0.4}, site=str(i), index=i + 1)]
    moving = [Reading("output_change", 5e-3, step=500, stack="s", layer=10)]
    still = [Reading("output_change", 1e-4, step=500, stack="s", layer=10)]
    assert [rules.RULES["amplification"].look(rows) is not None for rows in (strong, late, late + moving, late + still)] == [
        True, False, True, False,
    ]  # fmt: skip


def test_every_finding_has_evidence_and_says_what_to_do() -> None:
    rows = at_start(Trial("post_ln", "post_ln", (12, 0), width=32)) + at_start(Trial("rezero", "rezero", (2, 2), width=32))
    found = diagnose(rows)
    assert len(found) >= 2 and all(finding.evidence and finding.cause and finding.advice for finding in found)
    assert all(str(evidence.value) and evidence.reference in str(finding) for finding in found for evidence in finding.evidence)


FORBIDDEN = {*bathy.SCHEMES, "place", "config", "isinstance", "scheme", "type"}


def what_decides(source: str) -> set[str]:
    """Names and strings in the code of a module's functions, without docstrings and without what a finding says."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Finding", "Evidence"):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        found.update({getattr(node, "id", ""), getattr(node, "attr", "")} - {""})
        for child in ast.iter_child_nodes(node):
            visit(child)

    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            visit(function)
    return found


def test_rules_see_no_scheme_and_no_class() -> None:
    for module in {inspect.getmodule(rule.look) for rule in rules.RULES.values()}:
        assert module is not None and not what_decides(inspect.getsource(module)) & FORBIDDEN


@pytest.mark.parametrize("condition", ['row.model == "post_ln"', "isinstance(model, Transformer)", "site.scheme", 'x["admin"]'])
def test_a_rule_that_looks_at_a_scheme_would_be_seen(condition: str) -> None:
    rule = f'''def rule(rows):\n    """Advice may say post_ln."""\n    return Finding("use admin") if {condition} else None'''
    assert what_decides(rule) & FORBIDDEN
    assert not what_decides(rule.replace(condition, "rows")) & FORBIDDEN


def test_no_rows_no_findings() -> None:
    assert diagnose([]) == [] and diagnose([Reading("seconds", 1.0)]) == []


@pytest.mark.parametrize("scheme", ["rezero", "fixup", "layer_scale", "keel"])
def test_a_model_that_starts_with_small_branches_is_healthy_but_not_after_many_updates(scheme: str) -> None:
    model = tiny.model(scheme, (20, 0))
    found = bathy.examine(model, tiny.batch(model)).findings
    assert [finding.name for finding in found] == ["healthy"]
    late = [row for i in range(9) for row in shares({500: 1e-9}, site=str(i), index=i + 1)]
    assert names(late) == ["silent"]


def test_a_learning_rate_that_is_asked_about_reaches_a_finding() -> None:
    model = tiny.model("pre_ln")
    assert names(bathy.examine(model, tiny.batch(model), lr=1e-4).readings) == ["healthy"]
    found = bathy.examine(model, tiny.batch(model), lr=100.0).findings
    assert found[0].name == "step" and "100" in found[0].title


def variances(values: dict[int, list[float]], entry: float = 0.9) -> list[Reading]:
    rows = [
        Reading("token_variance", value, step=step, site=f"s.{i}", stack="s", index=i)
        for step, column in values.items()
        for i, value in enumerate(column, 1)
    ]
    return rows + [Reading("input_token_variance", entry, step=step, stack="s", index=1) for step in values]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        (variances({0: [0.5, 1e-6, 1e-7]}), "s.2"),  # one examination decides at once, and names the largest drop
        (variances({0: [0.5, 0.1, 0.01]}), None),
        (variances({16: [0.5, 1e-6], 32: [0.5, 1e-6]}), "s.2"),
        (variances({16: [0.5, 1e-6], 32: [0.5, 0.1]}), None),  # it has recovered
        (variances({4: [0.5, 1e-6], 8: [0.5, 1e-6]}), None),  # too early
        (variances({0: [1e-6, 1e-6]}, entry=2e-6), None),  # the batch itself has one token
    ],
)
def test_tokens_that_have_become_alike_are_found_in_any_stack(rows: list[Reading], where: str | None) -> None:
    found = rules.RULES["collapse"].look(rows)
    assert (found and found.site) == where


@pytest.mark.parametrize(("omega", "stack", "way_out"), [(2.5, "s", "Pre-LN"), (1.0, "s", "Admin"), (2.5, "other", "Admin")])
def test_a_collapsed_stack_that_has_omega_is_not_advised_to_take_admin(omega: float, stack: str, way_out: str) -> None:
    rows = [*variances({0: [0.5, 1e-6]}), Reading("omega", omega, stack=stack)]
    assert f"or {way_out} (" in rules.RULES["collapse"].look(rows).advice


def test_a_regression_model_that_returns_one_value_is_found() -> None:
    torch.manual_seed(0)
    body = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    model = torch.nn.Sequential(body, torch.nn.Linear(8, 1))
    x = torch.randn(6, 5, 8)
    assert bathy.examine(model, x, exams=["activations"]).findings[0].name == "healthy"
    with torch.no_grad():
        model[1].weight.zero_(), model[1].bias.fill_(0.7)
    found = bathy.examine(model, x, exams=["activations"]).findings[0]
    assert (found.name, found.severity) == ("collapse", "serious") and "same for every input" in found.title


def test_a_norm_over_two_numbers_and_a_norm_with_gamma_zero_are_named() -> None:
    narrow = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(2, 1, 4, 0.0, batch_first=True))
    found = bathy.examine(narrow, torch.randn(4, 5, 2), exams=["activations", "norms"]).findings
    assert found[0].name == "norm_signs" and found[0].site == "0.norm1"
    cut = tiny.model("pre_ln")
    with torch.no_grad():
        cut.decoder.final.weight.zero_()
    found = bathy.examine(cut, tiny.batch(cut)).findings
    assert ("norm_zero", "decoder.final") in [(finding.name, finding.site) for finding in found]


def test_saturated_attention_is_named_by_head() -> None:
    rows = [Reading("head_logit", value, site="a", role=f"head {i}") for i, value in enumerate((3.0, 80.0), 1)]
    rows += [Reading("head_entropy", value, site="a", role=f"head {i}") for i, value in enumerate((0.9, 0.01), 1)]
    found = rules.RULES["attention_logits"].look(rows)
    assert found is not None and "a head 2" in found.title
    sharp = [replace(row, value=0.9) if row.quantity == "head_entropy" else row for row in rows]
    assert rules.RULES["attention_logits"].look(sharp) is None


def test_an_embedding_that_moves_much_further_than_the_branches_is_named() -> None:
    look = rules.RULES["outside_update"].look
    rows = moved({8: 0.01}) + moved({8: 0.2}, stack="")
    found = look(rows)
    assert found is not None and found.site == "embedding" and "20%" in found.title
    assert look(moved({8: 0.1}) + moved({8: 0.2}, stack="")) is None and look(moved({8: 0.01})) is None


def test_a_spike_says_what_moved_first() -> None:
    losses = {"loss_peak": 5.0, "loss_mean": 2.0, "loss_deviation": 0.1}
    rows = [Reading(name, value, step=40) for name, value in losses.items()]
    for site, series in (("a", (1.0, 1.1, 1.0, 1.0, 9.0)), ("b", (1.0, 1.0, 1.1, 4.0, 9.0))):
        rows += [Reading("gradient", value, step=10 * i, site=site) for i, value in enumerate(series)]
    found = rules.RULES["spike"].look(rows)
    assert found is not None and found.site == "b" and "at update 30" in str(found)
    assert rules.RULES["spike"].look([replace(row, value=2.2) if row.quantity == "loss_peak" else row for row in rows]) is None


@pytest.mark.parametrize("series", [(1.0, math.inf, math.inf, 1.0), (1.0, 5e-324, 5e-324, 1e308), (0.0, 0.0, math.nan, 0.0)])
def test_a_spike_among_readings_that_left_all_range_is_still_told(series: tuple[float, ...]) -> None:
    losses = {"loss_peak": 5.0, "loss_mean": 2.0, "loss_deviation": 0.1}
    rows = [Reading(name, value, step=40) for name, value in losses.items()]
    rows += [Reading("gradient", value, step=10 * i, site="a") for i, value in enumerate(series, 1)]
    assert rules.RULES["spike"].look(rows) is not None


@pytest.mark.parametrize("name", rules.RULES)
def test_each_rule_can_be_switched_off(name: str) -> None:
    assert name not in rules.chosen([name]) and name in rules.chosen()


def test_a_rule_that_does_not_exist_is_an_error_that_names_the_nearest() -> None:
    model = tiny.model()
    with pytest.raises(ConfigError, match="Did you mean silent"):
        bathy.examine(model, tiny.batch(model), without=["silentt"])
    deep = at_start(Trial("post_ln", "post_ln", (12, 0), width=32))
    assert diagnose(deep, without=["amplification"])[0].name == "healthy"
