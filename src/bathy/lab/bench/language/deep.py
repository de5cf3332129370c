"""Causal models of 48 layers and width 64: Post-LN, Pre-LN and Admin, each at the best of three rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bathy.lab.bench.language.study import BASE, Study, run_study

DEEP = Study(
    "lm_deep",
    {name: {"model.decoder_scheme": name} for name in ("post_ln", "pre_ln", "admin")},
    rates=(1e-3, 5e-4, 2e-3),
    base={
        **BASE, "model.decoder_layers": 48, "model.width": 64, "model.ffn": 256, "model.init": "xavier",
        "model.embedding_scale": "sqrt_width", "model.positions": "sinusoidal", "train.tokens": 256,
        "train.steps": 1000, "optim.warmup": 100,
    },
)  # fmt: skip
"""Initialised as in the Admin paper; 4 windows of 64 characters an update."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Three schemes."""
    return run_study(DEEP, data, quick)
