"""Training beside Hugging Face: bathy's engine with Admin, and a plain loop over MarianMTModel of the same shape, in turns.

The same batch of real sentences, dropout 0.1 on branches, Adam, no label smoothing, one thread, CPU time of an update. Each
runs in a process of its own, as a user's would: the memory settings that bathy makes are part of bathy's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bathy import console
from bathy.core.transformer import Transformer
from bathy.errors import ConfigError, unknown
from bathy.kernels.memory import hold_memory
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.apart import Apart
from bathy.lab.bench.data import CACHE
from bathy.tasks import make_task, read_config
from bathy.tasks.huggingface import quiet
from bathy.tasks.special_tokens import PAD
from bathy.tasks.translation.export import marian
from bathy.tasks.translation.search import Decode
from bathy.train.config import Config
from bathy.train.state import begin
from bathy.train.task import peek
from bathy.train.update import update
from bathy.train.world import World

WIDTHS = {64: (4, 1024), 128: (4, 1024), 512: (8, 4096)}
"""Width, its heads, and the budget of a batch in tokens."""
CASES = {f"6L-6L, width {width}, {kind}": (width, kind) for width in WIDTHS for kind in ("float32", "bfloat16")}
PAIRS, WARM = 20, 2
"""Pairs of updates, and updates before them in which memory grows to its size."""
COLUMNS = [
    "model",
    "bathy, CPU-ms",
    "Hugging Face, CPU-ms",
    "Hugging Face / bathy",
    "95 % from",
    "to",
    "bathy, peak MB",
    "Hugging Face, peak MB",
]


def compare(folder: Path, only: str = "", layers: int = 6, pairs: int = PAIRS) -> dict[str, dict[str, float]]:
    """Print and return, for each case, an update's CPU milliseconds and the ratio with its 95 % interval."""
    chosen = {name: case for name, case in CASES.items() if only in name}
    if not chosen:
        raise ConfigError(unknown("case", only, CASES))
    torch.set_num_threads(1)
    result = {name: _measure(folder, *case, layers, pairs) for name, case in chosen.items()}
    title = f"an update beside Hugging Face's model in a plain loop, {pairs} pairs in turns"
    console.out.print(console.table(title, COLUMNS, [(name, *list(row.values())[:-1]) for name, row in result.items()]))
    return result


def _measure(folder: Path, width: int, precision: str, layers: int, pairs: int) -> dict[str, float]:
    case = (str(folder), width, precision, layers)
    with Apart(__name__, "engine", *case) as ours, Apart(__name__, "plain_loop", *case) as theirs:
        for _ in range(WARM):
            ours()
            theirs()
        seconds = interleaved({"bathy": ours, "peer": theirs}, pairs)
    middle, low, high = ratio(seconds["peer"], seconds["bathy"])
    times = {name: 1000 * median(some) for name, some in seconds.items()}
    memory = {"bathy, peak MB": ours.memory, "peer, peak MB": theirs.memory}
    return {**times, "ratio": middle, "low": low, "high": high, **memory, "pairs": float(pairs)}


def _config(folder: str, width: int, precision: str, layers: int) -> Config:
    heads, tokens = WIDTHS[width]
    settings = {
        "data.path": f'"{folder}"', "model.encoder_layers": layers, "model.decoder_layers": layers, "model.width": width,
        "model.ffn": 4 * width, "model.heads": heads, "model.dropout": 0.1, "optim.name": "adam",
        "optim.label_smoothing": 0.0, "train.tokens": tokens, "train.precision": precision,
    }  # fmt: skip
    return read_config(None, [f"{key}={value}" for key, value in settings.items()])


def engine(folder: str, width: int, precision: str, layers: int) -> Callable[[], object]:
    """An update by bathy's engine."""
    hold_memory()
    config = _config(folder, width, precision, layers)
    state = begin(make_task(config), config, CACHE / "none", World())
    batch = peek(state.batches)

    def step() -> None:
        state.step += 1
        update(config, state, World(), [batch])

    return step


def plain_loop(folder: str, width: int, precision: str, layers: int) -> Callable[[], object]:
    """An update by a plain loop, on the same batch."""
    import transformers

    task = make_task(_config(folder, width, precision, layers))
    batch: Any = peek(task.batches(0, 1))
    built = task.build()
    assert isinstance(built, Transformer)
    shape = built.config.model_copy(update={"encoder_scheme": "post_ln", "decoder_scheme": "post_ln"})
    with quiet(transformers):
        model = marian.build(Transformer(shape).eval(), Decode()).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    inputs = {"input_ids": batch.source, "attention_mask": batch.source.ne(PAD).long(), "decoder_input_ids": batch.target_in}
    labels = batch.target_out.masked_fill(batch.target_out.eq(PAD), -100)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model(**inputs, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
