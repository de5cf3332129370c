"""Two ranks train the model and the task of examples/own_task.py as one rank does, and stop together."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bathy.settings import settings_to_toml
from bathy.tasks import read_config
from bathy.train.log import read_log

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[1] / "own_task_run.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=0.2"]


def train(run: Path, *options: str, ranks: int = 1, **changes: dict[str, Any]) -> list[float]:
    """The losses of a run in processes of its own."""
    command = [sys.executable, *(TORCHRUN if ranks > 1 else []), str(SCRIPT), str(run), json.dumps(changes), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_are_one_rank_with_twice_the_accumulation(tmp_path: Path, parallel: str) -> None:
    settings = {"precision": "float64", "parallel": parallel}
    alone = train(tmp_path / "one", "exact", train={**settings, "accumulate": 4})
    both = train(tmp_path / "two", "exact", ranks=2, train={**settings, "accumulate": 2})
    assert both == pytest.approx(alone, rel=0, abs=1e-9) and len(both) == 12


def test_a_compiled_objective_learns_the_same_and_ranks_share_gradients_once_an_update(tmp_path: Path) -> None:
    settings = {"precision": "float64", "accumulate": 2, "steps": 5}
    plain = train(tmp_path / "plain", "exact", "count-syncs", ranks=2, train=settings)
    compiled = train(tmp_path / "compiled", "exact", "count-syncs", ranks=2, train={**settings, "compile": True})
    assert compiled == pytest.approx(plain, rel=1e-9)
    counts = [int((tmp_path / name).read_text()) for name in ("plain.syncs0", "compiled.syncs0", "compiled.syncs1")]
    assert counts == [5, 5, 5]


def test_compiled_alone_it_learns_the_same(tmp_path: Path) -> None:
    settings = {"precision": "float64", "accumulate": 2, "steps": 3, "valid_every": 3}
    plain, compiled = (train(tmp_path / str(on), "exact", train={**settings, "compile": on}) for on in (False, True))
    assert compiled == pytest.approx(plain, rel=1e-9)


IMPATIENT = "import bathy.train.divergence as d; d.PATIENCE = 0; from bathy.cli import main; main()"


def test_ranks_that_diverge_stop_together_with_one_message_and_are_not_started_again(toy_data: Path, tmp_path: Path) -> None:
    """Of a translation, by the command line; a restart under torchrun ends at once."""
    script, config, run = tmp_path / "impatient.py", tmp_path / "config.toml", tmp_path / "run"
    script.write_text(IMPATIENT)
    sizes = ["model.encoder_layers=1", "model.decoder_layers=1", "model.width=16", "model.ffn=16", "model.heads=2"]
    train = ["optim.lr=10", "optim.warmup=1", "train.tokens=260", "train.steps=900", "train.log_every=1", "train.valid_every=0"]
    config.write_text(settings_to_toml(read_config(None, [f"data.path={json.dumps(str(toy_data))}", *sizes, *train])))
    command = [sys.executable, *TORCHRUN, "--max-restarts=1", str(script), "train", str(config), "--out", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    messages = [line for line in done.stderr.splitlines() if line.startswith("error: stopped at update")]
    assert done.returncode != 0 and messages == [messages[0]] * 2, "one of each attempt"
    assert "exitcode  : 2" in done.stderr and "bathy/train" not in done.stderr
    assert (run / "stopped.txt").read_text().strip() == messages[0].removeprefix("error: ")
    rows = read_log(run / "metrics.jsonl")
    assert rows[-1]["stopped"] and rows[-1]["step"] == max(row["step"] for row in rows) < 100
