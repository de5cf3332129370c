"""What later parts, and depth, give a small character model beside GPT-2's block: loss at equal updates, tokens, parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bathy.lab.bench.language.study import BASE, Study, run_study

PARTS = Study(
    "lm_parts",
    {
        "gpt2": {},
        "rotary": {"model.positions": "rotary"},
        "rms": {"model.norm": "rms"},
        "swiglu": {"model.feed_forward": "swiglu", "model.ffn": 341},
        "qk_norm": {"model.qk_norm": True},
        "gqa": {"model.kv_heads": 2, "model.ffn": 576},
        "muon": {"optim.name": "muon"},
        "wsd": {"optim.schedule": "wsd"},
        "all": {
            "model.positions": "rotary", "model.norm": "rms", "model.feed_forward": "swiglu", "model.qk_norm": True,
            "model.kv_heads": 2, "model.ffn": 384, "optim.name": "muon", "optim.schedule": "wsd",
        },
        "2 layers": {"model.decoder_layers": 2, "model.width": 180, "model.ffn": 720},
        "8 layers": {"model.decoder_layers": 8, "model.width": 92, "model.ffn": 352},
        "16 layers": {"model.decoder_layers": 16, "model.width": 64, "model.ffn": 260},
    },
    rates=(2e-3, 4e-3),
    base=BASE,
)  # fmt: skip
"""The hidden width makes up for what a part takes or saves; rotary positions alone have 1 % fewer parameters.
The depths have 802,000 to 806,000 parameters; GPT-2's block here has 4 layers."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """One part at a time, all together, and three other depths."""
    return run_study(PARTS, data, quick)
