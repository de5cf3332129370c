"""Claims: each predicate is one comparison of named numbers, and a verdict is what the numbers say."""

import math
import re
import statistics

import pytest

from bathy.errors import ConfigError
from bathy.lab.claims import CLAIMS, Claim, judge
from bathy.lab.claims.predicate import check, half_width, names

ITEMS = {
    *(f"figure-{number}" for number in (1, 3, 4, 5, 7, 8, 9, 10, 11)),
    *(f"table-{number}" for number in (1, 2, 3, 4)), "warmup", "initialisations", "rescaled", "europarl",
}  # fmt: skip


def claim(*predicates: str, seeds: int = 1) -> Claim:
    return Claim("id", "figure-1", "Section 1", "It holds.", "what is measured", predicates, seeds)


@pytest.mark.parametrize("row", CLAIMS.values(), ids=CLAIMS)
def test_every_claim_is_whole(row: Claim) -> None:
    assert row.needs and row.item in ITEMS
    assert re.match(r"(Section|Appendix|Figure|Table|Theorem|Corollary|Remark)s? ", row.place)
    assert row.says.endswith(".") and row.reading


def test_every_item_is_judged() -> None:
    assert {row.item for row in CLAIMS.values()} == ITEMS


@pytest.mark.parametrize(
    ("predicate", "numbers", "holds"),
    [
        ("a.x >= 1", {"a.x": 1.0}, "yes"),
        ("a.x > 1", {"a.x": 1.0}, "no"),
        ("a.x < b.x", {"a.x": 1.0, "b.x": 2.0}, "yes"),
        ("a.x <= 0.5 * b.x", {"a.x": 1.0, "b.x": 1.9}, "no"),
        ("abs(a.x - 3) <= 1", {"a.x": 2.0}, "yes"),
        ("max(a.x, -b.x) < min(1, log(b.x))", {"a.x": 0.5, "b.x": 2.0}, "yes"),
        ("a.x >= b.x", {"a.x": 1.0}, "missing"),
        ("a.x >= b.x", {"a.x": {"1": 1.0}, "b.x": {"2": 0.0}}, "missing"),
        ("a.x >= b.x", {"a.x": {"1": 3.0, "2": 3.2}, "b.x": 1.0}, "yes"),
        ("a.x >= b.x", {"a.x": {"1": 3.0, "2": 3.5}, "b.x": 1.0}, "spread"),
        ("a.x >= b.x", {"a.x": {"1": 3.0, "2": 3.5, "3": 3.2}, "b.x": 1.0}, "yes"),
        ("a.x > 0", {"a.x": {"1": 1.0, "2": 2.0, "3": 3.0}}, "spread"),
        ("a.x > 0", {"a.x": {"1": 1.2, "2": 2.0, "3": 2.8}}, "yes"),
        ("a.x >= b.x", {"a.x": {"1": 3.0, "2": -3.5}, "b.x": 0.0}, "spread"),
        ("a.x >= b.x", {"a.x": {"1": 1.0, "2": math.inf}, "b.x": 0.0}, "yes"),
        ("a.x >= b.x", {"a.x": {"1": -1.0, "2": math.inf}, "b.x": 0.0}, "spread"),
        ("a.x >= b.x", {"a.x": math.inf, "b.x": math.inf}, "missing"),
        ("a.x / b.x > 2", {"a.x": 1.0, "b.x": 0.0}, "yes"),
    ],
)
def test_a_predicate_holds_in_the_mean_unless_its_interval_covers_the_threshold(
    predicate: str, numbers: dict[str, float], holds: str
) -> None:
    assert check(predicate, numbers).holds == holds


@pytest.mark.parametrize("text", ["a.x", "a < b < c", "a == 1", "f(a) < 1", "a[0] < 1", "a.b('os') < 1", "a <", "'x' < 1"])
def test_a_predicate_is_arithmetic_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match="predicate"):
        names(text)


def test_all_predicates_must_hold_and_one_clear_failure_decides() -> None:
    both = claim("a.x > 1", "b.x > 1")
    assert judge(both, {"a.x": 2.0, "b.x": 2.0}).answer == "reproduced"
    assert judge(both, {"a.x": 0.0}).answer == "not reproduced"
    assert judge(both, {"a.x": 2.0}).answer == "not decidable"


def test_a_verdict_gives_the_figures_that_decide_it() -> None:
    verdict = judge(claim("a.x > 1", "b.x > 1"), {"a.x": {"1": 2.0, "2": 4.0}, "b.x": 0.25})
    assert verdict.why == "b.x > 1 (0.25)"
    assert verdict.row()["checks"][0]["numbers"] == {"a.x": {"1": 2.0, "2": 4.0}}


def test_what_is_not_decidable_says_why() -> None:
    spread = judge(claim("a.x > 1"), {"a.x": {"1": 2.0, "2": 0.5}})
    assert spread.answer == "not decidable" and "margin 0.25 ± 9.5" in spread.why
    assert judge(claim("a.x > b.x"), {"a.x": 1.0}).why == "a.x > b.x (not measured: b.x)"


def test_one_seed_decides_no_claim_that_asks_for_several() -> None:
    asked = claim("a.x > 1", seeds=3)
    assert judge(asked, {"a.x": {"1": 5.0}}).answer == "not decidable"
    assert judge(asked, {"a.x": {"1": 5.0}}).why == "a.x > 1 (5) (1 of 3 seeds)"
    assert judge(asked, {"a.x": {"1": 5.0, "2": 5.1}}).answer == "reproduced"


def test_half_width_is_students() -> None:
    """Against the 97.5 % quantile that integrating the density gives for two degrees of freedom: 4.303."""
    values = [1.0, 2.0, 4.0]
    t = half_width(values) * math.sqrt(3) / statistics.stdev(values)
    assert t == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-3)


def test_seeds_are_the_fewest_behind_any_number() -> None:
    numbers: dict[str, float | dict[str, float]] = {
        "a.x": {"1": 2.0, "2": 2.1},
        "b.x": 2.0,
        "b.adam_x": 2.0,
        "seeds": 8.0,
        "seeds.adam": 3.0,
    }
    assert [judge(claim(p), numbers).seeds for p in ("a.x > 1", "b.x > 1", "b.adam_x > 1", "c.x > 1")] == [2, 8, 3, 0]
    assert judge(claim("a.x > 1", "b.x > 1"), numbers).seeds == 2
