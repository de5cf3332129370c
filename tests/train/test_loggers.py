"""Metrics go to metrics.jsonl always, and to each logger that a run asks for."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bathy.errors import BathyError
from bathy.train.config import TrainConfig
from bathy.train.log import Log, read_log
from bathy.train.loggers import LOGGERS

ROWS: list[dict[str, Any]] = [{"step": 1, "loss": 2.0, "sample": "text"}, {"step": 2, "loss": float("nan"), "valid_loss": 1.5}]
NUMBERS = [(1, {"loss": 2.0}), (2, {"valid_loss": 1.5})]


def write(path: Path, *loggers: str, step: int = 0) -> None:
    with Log(path, step, loggers, {"train": {"seed": 7}}) as log:
        for row in ROWS:
            log.write(**row)


def test_a_third_logger_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setitem(
        LOGGERS,
        "own",
        lambda run, step, config: (lambda at, numbers: seen.append((at, dict(numbers))), lambda: seen.append(config)),
    )
    assert TrainConfig(loggers=("own",)).loggers == ("own",)
    write(tmp_path / "metrics.jsonl", "own")
    assert seen == [*NUMBERS, {"train": {"seed": 7}}]
    assert [row["step"] for row in read_log(tmp_path / "metrics.jsonl")] == [1, 2]


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "metrics.jsonl", "tensorboard")
    board = EventAccumulator(str(tmp_path)).Reload()
    assert {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]} == {
        "loss": [(1, 2.0)], "valid_loss": [(2, 1.5)],
    }  # fmt: skip


def test_wandb_writes_offline_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "metrics.jsonl", "wandb")
    (kept,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    wanted, end = (b"valid_loss", b"1.5", b"seed"), time.monotonic() + 60
    while any(text not in kept.read_bytes() for text in wanted) and time.monotonic() < end:
        time.sleep(0.05)  # a process of wandb's own writes the file, and may be behind
    assert [text for text in wanted if text not in kept.read_bytes()] == []
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b"0123456789abcdef" in path.read_bytes()]


def test_an_unknown_logger_is_refused_and_the_old_setting_still_read() -> None:
    with pytest.raises(BathyError, match=r"tensorbord.*tensorboard"):
        TrainConfig(loggers=("tensorbord",))
    read = TrainConfig.model_validate
    assert read({"tensorboard": True}).loggers == ("tensorboard",) and read({"tensorboard": False}).loggers == ()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_named_with_its_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BathyError, match=rf"bathy\[{name}\]"):
        write(tmp_path / "metrics.jsonl", name)
