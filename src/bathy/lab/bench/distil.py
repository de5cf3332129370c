"""A student's speed beside its teacher's: the shapes of configs/multi30k_teacher.toml and multi30k_student.toml.

Random weights and a fixed length, so that both take the same number of steps on the same sentences; the CPU time of one thread,
in turns. CTranslate2 runs the student in int8 beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bathy import console
from bathy.admin.fold import fold
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import require
from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.translate import Action, chosen, sources
from bathy.tasks.inference import prepare
from bathy.tasks.special_tokens import SPECIALS
from bathy.tasks.translation.export import ctranslate
from bathy.tasks.translation.export.compare import Rows
from bathy.tasks.translation.search import Decode, search
from bathy.tasks.translation.translate import padded

SHARED: dict[str, Any] = {"vocab": 4000, "width": 128, "heads": 4, "max_length": 256}
SHAPES = {
    "teacher": TransformerConfig(encoder_layers=12, decoder_layers=6, ffn=512, **SHARED),
    "student": TransformerConfig(encoder_layers=6, decoder_layers=2, ffn=256, **SHARED),
}
BATCHES = (1, 64)
LENGTH, ROUNDS = 20, 20
DECODE = Decode(beam=5, min_length=LENGTH, max_length=LENGTH)


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return, for each batch size, milliseconds per sentence and the teacher's time over each student's."""
    torch.set_num_threads(1)
    rows, name = sources(data)
    models = {role: fold(Transformer(config)).eval() for role, config in SHAPES.items()}
    decoders = {role: prepare(model) for role, model in models.items()}
    int8 = quantised(models["student"])
    result: dict[str, Any] = {}
    for batch in BATCHES:
        some = chosen(rows, batch, SHARED["vocab"])
        timed: dict[str, Action] = {
            role: partial(search, [decoder], padded(some), DECODE) for role, decoder in decoders.items()
        }
        timed["student, CTranslate2 int8"] = partial(int8, some)
        seconds = interleaved(timed, 2 if quick else ROUNDS)
        result[f"batch {batch}"] = {
            who: {
                "ms per sentence": 1000 * median(times) / batch,
                "times as fast": dict(zip(("median", "low", "high"), ratio(seconds["teacher"], times), strict=True)),
            }
            for who, times in seconds.items()
        }
    _show(result, f"{name}, beam {DECODE.beam}, CPU time, 1 thread")
    return result


def quantised(model: Transformer) -> Callable[[Rows], object]:
    """The same search by CTranslate2 in int8."""
    names = [*SPECIALS, *map(str, range(len(SPECIALS), model.config.vocab))]
    with tempfile.TemporaryDirectory() as folder:
        ctranslate.build(model, names, "int8").save(folder)
        engine = require("ctranslate2", "export").Translator(folder, compute_type="int8", intra_threads=1)
    lengths = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
    options = {"beam_size": DECODE.beam, "length_penalty": DECODE.length_penalty, "patience": 50, **lengths}
    return lambda rows: engine.translate_batch([[names[i] for i in row] for row in rows], **options)


def _show(result: dict[str, Any], title: str) -> None:
    table = [
        (case, who, row["ms per sentence"], f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]")
        for case, rows in result.items()
        for who, row in rows.items()
        for r in (row["times as fast"],)
    ]
    console.out.print(console.table(title, ["batch", "model", "ms/sentence", "times as fast as the teacher, 95 %"], table))
