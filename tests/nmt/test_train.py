import json
import math
from pathlib import Path

import pytest
import torch

from bathy.errors import ConfigError
from bathy.nmt.checkpoint import averaged, checkpoints, load, newest, read_weights
from bathy.nmt.config import Config, read_config, to_toml
from bathy.nmt.log import read_log
from bathy.nmt.schedule import learning_rate, rectification
from bathy.nmt.train import train
from bathy.nmt.world import World


def settings(data: Path, **changes: object) -> Config:
    base = {
        "data.path": json.dumps(str(data)), "model.encoder_layers": 2, "model.decoder_layers": 2, "model.width": 16,
        "model.ffn": 32, "model.heads": 2, "model.dropout": 0.1, "optim.warmup": 4, "train.tokens": 256, "train.accumulate": 2,
        "train.log_every": 1, "train.steps": 8, "train.save_every": 4, "train.valid_every": 0,
    }  # fmt: skip
    return read_config(None, [f"{key}={value}" for key, value in (base | changes).items()])


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_resume_is_never_having_stopped(toy_data: Path, tmp_path: Path, precision: str) -> None:
    changes = {"train.precision": json.dumps(precision), "data.bpe_dropout": 0.1}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(settings(toy_data, **changes), whole, World())
    train(settings(toy_data, **changes, **{"train.steps": 4}), halves, World())
    train(settings(toy_data, **changes), halves, World())
    assert losses(whole) == losses(halves)
    a, b = (read_weights(newest(run)) for run in (whole, halves))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_damaged_checkpoint_is_passed_over(toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(settings(toy_data), tmp_path, World())
    last = checkpoints(tmp_path)[-1][1]
    weights = last / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert newest(tmp_path) == checkpoints(tmp_path)[0][1]
    assert "damaged" in capsys.readouterr().err


def test_admin_profiles_and_the_average_is_the_mean(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data), tmp_path, World())
    assert (tmp_path / "profile.json").exists()
    folders = [folder for _, folder in checkpoints(tmp_path)]
    mean = averaged(folders)
    a, b = map(read_weights, folders)
    torch.testing.assert_close(
        mean["embeddings.shared.weight"], (a["embeddings.shared.weight"] + b["embeddings.shared.weight"]) / 2
    )
    torch.testing.assert_close(load(tmp_path, average=2).output_weight.detach(), mean["embeddings.shared.weight"])


def test_a_changed_config_is_refused_unless_allowed(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data, **{"train.steps": 1}), tmp_path, World())
    with pytest.raises(ConfigError, match=r"optim.lr was 0.001, is 0.01"):
        train(settings(toy_data, **{"optim.lr": 0.01}), tmp_path, World())
    train(settings(toy_data, **{"optim.lr": 0.01, "train.steps": 2}), tmp_path, World(), allow_changes=True)


def test_a_config_survives_its_file(toy_data: Path, tmp_path: Path) -> None:
    config = settings(toy_data)
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "c.toml") == config


def test_the_schedule_is_its_formula() -> None:
    config = read_config(None, ["optim.lr=0.5", "optim.warmup=100", "optim.beta2=0.999", "optim.warmup_from=0"])
    assert learning_rate(config, 50) == pytest.approx(0.25)
    assert learning_rate(config, 100) == 0.5
    assert learning_rate(config, 400) == pytest.approx(0.25)
    linear = read_config(None, ["optim.schedule=linear", "optim.warmup=100", "train.steps=300", "optim.lr=1"])
    assert learning_rate(linear, 200) == pytest.approx(0.5)
    cosine = read_config(None, ["optim.schedule=cosine", "optim.warmup=100", "train.steps=300", "optim.lr=1"])
    assert learning_rate(cosine, 150) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_radam_holds_while_it_cannot_rectify() -> None:
    config = read_config(None, ["optim.beta2=0.98", "optim.warmup=0"])
    held = [step for step in range(1, 20) if learning_rate(config, step) == 0]
    assert held == [step for step in range(1, 20) if rectification(step, 0.98) <= 5] == [1, 2, 3, 4, 5]
