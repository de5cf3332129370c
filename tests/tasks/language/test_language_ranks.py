"""Language models on several ranks, in real processes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import train

from bathy.settings import settings_to_toml
from bathy.train.log import read_log

pytestmark = pytest.mark.slow
EXACT = {"precision": "float64", "log_every": 1, "valid_every": 4, "save_every": 0, "steps": 4, "tokens": 64}


def trained(config: Any, folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The metrics of a run, here or in processes of its own."""
    folder.mkdir()
    if ranks == 1:
        train(config, folder / "run")
        return read_log(folder / "run" / "metrics.jsonl")
    (folder / "config.toml").write_text(settings_to_toml(config))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "bathy"]
    command = [*launcher, "train", str(folder / "config.toml"), "--out", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_log(folder / "run" / "metrics.jsonl")


@pytest.mark.parametrize(
    ("windows", "model", "optim", "parallel"),
    [
        ("random", {}, "muon", "ddp"),
        ("packed", {"encoder_layers": 2, "decoder_layers": 0, "encoder_scheme": "admin"}, "adamw", "ddp"),
        ("random", {"decoder_scheme": "admin"}, "adamw", "fsdp"),
    ],
    ids=["causal, Muon", "masked, packed, Admin", "causal, Admin, FSDP2"],
)
def test_two_ranks_are_one_rank_with_twice_the_accumulation(
    language_config: Callable[..., Any], tmp_path: Path, windows: str, model: dict[str, Any], optim: str, parallel: str
) -> None:
    shared = {"data": {"windows": windows}, "model": model, "optim": {"name": optim}, "task": {"sample": 0}}
    one = trained(language_config(**shared, train=EXACT | {"accumulate": 4}), tmp_path / "one", 1)
    two = trained(language_config(**shared, train=EXACT | {"accumulate": 2, "parallel": parallel}), tmp_path / "two", 2)
    for key in ("loss", "valid_loss", "context_gap"):
        assert [row.get(key) for row in two] == pytest.approx([row.get(key) for row in one], abs=1e-9), key
