"""`bathy demo`, the README's first command, from end to end: smaller models and text, nothing pretended."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bathy.cli import app
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.train.log import read_log

TINY = [
    "data.vocab=300", "model.encoder_layers=2", "model.decoder_layers=1", "model.width=16", "model.ffn=16", "model.heads=2",
    "optim.warmup=2", "train.tokens=256", "train.steps=6", "train.log_every=2", "train.valid_every=3", "train.save_every=3",
    "decode.beam=2", "prepare.workers=1",
]  # fmt: skip


def test_the_demo_tells_its_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("bathy.lab.demo")
    monkeypatch.setattr(module, "QUICK", TINY)
    monkeypatch.setattr(module, "write_toy", partial(write_toy, size=400, held_out=6))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    result = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path / "demo"), "--quick"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    assert [line[0] for line in result.output.splitlines() if line[:2] in ("1.", "2.", "3.", "4.", "5.")] == [*"12345"]
    for name in module.NAMES:
        assert [row["step"] for row in read_log(tmp_path / "demo/runs" / name / "metrics.jsonl") if "valid_loss" in row] == [
            3,
            6,
        ]
    scores = json.loads((tmp_path / "demo/scores.json").read_text(encoding="utf-8"))["scores"]
    assert {(row["system"], row["metric"]) for row in scores} == {
        (s, m) for s in module.NAMES.values() for m in ("bleu", "chrf")
    }
    assert (tmp_path / "demo/model/ctranslate2/model.bin").exists() and (tmp_path / "demo/model/marian/config.json").exists()
    page = (tmp_path / "demo/report.html").read_text(encoding="utf-8")
    assert all(label in page for label in module.NAMES.values()) and module.HASTY.partition(":")[0] in page
