"""18L-18L in 600 updates: Post-LN learns nothing beyond token frequencies, Pre-LN and Admin do."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bathy import console
from bathy.core.transformer import Architecture
from bathy.lab.bench.data import CACHE, prepare_data
from bathy.tasks import make_task
from bathy.tasks.translation.batches import open_splits
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.settings import DataConfig
from bathy.tasks.translation.task import unigram_entropy
from bathy.train.config import OptimConfig, TrainConfig
from bathy.train.log import read_log
from bathy.train.loop import fit
from bathy.train.world import World

SCHEMES = ("post_ln", "pre_ln", "admin")
SEEDS = (1111, 2222, 3333)
LAYERS, WIDTH, VOCAB = 18, 64, 4000
STEPS, QUICK_STEPS, LOG = 600, 100, 50


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Train each scheme from each seed, or take up where an earlier call stopped; print and return NLLs in nats."""
    torch.set_num_threads(1)
    folder = prepare_data(data, vocab=VOCAB)
    entropy = unigram_entropy(open_splits(DataConfig(path=str(folder))))
    seeds, steps = (SEEDS[:1], QUICK_STEPS) if quick else (SEEDS, STEPS)
    runs: list[dict[str, Any]] = [
        {"scheme": name, "seed": seed, **_train(folder, name, seed, steps)} for seed in seeds for name in SCHEMES
    ]
    rows = []
    for name in SCHEMES:
        values = [run["train_nll"] for run in runs if run["scheme"] == name]
        rows.append((name, len(values), mean(values), min(values), max(values), entropy - mean(values)))
    columns = ["scheme", "seeds", "NLL, last updates", "lowest", "highest", "below unigram entropy"]
    console.out.print(
        console.table(
            f"{folder.name}: {LAYERS}L-{LAYERS}L, width {WIDTH}, {steps} updates; entropy {entropy:.3f}", columns, rows
        )
    )
    return {"unigram_entropy": entropy, "steps": steps, "runs": runs}


def _train(data: Path, scheme: str, seed: int, steps: int) -> dict[str, float]:
    config = Config(
        data=DataConfig(path=str(data)),
        model=Architecture(
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            width=WIDTH,
            heads=4,
            ffn=4 * WIDTH,
            encoder_scheme=scheme,
            decoder_scheme=scheme,
        ),
        optim=OptimConfig(name="radam", lr=1e-3, warmup=200),
        train=TrainConfig(tokens=1024, steps=steps, seed=seed, log_every=LOG, valid_every=0, save_every=200, keep_last=1),
    )
    run = CACHE / "depth" / f"{data.name}-{scheme}-{seed}-{steps}"
    fit(make_task(config), config, run, World())
    rows = read_log(run / "metrics.jsonl")
    return {
        "train_nll": [row["nll"] for row in rows if "nll" in row][-1],
        "valid_nll": [row["valid_loss"] for row in rows if "valid_loss" in row][-1],
        "source_gap": [row["source_gap"] for row in rows if "source_gap" in row][-1],
    }
