"""What all tests share: one thread, one seed, a small corpus and its data folder."""

import os
from pathlib import Path

import pytest
import torch
from language_runs import language_config, language_data, language_raw  # noqa: F401, fixtures

from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.settings import DataConfig, PrepareConfig

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def toy_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "toy"
    write_toy(folder, size=1500, held_out=30, seed=1)
    return folder


@pytest.fixture(scope="session")
def toy_data(toy_raw: Path) -> Path:
    """A prepared data folder of 1,500 toy sentences with a vocabulary of 600."""
    folder = toy_raw.parent / "data"
    prepare(Config(data=DataConfig(path=str(folder), vocab=600), prepare=PrepareConfig(raw=str(toy_raw))))
    return folder
