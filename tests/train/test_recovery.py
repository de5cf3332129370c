"""A run that diverges recovers by one change, the same way every time, and a healthy run is not touched."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bathy.errors import Diverged
from bathy.train import Config, OptimConfig, Shuffled, Task, TrainConfig, fit, loop, recovery
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
    base = {"steps": 240, "log_every": 1, "save_every": 120, "recent_every": 40, "recent_keep": 9, "divergence_window": 20}
    return Config(optim=optim, train=TrainConfig(**base | train))  # type: ignore[arg-type]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


RECOVERS = config(on_divergence="recover")


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a corrupt batch that recovered."""
    run = tmp_path_factory.mktemp("recovered")
    assert fit(Parity(corrupt=171), RECOVERS, run, World()).step == 240
    return run


def test_a_corrupt_batch_ends_a_run_that_stops(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="the loss rose"):
        fit(Parity(corrupt=171), config(), tmp_path, World())


def test_a_corrupt_batch_is_skipped_by_a_run_that_recovers(recovered: Path) -> None:
    (attempt,) = read_recoveries(recovered)
    assert (attempt.start, attempt.change, attempt.at, attempt.skip) == (160, "batches skipped", 170, 1)
    assert len(losses(recovered)) == 240 and sum(losses(recovered)[-30:]) / 30 < 0.3
    (row,) = [row for row in read_log(recovered / "metrics.jsonl") if "recovery" in row]
    assert row["step"] == 160 and "rose" in row["why"]


def test_a_recovered_run_resumes_exactly(recovered: Path, tmp_path: Path) -> None:
    for until in (165, 200, 0):  # in the middle of the recovery, and after it
        fit(Parity(corrupt=171), RECOVERS, tmp_path, World(), until=until)
    assert losses(recovered) == losses(tmp_path)
    a, b = newest(recovered), newest(tmp_path)
    assert a and b and all(torch.equal(value, read_weights(b)[name]) for name, value in read_weights(a).items())


def test_a_healthy_run_is_not_touched(tmp_path: Path) -> None:
    fit(Parity(), config(steps=120), tmp_path / "plain", World())
    fit(Parity(), config(steps=120, on_divergence="recover"), tmp_path / "recovers", World())
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


@pytest.mark.parametrize("place", ["go_back", "write_recovery", "shutil.rmtree", "copy_checkpoint"])
def test_a_run_killed_while_it_goes_back_ends_the_same(
    place: str, recovered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the first call of what changes files, or, of those inside, at the second of several."""
    module = loop if place in ("go_back", "write_recovery") else recovery
    owner = module if "." not in place else shutil
    name = place.rpartition(".")[2]
    real, calls = getattr(owner, name), [0]

    def killed(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, killed)
    with pytest.raises(KeyboardInterrupt):
        fit(Parity(corrupt=171), RECOVERS, tmp_path, World())
    fit(Parity(corrupt=171), RECOVERS, tmp_path, World())
    assert losses(tmp_path) == losses(recovered) and read_recoveries(tmp_path) == read_recoveries(recovered)


def test_numbers_that_do_not_fit_are_recovered_from_in_float32(tmp_path: Path) -> None:
    class Large(Parity):
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            half = torch.is_autocast_enabled("cpu")
            return super().loss(model, ((batch[0].half() * 5e4).float() / 5e4 if half else batch[0], batch[1]))

    settings = config(on_divergence="recover", precision="float16", steps=60, save_every=60)
    state = fit(Large(), settings, tmp_path, World())
    assert [one.change for one in read_recoveries(tmp_path)] == ["float32"] and state.step == 60
    assert state.precision.name == "float32" and math.isfinite(losses(tmp_path)[-1])
