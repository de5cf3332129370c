"""Learning rates of every update, against the formulas written out."""

import math

import pytest

from bathy.errors import ConfigError
from bathy.train.config import Config, OptimConfig, TrainConfig
from bathy.train.schedule import SCHEDULES, learning_rate

STEPS, WARMUP, PEAK, FLOOR = 200, 20, 1e-3, 1e-4


def rates(name: str, **changes: float) -> list[float]:
    settings = {"lr": PEAK, "lr_floor": FLOOR, "warmup": WARMUP, "warmup_from": 0.0, **changes}
    config = Config(optim=OptimConfig(name="adamw", schedule=name, **settings), train=TrainConfig(steps=STEPS))  # type: ignore[arg-type]
    return [learning_rate(config, step) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_is_a_line_to_the_peak(name: str) -> None:
    assert rates(name)[:WARMUP] == pytest.approx([PEAK * step / WARMUP for step in range(1, WARMUP + 1)])


def test_cosine_is_nanogpts_to_its_floor() -> None:
    def nanogpt(step: int) -> float:
        ratio = (step - WARMUP) / (STEPS - WARMUP)
        return FLOOR + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (PEAK - FLOOR)

    assert rates("cosine")[WARMUP - 1 :] == pytest.approx([nanogpt(step) for step in range(WARMUP, STEPS + 1)])
    assert rates("cosine")[-1] == pytest.approx(FLOOR)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_wsd_is_stable_and_then_a_line_to_its_floor(share: float) -> None:
    found = rates("wsd", decay_share=share)
    first = round(STEPS * (1 - share))
    assert found[WARMUP - 1 : first] == pytest.approx([PEAK] * (first - WARMUP + 1))
    falls = [a - b for a, b in zip(found[first - 1 :], found[first:], strict=False)]
    assert falls == pytest.approx([(PEAK - FLOOR) / (STEPS * share)] * len(falls))
    assert found[-1] == pytest.approx(FLOOR)


def test_linear_ends_at_its_floor_and_without_one_at_zero() -> None:
    assert rates("linear")[-1] == pytest.approx(FLOOR)
    assert rates("linear", lr_floor=0.0)[-1] == 0
    assert rates("linear")[(WARMUP + STEPS) // 2 - 1] == pytest.approx((PEAK + FLOOR) / 2)


def test_a_floor_above_the_peak_and_a_warm_up_beyond_the_end_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr_floor is 0\.002"):
        rates("cosine", lr_floor=2e-3)
    with pytest.raises(ConfigError, match="must be less than"):
        rates("wsd", warmup=STEPS)
