import json
import math
import shutil
from pathlib import Path
from typing import cast

import pytest
import torch
from running import train

from bathy.core.feed_forward import FeedForward
from bathy.errors import CheckpointError, ConfigError, Diverged, TrainingError
from bathy.settings import settings_to_toml
from bathy.tasks import read_config
from bathy.tasks.models import load
from bathy.tasks.translation.config import Config
from bathy.train.checkpoint import averaged, checkpoints, damage, meta, newest, prune, read_trainer, read_weights, save
from bathy.train.config import differences
from bathy.train.divergence import Divergence
from bathy.train.log import read_log
from bathy.train.schedule import learning_rate, rectification
from bathy.train.update import update
from bathy.train.world import World


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
    a, b = (read_weights(cast(Path, newest(run))) for run in (whole, halves))
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
    a, b = map(read_weights, folders)
    mean = averaged([a, b])
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
    (tmp_path / "c.toml").write_text(settings_to_toml(config))
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
    assert torch.equal(before, cast(torch.Tensor, after))  # RAdam holds at its first update
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
    assert state.batches.epochs == 3
    assert [json.loads((folder / "meta.json").read_text())["epoch"] for _, folder in checkpoints(tmp_path)] == [1, 2, 3]


def test_the_monitor_and_everything_else_one_can_watch_change_no_loss(toy_data: Path, tmp_path: Path) -> None:
    watched = {"train.monitor": "true", "train.monitor_every": 2, "train.loggers": '["tensorboard"]', "task.bleu_sentences": 3}
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
    monkeypatch.setattr("bathy.train.loop.update", lambda *given: seen.append(vanishing()) or update(*given))  # type: ignore[func-returns-value]
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        before = vanishing()
        train(settings(toy_data, **{"train.steps": 1}), tmp_path / str(flush), World())
        assert (vanishing(), before > 0) == (before, not flush)
    torch.set_flush_denormal(False)
    assert seen == [0, 0]


def test_divergence_stops_with_a_way_out(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Divergence, "update", lambda self, step, nll: "the loss rose" if step == 5 else "")
    with pytest.raises(Diverged, match=r"stopped at update 5: the loss rose\. "):
        train(settings(toy_data), tmp_path, World())
    assert (tmp_path / "examination.jsonl").exists()
    assert train(settings(toy_data, **{"train.on_divergence": "continue"}), tmp_path, World()).step == 8


def test_memory_that_runs_out_is_one_line(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9e9 bytes")

    monkeypatch.setattr("bathy.train.loop.update", full)
    with pytest.raises(TrainingError, match=r"a batch of 256 tokens does not fit in memory; halve train\.tokens"):
        train(settings(toy_data), tmp_path, World())


def test_weights_that_are_not_finite_are_refused_by_name(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data, **{"train.steps": 4}), tmp_path)
    folder = newest(tmp_path)
    assert folder
    weights = read_weights(folder)
    weights["encoder.layers.1.ffn.f.fc2.bias"].fill_(math.nan)
    save(tmp_path, 4, weights, read_trainer(folder), {"model": meta(folder)["model"]})
    with pytest.raises(CheckpointError, match=r"encoder\.layers\.1\.ffn\.f\.fc2\.bias has values that are not finite"):
        train(settings(toy_data), tmp_path)


