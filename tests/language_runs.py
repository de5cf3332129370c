"""A little of the standard library's source as raw text, its data folder, and a tiny run's settings."""

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bathy.tasks.language.config import Config
from bathy.tasks.language.prepare import prepare
from bathy.tasks.language.settings import DataConfig, PrepareConfig, Preparing

MODULES = ["this", "string", "bisect", "keyword", "stat", "token", "sched", "queue", "glob", "fnmatch", "colorsys", "linecache"]
TINY = {
    "decoder_layers": 2, "width": 16, "ffn": 24, "heads": 2, "context": 16, "max_length": 32, "decoder_scheme": "pre_ln",
    "encoder_scheme": "post_ln",
}  # fmt: skip


def source(name: str) -> str:
    """The source of a module of the standard library."""
    return (Path(sysconfig.get_path("stdlib")) / f"{name}.py").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def language_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language") / "raw"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(source(name), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def language_data(language_raw: Path) -> Path:
    """A data folder of byte-level BPE with 400 entries."""
    folder = language_raw.parent / "data"
    prepare(Preparing(data=DataConfig(path=str(folder), vocab=400), prepare=PrepareConfig(raw=str(language_raw))))
    return folder


@pytest.fixture
def language_config(language_data: Path) -> Callable[..., Config]:
    """Settings of a tiny run, with changes by section."""

    def make(**changes: dict[str, Any]) -> Config:
        values: dict[str, dict[str, Any]] = {
            "data": {"path": str(language_data), "vocab": 400},
            "task": {"sample": 5},
            "model": TINY,
            "optim": {"name": "adamw", "lr": 1e-3, "warmup": 2, "schedule": "constant"},
            "train": {"tokens": 64, "steps": 6, "valid_every": 3, "save_every": 3, "log_every": 1},
        }
        merged: dict[str, Any] = {name: values.get(name, {}) | changes.get(name, {}) for name in values.keys() | changes.keys()}
        return Config(**merged)

    return make
