"""The commands that look ahead and back say what the functions behind them find."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import Diverged

TINY = """
[data]
path = "{data}"
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
ffn = 16
heads = 2
[optim]
lr = 20
warmup = 4
[train]
tokens = 256
steps = 40
log_every = 3
valid_every = 6
save_every = 4
keep_last = 20
divergence_window = 6
"""


@pytest.fixture
def config(toy_data: Path, tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(TINY.format(data=toy_data), encoding="utf-8")
    return tmp_path / "config.toml"


def test_postmortem_names_the_cause_of_a_run_that_failed(config: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    failed = CliRunner().invoke(app, ["train", str(config), "--run", run])
    assert isinstance(failed.exception, Diverged)
    result = CliRunner().invoke(app, ["postmortem", run], catch_exceptions=False)
    assert result.exit_code == 0 and "cause: a learning rate that is far too high" in result.output
    assert (tmp_path / "run/postmortem/report.html").exists()


def test_predict_says_for_a_config_what_will_happen(config: Path) -> None:
    result = CliRunner().invoke(app, ["predict", str(config), "--look", "one look"], catch_exceptions=False)
    assert result.exit_code == 0 and result.output.startswith("at 2e1 it will fail (p = ")