def test_gradients_that_stay_non_finite_end_the_run_and_name_the_site(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infinite(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        return x * math.inf

    monkeypatch.setattr(FeedForward, "forward", infinite)
    with pytest.raises(TrainingError, match=r"not finite 20 times in a row, first at encoder\.layers\.0\.ffn"):
        train(
            settings(toy_data, **{"train.steps": 100, "model.encoder_scheme": "post_ln", "model.decoder_scheme": "post_ln"}),
            tmp_path,
        )


def test_a_full_disk_leaves_older_checkpoints(toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    train(settings(toy_data, **{"train.steps": 4}), tmp_path, World())
    monkeypatch.setattr("bathy.train.checkpoint.save_file", full)
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


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, {"a": torch.ones(3)}, {}, {"model": {}})
    (tmp_path / "checkpoints" / "step_00000003" / "trainer.pt").write_bytes(b"")
    prune(tmp_path, last=1, best=0)
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step_00000002"
    assert not (tmp_path / "checkpoints" / "step_00000001").exists()


def test_a_fresh_save_survives_pruning_beside_newer_damaged_ones(tmp_path: Path) -> None:
    save(tmp_path, 9, {"a": torch.ones(3)}, {}, {"model": {}})
    (tmp_path / "checkpoints" / "step_00000009" / "model.safetensors").write_bytes(b"x")
    place = save(tmp_path, 5, {"a": torch.ones(3)}, {}, {"model": {}})
    prune(tmp_path, last=1, best=0)
    assert newest(tmp_path) == place


def test_a_run_without_an_intact_checkpoint_stops_and_asks(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data), tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    for _, folder in checkpoints(tmp_path):
        (folder / "meta.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged; restore a copy, or remove"):
        train(settings(toy_data), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_an_empty_list_of_checksums_is_not_intact(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, {"a": torch.ones(3)}, {}, {"model": {}})
    (folder / "meta.json").write_text(json.dumps({"sha256": {}}))
    assert "has no checksum" in damage(folder)


def test_folders_of_other_names_are_not_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 7, {"a": torch.ones(3)}, {}, {"model": {}})
    for name in ("step_best", "step_12", "step_0000000x", "notes"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert [step for step, _ in checkpoints(tmp_path)] == [7]


def test_a_start_that_fails_does_not_stand_in_the_way_of_the_corrected_one(toy_data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        train(settings(toy_data, **{"train.init_from": json.dumps(str(tmp_path / "nowhere"))}), tmp_path / "run")
    assert train(settings(toy_data), tmp_path / "run").step == 8


def test_rows_after_a_resume_are_those_of_an_undisturbed_run(toy_data: Path, tmp_path: Path) -> None:
    """A row spans three updates and saves come every four: a row's updates are partly before, partly after the kill."""
    changes = {"train.log_every": 3, "train.monitor": "true", "train.monitor_every": 3, "train.valid_every": 3}
    train(settings(toy_data, **changes), tmp_path / "whole")
    train(settings(toy_data, **changes, **{"train.steps": 7, "train.save_every": 4}), tmp_path / "hurt")
    shutil.rmtree(tmp_path / "hurt" / "checkpoints" / "step_00000007")  # as if killed after update 7, saved at 4
    with (tmp_path / "hurt" / "readings.jsonl").open("a") as file:
        file.write('{"cut sh')
    train(settings(toy_data, **changes), tmp_path / "hurt")
    for name, clock in (("metrics.jsonl", {"tokens_per_second", "mfu", "eta"}), ("readings.jsonl", {"origin"})):
        rows = [
            [{key: value for key, value in row.items() if key not in clock} for row in read_log(tmp_path / run / name)]
            for run in ("whole", "hurt")
        ]
        assert rows[0] == rows[1]


def test_a_save_does_not_force_a_validation_and_zero_validates_at_the_end(toy_data: Path, tmp_path: Path) -> None:
    train(settings(toy_data, **{"train.save_every": 2}), tmp_path)
    assert [row["step"] for row in read_log(tmp_path / "metrics.jsonl") if "valid_loss" in row] == [8]
    assert [step for step, _ in checkpoints(tmp_path)] == [2, 4, 6, 8]


def test_each_setting_that_moves_weights_is_compared_and_no_other(toy_data: Path) -> None:
    base = settings(toy_data)
    for change, seen in (("train.steps=9", False), ("train.seed=2", True), ("model.width=32", True), ("decode.beam=2", False)):
        section, key = change.partition("=")[0].split(".")
        new = settings(toy_data, **{f"{section}.{key}": change.partition("=")[2]})
        assert bool(differences(base, new)) == seen


def test_a_run_of_version_0_1_resumes_to_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Path(__file__).parents[1] / "version_0_1"
    shutil.copytree(old, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    config = read_config(Path("run/config.toml"), ["train.steps=30"])
    train(config, Path("run"))
    expected = [row for row in read_log(old / "metrics_of_30_updates.jsonl") if row["step"] > 20 and "loss" in row]
    found = [row for row in read_log(Path("run/metrics.jsonl")) if row["step"] > 20 and "loss" in row]
    # To rounding: kernels have changed since. Exact resuming is tested within a version.
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], rel=1e-6)


def test_a_rank_draws_what_torch_draws_from_the_same_seed() -> None:
    World().seed(7, 3)
    drawn = torch.rand(4)
    torch.manual_seed(torch.initial_seed())
    assert torch.equal(drawn, torch.rand(4))
