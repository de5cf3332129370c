"""Averages cannot hurt: a window is a share of the run, and what validates best is used."""

import json
from pathlib import Path

import pytest
import torch
from running import train
from test_recovery import Parity, config

from bathy.errors import CheckpointError, ConfigError
from bathy.train import fit
from bathy.train.averaging import choose, window
from bathy.train.checkpoint import checkpoints, newest, read_weights, save
from bathy.train.log import read_log
from bathy.train.world import World


def write(run: Path, *steps: int) -> None:
    for step in steps:
        save(run, step, {"a": torch.full((3,), float(step))}, {}, {"model": {}})


def steps_of(run: Path, average: float) -> list[int]:
    return [int(folder.name[5:]) for folder in choose(run, average).folders]


def test_a_window_is_a_number_or_a_share_and_never_empty(tmp_path: Path) -> None:
    write(tmp_path, 400, 900, 950, 1000)
    assert steps_of(tmp_path, 2) == [950, 1000]
    assert steps_of(tmp_path, 0.1) == [950, 1000]
    assert steps_of(tmp_path, 0.7) == [400, 900, 950, 1000]
    assert steps_of(tmp_path, 0.01) == [1000]
    assert choose(tmp_path, 0.1).weights()["a"].tolist() == [975.0] * 3
    assert window([Path("step_00000007")], 0.1) == [Path("step_00000007")]


def test_a_window_of_more_than_a_fifth_of_the_run_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 700, 900, 1000)
    choose(tmp_path, 2)
    assert "more than a fifth" not in capsys.readouterr().err
    choose(tmp_path, 3)
    assert "more than a fifth" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(("best", "expected"), [("last", [1000]), ("average", [950, 1000]), ("ema", [1000])])
def test_what_the_end_of_training_found_best_is_used(tmp_path: Path, best: str, expected: list[int]) -> None:
    write(tmp_path, 900, 950, 1000)
    (tmp_path / "average.json").write_text(json.dumps({"last": 1000, "steps": [950, 1000], "losses": {}, "best": best}))
    assert steps_of(tmp_path, 0) == expected
    write(tmp_path, 1100)  # trained on: what was said is about other checkpoints
    assert steps_of(tmp_path, 0) == [1000, 1100]


def test_the_end_of_training_validates_average_and_last_and_leaves_the_weights(toy_data: Path, tmp_path: Path) -> None:
    from test_train import settings

    state = train(settings(toy_data, **{"train.steps": 40, "train.save_every": 1, "train.keep_last": 40}), tmp_path)
    said = json.loads((tmp_path / "average.json").read_text())
    assert said["steps"] == [37, 38, 39, 40] and said["last"] == 40
    assert said["best"] == min(said["losses"], key=said["losses"].get)
    row = [row for row in read_log(tmp_path / "metrics.jsonl") if "best_weights" in row][-1]
    assert row["valid_loss_average"] == said["losses"]["average"]
    folder = newest(tmp_path)
    assert folder
    saved = read_weights(folder)
    assert all(torch.equal(value, saved[name]) for name, value in state.weights().items())


def test_the_moving_average_is_its_formula_and_resumes_exactly(tmp_path: Path) -> None:
    settings = config(steps=12, save_every=1, ema=0.9)
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"keep_last": 20})})
    fit(Parity(), settings, tmp_path / "whole", World())
    expected: dict[str, torch.Tensor] = {}
    start = Parity().build  # the average starts as the fresh weights
    torch.manual_seed(settings.train.seed)
    expected = {name: value.detach().clone() for name, value in start().state_dict().items()}
    for _, folder in checkpoints(tmp_path / "whole"):
        expected = {name: 0.9 * value + 0.1 * read_weights(folder)[name] for name, value in expected.items()}
    found = choose(tmp_path / "whole", which="ema").weights()
    torch.testing.assert_close(found, expected)
    half = settings.model_copy(update={"train": settings.train.model_copy(update={"steps": 5})})
    fit(Parity(), half, tmp_path / "halves", World())
    fit(Parity(), settings, tmp_path / "halves", World())
    again = choose(tmp_path / "halves", which="ema").weights()
    assert all(torch.equal(value, again[name]) for name, value in found.items())


def test_without_a_moving_average_none_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with pytest.raises(CheckpointError, match=r"no moving average .* train with train\.ema"):
        choose(tmp_path, which="ema").weights()
    with pytest.raises(ConfigError, match=r"train\.ema needs whole weights"):
        config(ema=0.9, parallel="fsdp")
