"""Divergence is seen, and health is left alone."""

import numpy as np

from bathy.nmt.watch import Watch

ENTROPY, WARMUP = 5.7, 100


def first_stop(nlls: list[float]) -> tuple[int, str]:
    watch = Watch(ENTROPY, WARMUP)
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
    assert "guessing by token frequency (5.70)" in why


def test_a_loss_that_jumps_up_and_stays_stops_soon() -> None:
    step, why = first_stop(noisy(np.where(np.arange(3000) < 1000, 3.0, 6.0)))
    assert 1200 < step < 1300
    assert "rose from" in why


def test_a_short_spike_is_forgiven() -> None:
    values = np.full(2500, 3.0)
    values[1000:1060] = 9.0
    assert first_stop(noisy(values)) == (0, "")


def test_a_decoder_that_learns_its_language_alone_is_stopped() -> None:
    watch = Watch(ENTROPY, WARMUP)
    found = {step: watch.validated(step, ENTROPY - 1, 0.05) for step in range(100, 800, 100)}
    assert [step for step, why in found.items() if why] == [600, 700]  # 400 updates after twice the warm-up
    assert "hardly uses its source" in found[600]


def test_a_decoder_that_listens_late_or_has_not_begun_to_speak_is_left_alone() -> None:
    late, slow = Watch(ENTROPY, WARMUP), Watch(ENTROPY, WARMUP)
    gaps = [0.01, 0.02, 0.04, 0.2, *[0.01] * 3]
    assert not any(late.validated(100 * i, ENTROPY - 1, gap) for i, gap in enumerate(gaps, 2))
    assert not any(slow.validated(step, ENTROPY - 0.1, 0.0) for step in range(100, 5000, 100))


def test_a_validation_far_worse_than_guessing_stops_a_run_whose_training_loss_does_not_tell() -> None:
    watch = Watch(ENTROPY, WARMUP)
    found = {step: watch.validated(step, ENTROPY + 2, 0.0) for step in range(100, 800, 100)}
    assert [step for step, why in found.items() if why] == [600, 700]
    assert "worse than guessing" in found[600]


def test_its_state_is_all_it_knows() -> None:
    whole, first, second = Watch(ENTROPY, WARMUP), Watch(ENTROPY, WARMUP), Watch(ENTROPY, WARMUP)
    values = noisy(np.full(400, 6.0))
    for step, nll in enumerate(values, 1):
        whole.update(step, nll)
        if step == 200:
            second.load_state_dict(first.state_dict() | {})
        (first if step < 200 else second).update(step, nll) if step != 200 else second.update(step, nll)
    assert whole == second
