"""Divergence is seen, and health is left alone."""

import math

import numpy as np

from bathy.train.divergence import Divergence

ENTROPY, WARMUP = 5.7, 100
IGNORES = "the decoder hardly uses the source"


def first_stop(nlls: list[float]) -> tuple[int, str]:
    watch = Divergence(ENTROPY, WARMUP)
    for step, nll in enumerate(nlls, 1):
        if why := watch.update(step, nll):
            return step, why
    return 0, ""


def noisy(values: np.ndarray) -> list[float]:
    return list(values + np.random.default_rng(0).normal(0, 0.3, len(values)))


def test_a_run_that_learns_is_left_alone() -> None:
    steps = np.arange(1, 6000)
    assert first_stop(noisy(2 + 7 * np.exp(-steps / 400))) == (0, "")


def test_a_loss_that_stays_at_the_unigram_entropy_stops() -> None:
    step, why = first_stop(noisy(np.maximum(9 - np.arange(6000) / 50, ENTROPY)))
    assert step == 2 * WARMUP + 2000
    assert "that of guessing (5.70)" in why


def test_a_loss_that_jumps_up_and_stays_stops_soon() -> None:
    step, why = first_stop(noisy(np.where(np.arange(3000) < 1000, 3.0, 6.0)))
    assert 1200 < step < 1300
    assert "rose from" in why


def test_half_of_a_small_improvement_over_guessing_is_enough_to_lose() -> None:
    """Of 1.2 nats learned 0.7 are lost; the same rise of a run that is far below guessing is none."""
    rise = np.where(np.arange(3000) < 1000, 0.0, 0.7)
    assert "rose from" in first_stop(noisy(rise + ENTROPY - 1.2))[1]
    assert first_stop(noisy(rise + ENTROPY - 3)) == (0, "")


def test_there_is_nothing_to_go_back_to_where_nothing_was_learned() -> None:
    watches = [Divergence(ENTROPY, WARMUP, lowest=low, good=300) for low in (ENTROPY + 1, ENTROPY - 1)]
    assert [watch.last_good for watch in watches] == [0, 300]
    assert Divergence(math.inf, WARMUP, lowest=3.0, good=300).last_good == 300


def test_a_short_spike_is_forgiven() -> None:
    values = np.full(2500, 3.0)
    values[1000:1060] = 9.0
    assert first_stop(noisy(values)) == (0, "")


def test_a_task_that_fails_at_every_validation_is_stopped() -> None:
    watch = Divergence(ENTROPY, WARMUP)
    found = {step: watch.validated(step, ENTROPY - 1, IGNORES) for step in range(100, 800, 100)}
    assert [step for step, why in found.items() if why] == [600, 700]  # 400 updates after twice the warm-up
    assert found[600] == f"since update 200 {IGNORES}"


def test_one_good_validation_starts_the_count_again() -> None:
    watch = Divergence(ENTROPY, WARMUP)
    problems = [IGNORES, IGNORES, IGNORES, "", *[IGNORES] * 3]
    assert not any(watch.validated(100 * i, ENTROPY - 1, problem) for i, problem in enumerate(problems, 2))


def test_without_a_chance_level_only_a_rise_stops() -> None:
    watch = Divergence(math.inf, WARMUP)
    assert not any(watch.update(step, 6.0) for step in range(1, 6000))
    assert not any(watch.validated(step, 9.0, "") for step in range(100, 5000, 100))
    assert any(watch.update(6000 + step, 9.0) for step in range(400))


def test_a_validation_far_worse_than_guessing_stops_a_run_whose_training_loss_does_not_tell() -> None:
    watch = Divergence(ENTROPY, WARMUP)
    found = {step: watch.validated(step, ENTROPY + 2, "") for step in range(100, 900, 100)}
    assert [step for step, why in found.items() if why] == [600, 700, 800]
    assert "worse than guessing" in found[600]


def test_a_slow_run_whose_validation_loss_is_lower_each_time_is_left_alone() -> None:
    watch = Divergence(ENTROPY, 0)
    slow = [watch.validated(step, ENTROPY + 5 - step / 400, "") for step in range(200, 1600, 200)]
    stuck = [watch.validated(step, ENTROPY + 2, "") for step in range(1600, 2400, 200)]
    assert not any(slow) and not any(stuck[:2]) and all(stuck[2:])


def test_its_state_is_all_it_knows() -> None:
    whole, first, second = Divergence(ENTROPY, WARMUP), Divergence(ENTROPY, WARMUP), Divergence(ENTROPY, WARMUP)
    values = noisy(np.full(400, 6.0))
    for step, nll in enumerate(values, 1):
        whole.update(step, nll)
        if step == 200:
            second.load_state_dict(first.state_dict() | {})
        (first if step < 200 else second).update(step, nll) if step != 200 else second.update(step, nll)
    assert whole == second
