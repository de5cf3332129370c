"""A student's speed beside its teacher's: the shapes of configs/multi30k_teacher.toml and multi30k_student.toml.

Random weights and a fixed length, so that both take the same number of steps on the same sentences; the CPU time of one thread,
in turns. CTranslate2 runs the student in int8 beside them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bathy import console
from bathy.admin.fold import fold
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.translate import OURS, Engines, chosen, sources

SHARED: dict[str, Any] = {"vocab": 4000, "width": 128, "heads": 4, "max_length": 256}
SHAPES = {
    "teacher": TransformerConfig(encoder_layers=12, decoder_layers=6, ffn=512, **SHARED),
    "student": TransformerConfig(encoder_layers=6, decoder_layers=2, ffn=256, **SHARED),
}
BATCHES = (1, 64)
BEAM, ROUNDS = 5, 20


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return, for each batch size, milliseconds per sentence and the teacher's time over each student's."""
    torch.set_num_threads(1)
    rows, name = sources(data)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for role, config in SHAPES.items():
            (Path(folder) / role).mkdir()
            engines[role] = Engines(fold(Transformer(config)).eval(), Path(folder) / role)
        for batch in BATCHES:
            some = chosen(rows, batch, SHARED["vocab"])
            actions = {role: engine.actions(some, BEAM) for role, engine in engines.items()}
            timed = {role: ways[OURS] for role, ways in actions.items()}
            timed["student, CTranslate2 int8"] = actions["student"]["CTranslate2 int8"]
            seconds = interleaved(timed, 2 if quick else ROUNDS)
            result[f"batch {batch}"] = {
                who: {
                    "ms per sentence": 1000 * median(times) / batch,
                    "times as fast": dict(zip(("median", "low", "high"), ratio(seconds["teacher"], times), strict=True)),
                }
                for who, times in seconds.items()
            }
    _show(result, f"{name}, beam {BEAM}, CPU time, 1 thread")
    return result


def _show(result: dict[str, Any], title: str) -> None:
    table = [
        (case, who, row["ms per sentence"], f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]")
        for case, rows in result.items()
        for who, row in rows.items()
        for r in (row["times as fast"],)
    ]
    console.out.print(console.table(title, ["batch", "model", "ms/sentence", "times as fast as the teacher, 95 %"], table))
