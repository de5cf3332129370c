import pytest
from typer.testing import CliRunner

from bathy.cli import app
from bathy.lab.bench import BENCHES, interleaved, load, purpose, ratio


def test_actions_take_turns_after_one_uncounted_round() -> None:
    calls: list[str] = []
    ticks = iter(range(100))
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, clock=lambda: next(ticks))
    assert calls == ["a", "b"] * 4
    assert seconds == {"a": [1, 1, 1], "b": [1, 1, 1]}


def test_a_ratio_is_a_median_within_its_interval() -> None:
    median, low, high = ratio([2.0, 2.2, 1.8, 2.0, 9.0] * 5, [1.0] * 25)
    assert median == 2.0
    assert 1.8 <= low <= 2.0 <= high <= 2.2


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_is_listed_with_its_purpose(name: str) -> None:
    assert callable(load(name).run)
    assert purpose(name)


def test_the_list_is_shown() -> None:
    shown = CliRunner().invoke(app, ["bench", "--list"]).output
    assert all(name in shown for name in BENCHES)
