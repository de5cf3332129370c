"""What the engine promises holds for a model and a task that are not ours: those of examples/own_task.py."""

from pathlib import Path
from typing import cast

import pytest
import torch
from own_task_run import CountBright, config, train

from bathy.clinic import readings
from bathy.errors import ConfigError, Diverged
from bathy.kernels.library import described, products_by, usable
from bathy.train import divergence
from bathy.train.checkpoint import checkpoints, newest, read_weights
from bathy.train.log import read_log
from bathy.train.plan import make_plan


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_resume_is_never_having_stopped(tmp_path: Path, precision: str) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(whole, train={"precision": precision})
    train(halves, train={"precision": precision, "steps": 6})
    assert [step for step, _ in checkpoints(halves)] == [6]
    train(halves, train={"precision": precision})
    assert losses(halves) == losses(whole) and len(losses(whole)) == 12
    ends = [read_weights(cast(Path, newest(run))) for run in (whole, halves)]
    assert ends[0].keys() == ends[1].keys() and all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_run_keeps_the_library_of_its_products_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = ("mkl", "onednn") if usable("onednn") else ("mkl", "mkl")
    for begun, now in ((one, other), (other, one)):
        with products_by(begun):
            train(tmp_path / begun, train={"steps": 2})
        with products_by(now):
            assert train(tmp_path / begun, train={"steps": 3}).products == begun
    assert f"matrix products by {described(one)}" in capsys.readouterr().err
    monkeypatch.setattr("bathy.train.state.usable", lambda name: name == "mkl")
    assert train(tmp_path / other, train={"steps": 4}).products == "mkl"
    assert (other == one) != ("onednn took this run's products and is not on this machine" in capsys.readouterr().err)


def test_it_learns_and_half_precision_follows(tmp_path: Path) -> None:
    state = train(tmp_path / "float32", train={"steps": 60, "accumulate": 1})
    assert state.valid < 0.9 * CountBright().chance()
    train(tmp_path / "bfloat16", train={"steps": 20, "accumulate": 1, "precision": "bfloat16"})
    single, half = losses(tmp_path / "float32"), losses(tmp_path / "bfloat16")
    assert half != single[:20] and half == pytest.approx(single[:20], rel=0.05)


def test_the_monitor_finds_its_sites_and_disturbs_nothing(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    train(tmp_path / "watched", train={"monitor": True, "monitor_every": 4})
    assert losses(tmp_path / "watched") == losses(tmp_path / "plain")
    rows, _ = readings.read(tmp_path / "watched" / "readings.jsonl")
    sites = {row.site for row in rows if row.kind in ("self_attention", "ffn") and row.index}
    assert len(sites) == 8, "attention and feed-forward of four layers"
    assert {row.step for row in rows} >= {4, 8, 12}


def test_admin_goes_into_it_by_one_setting_and_is_resumed(tmp_path: Path) -> None:
    train(tmp_path / "whole", train={"stabilise": "admin"})
    train(tmp_path / "halves", train={"stabilise": "admin", "steps": 6})
    train(tmp_path / "halves", train={"stabilise": "admin"})
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")
    assert any("bathy_omega" in name for name in read_weights(cast(Path, newest(tmp_path / "whole"))))
    assert (tmp_path / "whole" / "profile.json").exists()


def test_a_divergence_is_caught_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "PATIENCE", 0.3)
    with pytest.raises(
        Diverged, match=r"stopped at update \d+: after \d+ updates the loss, .* is still that of guessing"
    ) as error:
        train(tmp_path, optim={"lr": 1.0}, train={"steps": 500, "accumulate": 1})
    assert "\n" not in str(error.value)
    assert (tmp_path / "stopped.txt").read_text().strip() == str(error.value)
    assert read_log(tmp_path / "metrics.jsonl")[-1]["stopped"]
    rows, _ = readings.read(tmp_path / "examination.jsonl")
    assert any(row.quantity == "gradient" for row in rows)


def test_what_the_example_does_not_define_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CountBright has no plan: it does not define `sketch`"):
        make_plan(CountBright(), config())
