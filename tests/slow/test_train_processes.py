"""Training in real processes: several ranks, kills at random moments, signals, elastic restarts."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from running import train

from bathy.settings import change, settings_to_toml
from bathy.tasks import read_config
from bathy.train.checkpoint import checkpoints, newest, read_weights
from bathy.train.log import read_log

pytestmark = pytest.mark.slow
TINY: dict[str, Any] = {
    "model.encoder_layers": 2, "model.decoder_layers": 2, "model.width": 16, "model.ffn": 32, "model.heads": 2,
    "optim.warmup": 4, "train.tokens": 260,
    "train.log_every": 1, "train.steps": 20, "train.save_every": 0, "train.valid_every": 0,
}  # fmt: skip


def write_config(folder: Path, data: Path, **changes: Any) -> Path:
    settings = {"data.path": json.dumps(str(data)), **TINY, **changes}
    path = folder / "config.toml"
    path.write_text(settings_to_toml(read_config(None, [f"{key}={value}" for key, value in settings.items()])))
    return path


def command(config: Path, run: Path, ranks: int = 1, restarts: int = 0, *options: str) -> list[str]:
    elastic = [f"--max-restarts={restarts}", "--monitor-interval=0.2"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *elastic]
    return [sys.executable, *(torchrun if ranks > 1 else []), "-m", "bathy", "train", str(config), "--out", str(run), *options]


def trained(config: Path, run: Path, ranks: int = 1, *options: str) -> list[float]:
    """The losses of a run in processes of its own."""
    done = subprocess.run(command(config, run, ranks, 0, *options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return losses(run)


def trained_here(config: Path, run: Path) -> list[float]:
    """The losses of the same run in this process, which has imported everything already."""
    train(read_config(config, [change("train.run", run)]), run)
    return losses(run)


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_log(run / "metrics.jsonl") if "loss" in row]


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    folder = newest(run)
    assert folder
    return read_weights(folder)


def test_two_ranks_are_one_rank_with_twice_the_accumulation(toy_data: Path, tmp_path: Path) -> None:
    # 260 tokens cut the corpus into an even number of batches: two ranks then see the batches that one rank sees.
    for precision, steps, tolerance, ways in (("float64", 12, 1e-9, ("ddp", "fsdp")), ("float32", 2, 1e-6, ("ddp",))):
        changes = {"train.precision": precision, "train.steps": steps}
        one = write_config(tmp_path, toy_data, **changes, **{"train.accumulate": 4})
        alone = trained_here(one, tmp_path / f"one-{precision}")
        for parallel in ways:
            two = write_config(tmp_path, toy_data, **changes, **{"train.accumulate": 2, "train.parallel": parallel})
            both = trained(two, tmp_path / f"{parallel}-{precision}", 2)
            assert both[:1] == pytest.approx(alone[:1], rel=tolerance)
            if precision == "float64":
                assert both == pytest.approx(alone, rel=0, abs=tolerance)


def test_killed_at_random_moments_a_run_ends_as_if_undisturbed(toy_data: Path, tmp_path: Path) -> None:
    changes = {"train.precision": "float16", "data.bpe_dropout": 0.1, "model.dropout": 0.2, "train.accumulate": 2}
    config = write_config(tmp_path, toy_data, **changes, **{"train.steps": 30, "train.save_every": 1, "train.keep_last": 3})
    whole = trained_here(config, tmp_path / "whole")
    hurt, dice, kills = tmp_path / "hurt", random.Random(5), 0
    for _ in range(3):
        process = subprocess.Popen(command(config, hurt), stderr=subprocess.DEVNULL)
        before = len(losses(hurt))
        while process.poll() is None and len(losses(hurt)) <= before:
            time.sleep(0.02)
        time.sleep(dice.uniform(0, 0.5))
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills
    assert trained_here(config, hurt) == whole
    ends = [final_weights(tmp_path / name) for name in ("whole", "hurt")]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    assert not list((hurt / "checkpoints").glob(".*"))


KILLED = """
import os, signal, sys
from bathy.train import checkpoint

kept, calls = getattr(checkpoint, sys.argv.pop(1)), []

def killing(*arguments, **options):
    calls.append(arguments)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(*arguments, **options)

setattr(checkpoint, kept.__name__, killing)
from bathy.cli import main
main()
"""
"""`bathy` that is killed where it calls a function of the checkpoints for the third time."""


def test_killed_inside_a_save_a_run_ends_as_if_undisturbed(toy_data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, toy_data, **{"train.steps": 6, "train.save_every": 1, "model.dropout": 0.2})
    whole, end = trained_here(config, tmp_path / "whole"), final_weights(tmp_path / "whole")
    for moment in ("save_file", "digest", "prune"):
        hurt = tmp_path / moment
        arguments = [sys.executable, "-c", KILLED, moment, "train", str(config), "--out", str(hurt)]
        assert subprocess.run(arguments, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert trained_here(config, hurt) == whole
        assert all(torch.equal(tensor, end[name]) for name, tensor in final_weights(hurt).items())
        assert not list((hurt / "checkpoints").glob(".*"))


def test_a_run_in_use_is_refused(toy_data: Path, tmp_path: Path) -> None:
    config, run = write_config(tmp_path, toy_data, **{"train.steps": 100_000}), tmp_path / "run"
    first = subprocess.Popen(command(config, run), stderr=subprocess.DEVNULL)
    while first.poll() is None and not losses(run):
        time.sleep(0.05)
    second = subprocess.run(command(config, run), capture_output=True, text=True, check=False)
    first.kill()
    first.wait()
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "is in use by another process" in second.stderr


def test_a_signal_saves_and_leaves_in_order(toy_data: Path, tmp_path: Path) -> None:
    config, run = write_config(tmp_path, toy_data, **{"train.steps": 100_000}), tmp_path / "run"
    process = subprocess.Popen(command(config, run), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not losses(run):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "SIGTERM: saved at update" in error
    assert checkpoints(run)[-1][0] == len(losses(run))


def test_a_lost_rank_is_replaced_and_the_weights_are_those_of_a_restart(toy_data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, toy_data, **{"train.steps": 40, "train.save_every": 10, "model.dropout": 0.1})
    run = tmp_path / "run"
    process = subprocess.Popen(command(config, run, 2, 2), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not checkpoints(run):
        time.sleep(0.02)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(found.stdout.split()[-1]), signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error[-3000:]
    trained(config, tmp_path / "undisturbed", 2)
    ends = [final_weights(tmp_path / name) for name in ("run", "undisturbed")]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
