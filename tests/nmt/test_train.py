import json
import math
from pathlib import Path

import pytest
import torch

from bathy.errors import CheckpointError, ConfigError, Diverged, TrainingError
from bathy.nmt.checkpoint import averaged, checkpoints, load, newest, prune, read_trainer, read_weights, save
from bathy.nmt.config import Config, read_config, to_toml
from bathy.nmt.log import read_log
from bathy.nmt.schedule import learning_rate, rectification
from bathy.nmt.train import train
from bathy.nmt.update import update
from bathy.nmt.watch import Watch
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


def test_a_run_starts_from_another_runs_weights(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data), tmp_path / "first", World())
    changes = {"train.init_from": json.dumps(str(tmp_path / "first")), "train.steps": 1, "train.save_every": 1}
    state = train(settings(toy_data, **changes), tmp_path / "second", World())
    before, after = load(tmp_path / "first").output_weight, state.model.output_weight
    assert torch.equal(before, after)  # RAdam holds at its first update
    with pytest.raises(CheckpointError, match=r"embeddings\.shared\.weight is"):
        train(settings(toy_data, **changes, **{"model.width": 32}), tmp_path / "third", World())


def test_patience_ends_a_run(toy_data: Path, tmp_path: Path) -> None:
    changes = {"train.patience": 2, "train.valid_every": 1, "optim.lr": 1e-12, "train.steps": 50, "train.save_every": 0}
    state = train(settings(toy_data, **changes), tmp_path, World())
    assert state.step < 10
    assert [step for step, _ in checkpoints(tmp_path)] == [state.step]


@pytest.mark.parametrize("accumulate", [2, 3])
def test_epochs_end_a_run_and_each_is_saved(toy_data: Path, tmp_path: Path, accumulate: int) -> None:
    changes = {
        "train.epochs": 3,
        "train.save_epochs": "true",
        "train.save_every": 0,
        "train.steps": 10_000,
        "train.tokens": 1000,
        "train.accumulate": accumulate,
    }
    state = train(settings(toy_data, **changes), tmp_path, World())
    assert state.epochs == 3
    assert [json.loads((folder / "meta.json").read_text())["epoch"] for _, folder in checkpoints(tmp_path)] == [1, 2, 3]


def test_the_monitor_and_everything_else_one_can_watch_change_no_loss(toy_data: Path, tmp_path: Path) -> None:
    watched = {"train.monitor": "true", "train.monitor_every": 2, "train.tensorboard": "true", "train.bleu_sentences": 3}
    train(settings(toy_data), tmp_path / "plain", World())
    train(settings(toy_data, **watched), tmp_path / "watched", World())
    assert losses(tmp_path / "plain") == losses(tmp_path / "watched")
    assert (tmp_path / "watched" / "readings.jsonl").stat().st_size > 1000
    assert list((tmp_path / "watched").glob("events.out.*"))
    assert [row["bleu"] for row in read_log(tmp_path / "watched" / "metrics.jsonl") if "bleu" in row]


def test_checkpointing_changes_no_loss(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data), tmp_path / "plain", World())
    train(settings(toy_data, **{"train.checkpointing": "true"}), tmp_path / "again", World())
    assert losses(tmp_path / "plain") == losses(tmp_path / "again")


@pytest.mark.parametrize("scheme", ["post_ln", "pre_ln", "admin_rescaled", "rezero", "fixup", "deepnorm"])
def test_every_kind_of_scheme_trains_by_config_alone(toy_data: Path, tmp_path: Path, scheme: str) -> None:
    changes = {"model.encoder_scheme": scheme, "model.decoder_scheme": "pre_ln", "train.steps": 2, "train.save_every": 1}
    train(settings(toy_data, **changes), tmp_path, World())
    assert all(map(math.isfinite, losses(tmp_path)))
    assert load(tmp_path).config.encoder_scheme == scheme


def test_training_takes_vanishing_numbers_for_zero_and_leaves_the_processor_as_it_was(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanishing() -> float:
        return (torch.full((64,), 1e-30) * 1e-10).sum().item()

    seen: list[float] = []
    monkeypatch.setattr("bathy.nmt.train.update", lambda *given: seen.append(vanishing()) or update(*given))
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        before = vanishing()
        train(settings(toy_data, **{"train.steps": 1}), tmp_path / str(flush), World())
        assert (vanishing(), before > 0) == (before, not flush)
    torch.set_flush_denormal(False)
    assert seen == [0, 0]


def test_divergence_stops_with_a_way_out(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "update", lambda self, step, nll: "the loss rose" if step == 5 else "")
    with pytest.raises(Diverged, match=r"stopped at update 5: the loss rose\. "):
        train(settings(toy_data), tmp_path, World())
    assert (tmp_path / "examination.jsonl").exists()
    assert train(settings(toy_data, **{"train.stop_diverged": "false"}), tmp_path, World()).step == 8


def test_memory_that_runs_out_is_one_line(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9e9 bytes")

    monkeypatch.setattr("bathy.nmt.train.update", full)
    with pytest.raises(TrainingError, match=r"a batch of 256 tokens does not fit in memory; halve train\.tokens"):
        train(settings(toy_data), tmp_path, World())


def test_weights_that_are_not_finite_end_the_run_and_name_the_site(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data, **{"train.steps": 4}), tmp_path, World())
    folder = newest(tmp_path)
    assert folder
    weights = read_weights(folder)
    weights["encoder.layers.1.ffn.f.fc2.bias"].fill_(math.nan)
    trainer, meta = read_trainer(folder), json.loads((folder / "meta.json").read_text())
    save(tmp_path, 4, weights, trainer, {"model": meta["model"]})
    with pytest.raises(TrainingError, match=r"not finite 20 times in a row, first at encoder\.layers\.1\.ffn"):
        train(settings(toy_data, **{"train.steps": 100}), tmp_path, World())


def test_a_full_disk_leaves_older_checkpoints(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    train(settings(toy_data, **{"train.steps": 4}), tmp_path, World())
    monkeypatch.setattr("bathy.nmt.checkpoint.save_file", full)
    with pytest.raises(TrainingError, match=r"No space left on device.*older checkpoints are untouched"):
        train(settings(toy_data), tmp_path, World())
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step_00000004"]


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "meta.json"])
@pytest.mark.parametrize("hurt", ["cut", "changed", "gone"])
def test_any_damage_is_seen(toy_data: Path, tmp_path: Path, name: str, hurt: str) -> None:
    for step in (1, 2):
        save(tmp_path, step, {"a": torch.ones(3)}, {"step": step}, {"model": {}})
    file = tmp_path / "checkpoints" / "step_00000002" / name
    content = file.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "changed": content.replace(b"a", b"b")}
    file.unlink()
    if hurt in damaged:
        file.write_bytes(damaged[hurt])
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step_00000001"


def test_the_best_checkpoint_is_kept_and_found(tmp_path: Path) -> None:
    for step, valid in ((1, 3.0), (2, 2.0), (3, 2.5), (4, None), (5, 2.7)):
        save(tmp_path, step, {"a": torch.full((3,), float(step))}, {}, {"valid_loss": valid, "model": {}})
    (tmp_path / "checkpoints" / ".step_00000006.tmp").mkdir()
    prune(tmp_path, last=2, best=1)
    assert [step for step, _ in checkpoints(tmp_path)] == [2, 4, 5]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
