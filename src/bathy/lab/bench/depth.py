"""18L-18L in 600 updates: Post-LN learns nothing beyond token frequencies, Pre-LN and Admin do."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bathy import console
from bathy.lab.bench.prepared import CACHE, prepared
from bathy.nmt.batches import open_splits
from bathy.nmt.config import Config, OptimConfig, TrainConfig
from bathy.nmt.dataconfig import DataConfig
from bathy.nmt.log import read_log
from bathy.nmt.train import train
from bathy.nmt.watch import unigram_entropy
from bathy.nmt.world import World
from bathy.transformer import Architecture

SCHEMES = ("post_ln", "pre_ln", "admin")
SEEDS = (1111, 2222, 3333)
LOG = 50


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Train each scheme from each seed, or take up where an earlier call stopped; print and return NLLs in nats."""
    torch.set_num_threads(1)
    folder = prepared(data, vocab=4000)
    entropy = unigram_entropy(open_splits(DataConfig(path=str(folder))))
    seeds, steps = (SEEDS[:1], 100) if quick else (SEEDS, 600)
    runs: list[dict[str, Any]] = [
        {"scheme": name, "seed": seed, **_train(folder, name, seed, steps)} for seed in seeds for name in SCHEMES
    ]
    rows = []
    for name in SCHEMES:
        values = [run["train_nll"] for run in runs if run["scheme"] == name]
        rows.append((name, len(values), mean(values), min(values), max(values), entropy - mean(values)))
    columns = ["scheme", "seeds", "NLL, last 50 updates", "lowest", "highest", "below unigram entropy"]
    console.out.print(console.table(f"{folder.name}: 18L-18L, width 64, {steps} updates; entropy {entropy:.3f}", columns, rows))
    return {"unigram_entropy": entropy, "steps": steps, "runs": runs}


def _train(data: Path, scheme: str, seed: int, steps: int) -> dict[str, float]:
    config = Config(
        data=DataConfig(path=str(data)),
        model=Architecture(
            encoder_layers=18, decoder_layers=18, width=64, heads=4, ffn=256, encoder_scheme=scheme, decoder_scheme=scheme
        ),
        optim=OptimConfig(name="radam", lr=1e-3, warmup=200),
        train=TrainConfig(tokens=1024, steps=steps, seed=seed, log_every=LOG, valid_every=0, save_every=200, keep_last=1),
    )
    run = CACHE / "depth" / f"{data.name}-{scheme}-{seed}-{steps}"
    train(config, run, World())
    rows = read_log(run / "metrics.jsonl")
    return {
        "train_nll": [row["nll"] for row in rows if "nll" in row][-1],
        "valid_nll": [row["valid_loss"] for row in rows if "valid_loss" in row][-1],
        "source_gap": [row["source_gap"] for row in rows if "source_gap" in row][-1],
    }
