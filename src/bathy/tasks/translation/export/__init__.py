"""Export: average, fold ω away, write what another engine loads, and see that it gives the same translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import ConfigError, DataError, unknown
from bathy.files import check_folder, explained, replacing_folder, write_text
from bathy.tasks import read_config
from bathy.tasks.models import fold_if_possible, home, load
from bathy.tasks.special_tokens import EOS
from bathy.tasks.sums import write_sums
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.export import argos, ctranslate, marian, native
from bathy.tasks.translation.export.compare import Comparison, Engine, compare
from bathy.tasks.translation.export.guide import guide
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec

SAMPLE = 100
"""Sentences that are translated by both engines after writing."""


@dataclass(frozen=True)
class Target:
    """An engine that models are written for."""

    check: Callable[[TransformerConfig], None]
    """Refuses what it cannot run faithfully, saying what to do instead."""
    write: Callable[[Transformer, Codec, Decode, Path, str], None]
    """Writes the model into a folder that exists, in a number format."""
    engine: Callable[[Path, Codec, str], Engine]
    """Opens what was written."""
    kinds: tuple[str, ...] = ("float32",)
    """Number formats of the weights."""


TARGETS = {
    "bathy": Target(native.check, native.write, native.Native),
    "marian": Target(marian.check, marian.write, marian.Marian),
    "ctranslate2": Target(ctranslate.check, ctranslate.write, ctranslate.CTranslate2, ("float32", "int8")),
    "argos": Target(argos.check, argos.write, argos.Argos, ("float32", "int8")),
}


def find_target(to: str, kind: str) -> Target:
    """The target of that name, or an error that names the nearest; the same for its number format."""
    if to not in TARGETS:
        raise ConfigError(unknown("export target", to, TARGETS))
    if kind not in TARGETS[to].kinds:
        raise ConfigError(f"{to} is written in {' or '.join(TARGETS[to].kinds)}, not {kind}")
    return TARGETS[to]


def export(
    source: Path,
    to: str,
    out: Path,
    decode: Decode,
    *,
    kind: str = "float32",
    which: str = "last",
    sample: Sequence[str] | None = None,
) -> tuple[str, list[Comparison]]:
    """Write the model of a run, checkpoint or model folder for an engine; returns what was measured, and how it came out."""
    target = find_target(to, kind)
    if out.exists():
        raise ConfigError(f"{out} exists; choose a different folder with --out, or remove it")
    check_folder(out)
    codec = Codec.load(home(source))
    model = fold_if_possible(load(source, decode.average, which))
    target.check(model.config)
    rows = codec.encode(sample) if sample else stored_sample(source) or random_sample(model.config)
    with explained(out), replacing_folder(out) as folder:
        target.write(model, codec, decode, folder, kind)
        codec.save(folder)  # after: Hugging Face writes a tokenizer.json too
        write_text(folder / "README.md", guide(to, codec, decode, model.config.max_length))
        write_sums(folder)
        engine = target.engine(folder, codec, kind)
        return engine.measure, compare(model, engine, rows, decode, sorted({1, decode.beam}))


def stored_sample(source: Path) -> list[list[int]]:
    """Validation sentences of the data folder that a run was trained on, if it is still there."""
    config = home(source) / "config.toml"
    try:
        side = Split(read_config(config, needs="translation").data.folders[0], "valid").source
    except (DataError, ConfigError):
        return []
    return [side[i].tolist() for i in range(min(SAMPLE, len(side)))]


def random_sample(config: TransformerConfig) -> list[list[int]]:
    """Sentences of random tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, min(20, config.max_length), (SAMPLE,), generator=generator).tolist()
    return [[*torch.randint(EOS + 1, config.vocab, (n,), generator=generator).tolist(), EOS] for n in lengths]
