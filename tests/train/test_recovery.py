"""A run that diverges recovers by one change, the same way every time, and a healthy run is not touched."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bathy.errors import Diverged
from bathy.train import Config, OptimConfig, Shuffled, Task, TrainConfig, fit, recovering, recovery
from bathy.train.checkpoint import newest, read_weights, save
from bathy.train.evidence import Evidence, Raise
from bathy.train.log import read_log
from bathy.train.recovered import recovery_findings
from bathy.train.recovery import (
    Recovery,
    amended,
    attempts,
    next_recovery,
    next_start,
    rate_factor,
    read_recoveries,
    recovered_rate,
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


class Guessing(Parity):
    """A task in which every loss counts as guessing."""

    def chance(self) -> float:
        return 0.0


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


def test_each_recovery_is_a_finding_of_the_report(recovered: Path, tmp_path: Path) -> None:
    (finding,) = recovery_findings(recovered, "run")
    failed = read_recoveries(recovered)[0].failed
    assert finding.title == f"recovery at update {failed}: batches skipped" and finding.step == failed
    assert "after update 170" in str(finding.evidence[0]) and "rose" in finding.cause
    assert not recovery_findings(tmp_path, "run")


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
    half, known = config(precision="float16", recoveries=9), Evidence(suspects=[230, 231], overflow=True)
    while attempt := next_recovery(tmp_path, half, 480, 250, "rose", known):
        tried.append((attempt.start, attempt.change))
        write_recovery(tmp_path, attempt)
    changes = ("float32", "batches skipped", "half the rate", "a tenth of the rate", "clipping")
    assert tried == [(200, change) for change in changes]
    assert start == 200 and next_start(tmp_path, good=700) == 300
    assert next_recovery(tmp_path, config(recoveries=5), 900, 700, "rose", Evidence()) is None


def names(settings: Config, start: int, good: int, evidence: Evidence) -> list[str]:
    return [one.change for one in attempts(settings, Recovery(500, "", start, ""), good, evidence)]


def test_a_warm_up_is_lengthened_only_where_the_run_starts_again() -> None:
    assert names(config(), 0, 0, Evidence())[0] == "longer warm-up"
    assert names(config(), 40, 40, Evidence())[0] == "half the rate"


def test_what_fits_the_failure_comes_before_a_lower_rate() -> None:
    slow = config().model_copy(update={"optim": OptimConfig(name="adam", beta2=0.9999, warmup=100)})
    raised = Evidence(raised=Raise(450, 0.1, 4.0))
    assert names(slow, 400, 420, Evidence())[:2] == ["lower beta2", "half the rate"]
    assert names(config(), 400, 420, raised)[:2] == ["rate not raised", "half the rate"]
    assert attempts(config(), Recovery(500, "", 400, ""), 420, raised)[0].ceiling == 0.1


def test_the_rate_is_lower_while_a_recovery_lasts() -> None:
    one = Recovery(failed=300, why="", start=200, change="half the rate", factor=0.5, until=500)
    assert [rate_factor([one], step) for step in (200, 201, 500, 650, 800)] == [1.0, 0.5, 0.5, 0.75, 1.0]
    assert rate_factor([one, replace(one, factor=0.1)], 300) == 0.1
    assert rate_factor([], 7) == 1 and math.isclose(rate_factor([one], 9999), 1)


def test_a_ceiling_stays_and_lower_rates_stay_below_it() -> None:
    one = Recovery(failed=300, why="", start=200, change="rate not raised", ceiling=0.1)
    assert [recovered_rate([one], step, 4.0) for step in (200, 201, 9999)] == [4.0, 0.1, 0.1]
    assert recovered_rate([one], 300, 0.02) == 0.02


def test_an_attempt_replaces_those_that_started_where_it_does() -> None:
    skip = Recovery(failed=300, why="", start=200, change="batches skipped", skip=3, at=230)
    half = Recovery(failed=300, why="", start=200, change="half the rate", factor=0.5, until=400)
    later = Recovery(failed=900, why="", start=700, change="float32", settings=["train.precision=float32"])
    assert [skipped_batches([skip], step) for step in (200, 229, 230)] == [0, 0, 3] and skipped_batches([skip, half], 230) == 0
    float16 = config(precision="float16")
    assert [amended(float16, [half, later], step).train.precision for step in (699, 700)] == ["float16", "float32"]
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
    module = recovering if place in ("go_back", "write_recovery") else recovery
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
    assert state.config.train.precision == "float32" and math.isfinite(losses(tmp_path)[-1])


def test_a_rate_raised_by_hand_is_put_back_where_it_was(tmp_path: Path) -> None:
    fit(Parity(), config(steps=120), tmp_path, World())
    faster = config(steps=240, on_divergence="recover")
    faster = faster.model_copy(update={"optim": faster.optim.model_copy(update={"lr": 60.0})})
    state = fit(Parity(), faster, tmp_path, World(), allow_changes=True)
    (attempt,) = read_recoveries(tmp_path)
    assert (attempt.start, attempt.change, attempt.ceiling) == (120, "rate not raised", 0.05) and state.step == 240
    assert {row["lr"] for row in read_log(tmp_path / "metrics.jsonl") if "lr" in row} == {0.05}


def test_a_run_that_never_improves_on_guessing_starts_again_with_a_warm_up(tmp_path: Path) -> None:
    state = fit(Guessing(), RECOVERS, tmp_path, World())
    (attempt,) = read_recoveries(tmp_path)
    assert (attempt.failed, attempt.start, attempt.settings) == (200, 0, ["optim.warmup=60"])
    assert state.config.optim.warmup == 60 and state.step == 240
    assert [row["lr"] for row in read_log(tmp_path / "metrics.jsonl") if "lr" in row][29] == pytest.approx(0.025, rel=1e-3)


def test_the_settings_of_a_recovery_hold_from_its_start_and_no_others_change() -> None:
    one = Recovery(failed=300, why="", start=200, change="lower beta2", settings=["optim.beta2=0.98"])
    plain = config().model_copy(update={"optim": OptimConfig(beta2=0.9999)})
    assert amended(plain, [one], 199) is plain and amended(plain, [one], 200).optim.beta2 == 0.98
    assert amended(plain, [one], 200).train == plain.train
