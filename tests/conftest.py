"""What all tests share: one thread, one seed, a small corpus and its data folder."""

import os
from pathlib import Path

import pytest
import torch

from bathy.nmt.config import Config
from bathy.nmt.corpora.toy import write_toy
from bathy.nmt.dataconfig import DataConfig, PrepareConfig
from bathy.nmt.prepare import prepare

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
