"""Data folders for benchmarks: the given corpus, or the toy corpus, prepared once and kept in the cache."""

from __future__ import annotations

from pathlib import Path

from bathy import console
from bathy.nmt.config import Config
from bathy.nmt.corpora.toy import write_toy
from bathy.nmt.dataconfig import DataConfig, PrepareConfig
from bathy.nmt.prepare import prepare

CACHE = Path(".cache/bench")


def prepared(data: Path | None, vocab: int) -> Path:
    """The German–English corpus in folder `data`, with joint BPE of `vocab` entries; without it the toy corpus, said so."""
    if data is None:
        console.out.print("no --data given: the toy corpus is used")
        data = CACHE / "toy-text"
        if not data.exists():
            write_toy(data, size=20_000, seed=1)
    folder = CACHE / f"{data.name}-{vocab}"
    prepare(Config(data=DataConfig(path=str(folder), vocab=vocab), prepare=PrepareConfig(raw=str(data))))
    return folder
