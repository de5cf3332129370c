"""Translation's share of the float32 ceiling: beam search of bathy, and the same model exported to CTranslate2.

The ceiling is the speed of matrix products measured in the same run, divided by the products that a beam of this width
and length must do: real source tokens only, each hypothesis attending to its own history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bathy import console
from bathy.errors import require
from bathy.folding import fold
from bathy.lab.bench import interleaved
from bathy.nmt.config import Config
from bathy.nmt.corpora.toy import write_toy
from bathy.nmt.data import Split
from bathy.nmt.dataconfig import DataConfig, PrepareConfig
from bathy.nmt.export import ctranslate
from bathy.nmt.prepare import prepare
from bathy.nmt.search import Decode, search
from bathy.nmt.translate import batches, padded
from bathy.transformer import Transformer, TransformerConfig

MODEL = TransformerConfig(vocab=8000, encoder_layers=6, decoder_layers=6, width=512, heads=4, ffn=1024)
SENTENCES, BATCH, BEAM, LENGTH = 250, 50, 5, 20


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return seconds, sentences a second and the share of the ceiling."""
    torch.set_num_threads(1)
    rows, name = sources(data)
    rows = rows[: SENTENCES // 5] if quick else rows
    model = fold(Transformer(MODEL)).eval()
    with tempfile.TemporaryDirectory() as folder:
        seconds = interleaved(actions(model, rows, Path(folder)), 1 if quick else 3)
    peak = GEMM_FLOPS / min(seconds.pop("matrix product"))
    work = beam_flops(MODEL, [len(row) for row in rows], BEAM, LENGTH)
    result = {what: min(times) for what, times in seconds.items()}
    title = f"{len(rows)} sentences of {name}, batches of {BATCH}, beam {BEAM}, length {LENGTH}, CPU time, 1 thread"
    columns = ["engine", "seconds", "sentences/s", "GFLOP/s", "of the ceiling"]
    table = [(what, s, len(rows) / s, work / s / 1e9, work / s / peak) for what, s in result.items()]
    table.append(("ceiling", work / peak, len(rows) * peak / work, peak / 1e9, 1.0))
    console.out.print(console.table(title, columns, table))
    return {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in table}


GEMM = (4096, 512, 1024)
GEMM_FLOPS = 2 * GEMM[0] * GEMM[1] * GEMM[2] * 20


def actions(model: Transformer, rows: Sequence[Sequence[int]], folder: Path) -> dict[str, Callable[[], object]]:
    """What is timed."""
    x, w = torch.randn(GEMM[0], GEMM[1]), torch.randn(GEMM[2], GEMM[1])
    decode = Decode(beam=BEAM, min_length=LENGTH, max_length=LENGTH)

    def ours() -> None:
        for batch in batches([len(row) for row in rows], BATCH, 1 << 20):
            search([model], padded([rows[i] for i in batch]), decode)

    engines = {f"CTranslate2 {kind}": _ctranslate2(model, rows, folder, kind) for kind in ("float32", "int8")}
    return {"bathy float32": ours, **engines, "matrix product": lambda: [torch.mm(x, w.T) for _ in range(20)]}


def _ctranslate2(model: Transformer, rows: Sequence[Sequence[int]], folder: Path, kind: str) -> Callable[[], object]:
    """A translation of all rows by CTranslate2 with the same search."""
    names = [str(i) for i in range(model.config.vocab)]
    names[1:4] = ["<unk>", "<s>", "</s>"]
    (folder / kind).mkdir()
    ctranslate.build(model, names, None if kind == "float32" else kind).save(str(folder / kind))
    engine = require("ctranslate2", "export").Translator(str(folder / kind), compute_type=kind, intra_threads=1)
    sentences = [[names[i] for i in row] for row in rows]
    options = {"beam_size": BEAM, "min_decoding_length": LENGTH, "max_decoding_length": LENGTH, "max_batch_size": BATCH}
    return lambda: engine.translate_batch(sentences, length_penalty=0.6, **options)


def sources(data: Path | None) -> tuple[list[list[int]], str]:
    """Source sentences as ids, and what they are."""
    with tempfile.TemporaryDirectory() as folder:
        raw, path, vocab = data or Path(folder) / "toy", Path(folder) / "data", MODEL.vocab if data else 1000
        if not data:
            write_toy(raw)
        prepare(Config(data=DataConfig(path=str(path), vocab=vocab), prepare=PrepareConfig(raw=str(raw))))
        source = Split(path, "valid").source
        return [source[i].tolist() for i in range(SENTENCES)], data.name if data else "the toy corpus"


def beam_flops(config: TransformerConfig, lengths: Sequence[int], beam: int, steps: int) -> float:
    """Multiplications and additions of the matrix products that translate sentences of these lengths."""
    d, f = config.width, config.ffn
    encoder = sum(config.encoder_layers * (2 * n * (4 * d * d + 2 * d * f) + 4 * n * n * d) for n in lengths)
    memory = sum(config.decoder_layers * 4 * n * d * d for n in lengths)
    histories = steps * (steps + 1) // 2
    attention = sum(config.decoder_layers * 4 * d * (histories + steps * n) for n in lengths)
    token = config.decoder_layers * 2 * (6 * d * d + 2 * d * f) + 2 * d * config.vocab
    return float(encoder + memory + beam * (attention + len(lengths) * steps * token))
