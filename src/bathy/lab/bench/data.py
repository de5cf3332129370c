"""Data folders for benchmarks: the given corpus, the toy corpus, or random tokens, made once and kept in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bathy import console
from bathy.files import replacing
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.settings import DataConfig, PrepareConfig

CACHE = Path(".cache/bench")
PAIRS = 20_000
"""Sentence pairs of the toy corpus."""


def raw_text(data: Path | None) -> Path:
    """The folder of parallel text that was given; without one the toy corpus, said so."""
    if data is not None:
        return data
    console.out.print("no --data given: the toy corpus is used")
    toy = CACHE / "toy-text"
    if not toy.exists():
        write_toy(toy, size=PAIRS, seed=1)
    return toy


def prepare_data(data: Path | None, vocab: int) -> Path:
    """The German–English corpus in folder `data`, or the toy corpus, with joint BPE of `vocab` entries."""
    raw = raw_text(data)
    folder = CACHE / f"{raw.name}-{vocab}"
    prepare(Config(data=DataConfig(path=str(folder), vocab=vocab), prepare=PrepareConfig(raw=str(raw))))
    return folder


def random_stream(vocab: int) -> Path:
    """A folder of random token ids that language modelling reads: where the text does not matter."""
    folder = CACHE / f"random-{vocab}"
    for name, size in {"train.bin": 50_000, "val.bin": 2_000}.items():
        if not (folder / name).exists():
            ids = np.random.default_rng(size).integers(0, vocab, size).astype(np.uint16)
            with replacing(folder / name) as temporary:
                ids.tofile(temporary)
    return folder
