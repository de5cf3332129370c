"""A run that diverges recovers by one change, the same way every time, and a healthy run is not touched."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bathy.errors import Diverged
from bathy.train import Config, OptimConfig, Shuffled, Task, TrainConfig, fit
from bathy.train.checkpoint import newest, read_weights, save
from bathy.train.log import read_log
from bathy.train.recovery import (
    Recovery,
    next_recovery,
    next_start,
    precision_from,
    rate_factor,
    read_recoveries,
    skipped_batches,
    write_recovery,
)
from bathy.train.suspects import suspects
from bathy.train.world import World


class Poisoned(Shuffled):
    """A stream in which one batch is corrupt."""

    corrupt = -1

    def __next__(self) -> tuple[Tensor, ...]:
        inputs, targets = super().__next__()
        return (inputs * 1e4, 1 - targets) if self.position == self.corrupt else (inputs, targets)


class Parity(Task):
    """Which of two classes an input is in, by a small network."""

    def __init__(self, corrupt: int = -1) -> None:
        self.corrupt = corrupt

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def batches(self, rank: int, size: int) -> Poisoned:
        inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
        stream = Poisoned((inputs, (inputs[:, 0] > 0).long()), rows=8, seed=1, rank=rank, size=size)
        stream.corrupt = self.corrupt
        return stream

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        nll = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return nll, nll.detach()


def config(**train: object) -> Config:
    optim = OptimConfig(name="sgd", lr=0.05, schedule="constant", warmup=0)
    base = {"steps": 300, "log_every": 1, "save_every": 150, "recent_every": 50, "recent_keep": 9, "divergence_window": 40}
    return Config(optim=optim, train=TrainConfig(**base | train))  # type: ignore[arg-type]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


def test_a_corrupt_batch_ends_a_run_that_stops_and_is_skipped_by_one_that_recovers(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="the loss rose"):
        fit(Parity(corrupt=171), config(), tmp_path / "stops", World())
    state = fit(Parity(corrupt=171), config(on_divergence="recover"), tmp_path / "recovers", World())
    (attempt,) = read_recoveries(tmp_path / "recovers")
    assert (attempt.start, attempt.change, attempt.at, attempt.skip) == (150, "batches skipped", 170, 1)
    assert state.step == 300 and sum(losses(tmp_path / "recovers")[-50:]) / 50 < 0.3
    assert len(losses(tmp_path / "recovers")) == 300
    (row,) = [row for row in read_log(tmp_path / "recovers" / "metrics.jsonl") if "recovery" in row]
    assert row["step"] == 150 and "rose" in row["why"]


def test_a_recovered_run_resumes_exactly(tmp_path: Path) -> None:
    settings = config(on_divergence="recover")
    fit(Parity(corrupt=171), settings, tmp_path / "whole", World())
    stopped = settings.model_copy(update={"train": settings.train.model_copy(update={"steps": 260})})
    fit(Parity(corrupt=171), stopped, tmp_path / "halves", World())
    fit(Parity(corrupt=171), settings, tmp_path / "halves", World())
    assert losses(tmp_path / "whole") == losses(tmp_path / "halves")
    a, b = (newest(tmp_path / name) for name in ("whole", "halves"))
    assert a and b and all(torch.equal(value, read_weights(b)[name]) for name, value in read_weights(a).items())


def test_a_healthy_run_is_not_touched(tmp_path: Path) -> None:
    fit(Parity(), config(), tmp_path / "plain", World())
    fit(Parity(), config(on_divergence="recover"), tmp_path / "recovers", World())
    assert losses(tmp_path / "plain") == losses(tmp_path / "recovers") and not read_recoveries(tmp_path / "recovers")


def test_changes_are_tried_in_order_from_one_place_and_are_used_up(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, {"a": torch.ones(2)}, {}, {"model": {}})
    start = next_start(tmp_path, good=250)
    tried = []
    while attempt := next_recovery(tmp_path, 480, 250, "rose", 9, suspects=[230, 231], overflow=True):
        tried.append((attempt.start, attempt.change))
        write_recovery(tmp_path, attempt)
    assert tried == [(200, change) for change in ("float32", "batches skipped", "half the rate", "a tenth of the rate")]
    assert start == 200 and next_start(tmp_path, good=700) == 300
    assert next_recovery(tmp_path, 900, 700, "rose", most=4) is None


def test_a_run_that_never_began_starts_again_with_a_lower_rate(tmp_path: Path) -> None:
    attempt = next_recovery(tmp_path, 2000, 0, "guessing", most=3)
    assert attempt and (attempt.start, attempt.change, attempt.factor) == (0, "half the rate", 0.5)


def test_the_rate_is_lower_while_a_recovery_lasts() -> None:
    one = Recovery(failed=300, why="", start=200, change="half the rate", factor=0.5, until=500)
    assert [rate_factor([one], step) for step in (200, 201, 500, 650, 800)] == [1.0, 0.5, 0.5, 0.75, 1.0]
    assert rate_factor([one, replace(one, factor=0.1)], 300) == 0.1
    assert rate_factor([], 7) == 1 and math.isclose(rate_factor([one], 9999), 1)


def test_an_attempt_replaces_those_that_started_where_it_does() -> None:
    skip = Recovery(failed=300, why="", start=200, change="batches skipped", skip=3, at=230)
    half = Recovery(failed=300, why="", start=200, change="half the rate", factor=0.5, until=400)
    later = Recovery(failed=900, why="", start=700, change="float32", precision="float32")
    assert [skipped_batches([skip], step) for step in (200, 229, 230)] == [0, 0, 3] and skipped_batches([skip, half], 230) == 0
    assert [precision_from([half, later], step, "float16") for step in (699, 700)] == ["float16", "float32"]
    assert rate_factor([half, later], 300) == 0.5


def test_a_batch_stands_out_by_its_own_loss_and_noise_does_not() -> None:
    noise = {step: 2.5 + 0.1 * math.sin(7 * step) for step in range(50)}
    assert not suspects(noise) and suspects(noise | {20: 6.0, 22: math.inf}) == [20, 22]
    assert not suspects(noise | {1: 6.0, 49: 6.0} | dict.fromkeys(range(20, 40), 6.0))  # too many to be a burst
