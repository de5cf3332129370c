"""Training speed of a language model beside Hugging Face's GPT-2 with a plain loop: tokens per CPU-second, in turns.

GPT-2's shape: 12 layers, width 384, 6 heads, context 256, 16 windows a batch, GELU, learned positions, AdamW; one thread. The
loop runs in a process of its own, as a user's would: the memory settings that bathy makes are part of bathy's speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, mode
from typing import Any, NamedTuple

import torch

from bathy import console
from bathy.errors import require
from bathy.kernels.memory import hold_memory
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.apart import Apart
from bathy.lab.bench.data import CACHE, random_stream
from bathy.tasks import make_task, read_config
from bathy.tasks.huggingface import quiet
from bathy.train.flops import Peak, gemm_peak
from bathy.train.state import begin
from bathy.train.task import peek
from bathy.train.update import update
from bathy.train.world import World


class Shape(NamedTuple):
    """A model and a batch."""

    layers: int = 12
    width: int = 384
    heads: int = 6
    context: int = 256
    rows: int = 16
    vocab: int = 4096


QUICK = Shape(2, 64, 4, 32, 4, 512)
"""Only good for trying the benchmark out."""
FORMATS = ("float32", "bfloat16")
PAIRS = 20
"""Updates of each, in turns."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Both formats; `data` is not needed: the time does not depend on the text."""
    torch.set_num_threads(1)
    hold_memory()
    result = {}
    for precision in FORMATS:
        result[precision] = measure(precision, QUICK if quick else Shape(), 3 if quick else PAIRS)
    columns = [
        "format",
        "bathy, tokens/CPU-s",
        "GPT-2, tokens/CPU-s",
        "ratio",
        "95 %",
        "of GEMM peak",
        "GPT-2's share",
        "peak by",
    ]
    rows = [
        (name, r["bathy"], r["gpt2"], r["ratio"], f"{r['low']:.2f}–{r['high']:.2f}", r["share"], r["peer_share"], r["peak by"])
        for name, r in result.items()
    ]
    console.out.print(console.table("training, one thread, the same batches in turns", columns, rows))
    return result


def measure(precision: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """Tokens per CPU-second of both, the ratio of paired updates, and shares of the GEMM peak in the same number format."""
    ours, flops = _ours(precision, shape)
    kind = getattr(torch, precision)
    peaks: list[Peak] = []
    with Apart(__name__, "plain_loop", precision, *shape) as theirs:
        peak = lambda: peaks.append(gemm_peak(torch.device("cpu"), kind))  # noqa: E731
        seconds = interleaved({"bathy": ours, "gpt2": theirs, "peak": peak}, rounds)
    tokens = shape.rows * shape.context
    middle, low, high = ratio(seconds["gpt2"], seconds["bathy"])
    speeds = {name: tokens / mean(seconds[name]) for name in ("bathy", "gpt2")}
    shares = {name: flops / mean(seconds[name]) / mean(peak.speed for peak in peaks) for name in ("bathy", "gpt2")}
    found = {**speeds, "ratio": middle, "low": low, "high": high, "share": shares["bathy"], "peer_share": shares["gpt2"]}
    return found | {"pairs": float(rounds), "peak by": mode(peak.by for peak in peaks)}


def _ours(precision: str, shape: Shape) -> tuple[Callable[[], object], float]:
    """An update by the engine, and its operations."""
    layers, width, heads, context, rows, vocab = shape
    settings = {
        "task.kind": "language", "task.sample": 0, "data.path": json.dumps(str(random_stream(vocab))), "data.vocab": vocab,
        "model.decoder_layers": layers, "model.decoder_scheme": "pre_ln", "model.width": width, "model.ffn": 4 * width,
        "model.heads": heads, "model.context": context, "model.max_length": context, "model.positions": "learned",
        "model.feed_forward": "gelu", "model.embedding_scale": "one", "model.init": "normal", "optim.name": "adamw",
        "optim.lr": 1e-4, "optim.warmup": 10, "train.tokens": rows * context, "train.precision": precision,
    }  # fmt: skip
    config = read_config(None, [f"{key}={value}" for key, value in settings.items()])
    task = make_task(config)
    state = begin(task, config, CACHE / "none", World())
    batch = peek(state.batches)

    def step() -> None:
        state.step += 1
        update(config, state, World(), [batch])

    return step, task.flops(state.model, batch)


def plain_loop(precision: str, *sizes: int) -> Callable[[], object]:
    """An update by a plain loop over GPT2LMHeadModel, with torch's fused AdamW."""
    transformers: Any = require("transformers", "export")
    layers, width, heads, context, rows, vocab = sizes
    shape = {"n_positions": context, "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocab}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with quiet(transformers):
        made = transformers.GPT2Config(**shape, **dropouts, activation_function="gelu")
        model = transformers.GPT2LMHeadModel(made)
    optimizer = torch.optim.AdamW(model.train().parameters(), 1e-4, fused=True)
    tokens = torch.randint(vocab, (rows, context))
    half = precision == "bfloat16"

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
