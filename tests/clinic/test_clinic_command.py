# mypy: disable-error-code="union-attr, operator, index"
import sys
from pathlib import Path

import pytest
import tiny
import torch

import bathy
from bathy.cli import main
from bathy.clinic.readings import read, select
from bathy.train import checkpoint

MODULE = """
import bathy, torch
def patient():
    config = dict(vocab=50, width=16, ffn=24, heads=2, encoder_layers=2, decoder_layers=2)
    batch = (torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 5)))
    return bathy.Transformer(bathy.TransformerConfig(**config)), batch
def nothing():
    return None
"""


def run_command(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["clinic", *args])
    return int(left.value.code or 0)


def test_any_model_that_can_be_imported_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ward.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    assert run_command("--model", "ward:patient", "--exams", "activations,gradients", "--out", "seen") == 0
    rows, origin = read(tmp_path / "seen/readings.jsonl")
    assert select(rows, "branch_share", model="patient") and origin["exams"] == ["activations", "gradients"]
    assert "<!doctype html>" in (tmp_path / "seen/report.html").read_text()


def test_a_file_of_the_current_folder_takes_no_package_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ward.py").write_text(MODULE)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert run_command("--model", "ward:patient", "--exams", "activations", "--out", "seen") == 0
    assert sys.path == [*before, str(tmp_path)], "the folder is looked at last"


@pytest.mark.parametrize("name", ["ward:nothing", "ward:nobody", "nowhere:patient", "ward"])
def test_a_model_that_cannot_be_had_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ward.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    assert run_command("--model", name) == 2
    assert "does not give (model, batch)" in capsys.readouterr().err


def test_runs_or_a_model_must_be_given_and_a_run_must_have_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command() == 2 and run_command(str(tmp_path)) == 2
    assert "no checkpoint to examine" in capsys.readouterr().err


def test_checkpoints_of_runs_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = (tiny.sentences(), tiny.sentences())

    def loss(output: torch.Tensor, inputs: object) -> torch.Tensor:
        return output.square().mean()

    monkeypatch.setattr("bathy.cli.clinic._batch", lambda run, tokens: (batch, loss))
    for name in ("a", "b"):
        model = tiny.model("pre_ln", seed=len(name))
        for step in (10, 20):
            with torch.no_grad():
                model.encoder.layers[0].ffn.f.fc1.weight += 0.1
            checkpoint.save(tmp_path / name, step, checkpoint.weights_of(model), {}, {"model": model.config.model_dump()})
    arguments = ["--checkpoints", "2", "--exams", "activations", "--out", str(tmp_path / "out")]
    assert run_command(str(tmp_path / "a"), str(tmp_path / "b"), *arguments) == 0
    found = bathy.Examination.load(tmp_path / "out/readings.jsonl")
    assert {(row.model, row.step) for row in found.readings} == {("a", 10), ("a", 20), ("b", 10), ("b", 20)}
    moved = [row for row in select(found.readings, "weight_update") if row.value > 0]
    assert [(row.model, row.role, round(row.value, 3)) for row in moved] == [(n, "fc1", round(0.1 * 384**0.5, 3)) for n in "ab"]
