"""Beam search beside other engines: the same model in bathy, Hugging Face and CTranslate2, in turns, batch 1 and 50.

Random weights and a fixed length, so that every engine takes the same number of steps on the same sentences. A ratio is
bathy's CPU time in float32 over the other engine's, paired round by round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bathy import console
from bathy.admin.fold import fold
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ConfigError, require, unknown
from bathy.kernels.memory import hold_memory
from bathy.lab.bench import interleaved, ratio
from bathy.tasks.inference import prepare as prepare_decoder
from bathy.tasks.special_tokens import PAD
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.export import ctranslate, marian
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.search import Decode, search
from bathy.tasks.translation.settings import DataConfig, PrepareConfig
from bathy.tasks.translation.translate import padded

WIDE = {"vocab": 8000, "width": 512, "heads": 8, "ffn": 2048}
MODELS: dict[str, TransformerConfig] = {
    "12L-2L, width 128": TransformerConfig(encoder_layers=12, decoder_layers=2, vocab=8000, width=128, heads=4, ffn=256),
    "6L-6L, width 512": TransformerConfig(encoder_layers=6, decoder_layers=6, **WIDE),  # type: ignore[arg-type]
    "18L-3L, width 512": TransformerConfig(encoder_layers=18, decoder_layers=3, **WIDE),  # type: ignore[arg-type]
    "18L-18L, width 512": TransformerConfig(encoder_layers=18, decoder_layers=18, **WIDE),  # type: ignore[arg-type]
}
BATCHES = {1: 4, 50: 5}
"""Sentences in a batch, and the beam."""
LENGTH, ROUNDS = 20, 20
OURS = "bathy float32"
Action = Callable[[], object]


def run(data: Path | None, quick: bool, only: str = "") -> dict[str, Any]:
    """Print and return, for each model and batch, milliseconds per sentence and ratios with their 95 % intervals."""
    torch.set_num_threads(1)
    hold_memory()
    models = {title: config for title, config in MODELS.items() if only in title}
    if not models:
        raise ConfigError(unknown("model", only, MODELS))
    rows, name = sources(data)
    result: dict[str, Any] = {}
    for title, config in list(models.items())[: 1 if quick else None]:
        model = fold(Transformer(config)).eval()
        with tempfile.TemporaryDirectory() as folder:
            engines = Engines(model, Path(folder))
            for batch, beam in BATCHES.items():
                some = chosen(rows, batch, config.vocab)
                seconds = interleaved(engines.actions(some, beam), 2 if quick else ROUNDS)
                result[f"{title}, batch {batch}"] = measured(seconds, batch)
        mine = {case: row for case, row in result.items() if case.startswith(title)}
        _show(mine, f"{name}, length {LENGTH}, CPU time, 1 thread, {2 if quick else ROUNDS} pairs")
    return result


def chosen(rows: Sequence[Sequence[int]], batch: int, vocab: int) -> list[list[int]]:
    """Sentences of similar, middling length, as a batch of `bathy translate` has them."""
    ordered = sorted(rows, key=len)
    start = max(0, len(ordered) // 2 - batch // 2)
    return [[min(i, vocab - 1) for i in row] for row in ordered[start : start + batch]]


def measured(seconds: Mapping[str, list[float]], batch: int) -> dict[str, Any]:
    """Milliseconds per sentence, and bathy's time over each engine's: median and 95 % interval."""
    return {
        name: {
            "ms per sentence": 1000 * median(times) / batch,
            "ratio": dict(zip(("median", "low", "high"), ratio(seconds[OURS], times), strict=True)),
        }
        for name, times in seconds.items()
    }


def _show(result: Mapping[str, Any], title: str) -> None:
    table = [
        (case, engine, row["ms per sentence"], f"{r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]")
        for case, engines in result.items()
        for engine, row in engines.items()
        for r in (row["ratio"],)
    ]
    console.out.print(console.table(title, ["model", "engine", "ms/sentence", f"time of {OURS} / engine's, 95 %"], table))


class Engines:
    """One model in every engine that is installed."""

    def __init__(self, model: Transformer, folder: Path) -> None:
        self.model, self.names = model, [str(i) for i in range(model.config.vocab)]
        self.names[1:4] = ["<unk>", "<s>", "</s>"]
        self.ours = prepare_decoder(model)
        self.half = prepare_decoder(Transformer(model.config).bfloat16().eval())
        self.marian = marian.build(model, Decode())
        library = require("ctranslate2", "export")
        self.others = {}
        for kind in ("float32", "int8"):
            (folder / kind).mkdir()
            ctranslate.build(model, self.names, None if kind == "float32" else kind).save(str(folder / kind))
            self.others[kind] = library.Translator(str(folder / kind), compute_type=kind, intra_threads=1)

    def actions(self, rows: Sequence[Sequence[int]], beam: int) -> dict[str, Action]:
        """Engine to what is timed: the translation of the rows as one batch."""
        source, named = padded(rows), [[self.names[i] for i in row] for row in rows]
        decode = Decode(beam=beam, min_length=LENGTH, max_length=LENGTH)
        lengths = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH, "max_batch_size": len(rows)}

        def by_ctranslate2(kind: str) -> Action:
            return lambda: self.others[kind].translate_batch(named, beam_size=beam, length_penalty=0.6, patience=50, **lengths)

        return {
            OURS: lambda: search([self.ours], source, decode),
            "bathy bfloat16": lambda: search([self.half], source, decode),
            "Hugging Face float32": lambda: self._by_hugging_face(source, decode),
            "CTranslate2 float32": by_ctranslate2("float32"),
            "CTranslate2 int8": by_ctranslate2("int8"),
        }

    @torch.inference_mode()
    def _by_hugging_face(self, source: torch.Tensor, decode: Decode) -> object:
        settings = marian.generation(decode, LENGTH) | {"max_length": None}
        steps = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH}
        return self.marian.generate(input_ids=source, attention_mask=source.ne(PAD).long(), **settings | steps)


def sources(data: Path | None) -> tuple[list[list[int]], str]:
    """Source sentences as ids, and what they are."""
    with tempfile.TemporaryDirectory() as folder:
        raw, path, vocab = data or Path(folder) / "toy", Path(folder) / "data", 8000 if data else 1000
        if not data:
            write_toy(raw)
        prepare(Config(data=DataConfig(path=str(path), vocab=vocab), prepare=PrepareConfig(raw=str(raw))))
        source = Split(path, "valid").source
        return [source[i].tolist() for i in range(len(source))], data.name if data else "the toy corpus"
