"""What a data folder of text holds, for a person: counts, a look at the text, and what batches make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bathy import console
from bathy.tasks.language.data import Manifest, TextStream

SHOWN = 48
"""Tokens of a sample."""


def summary(folder: Path, manifest: Manifest) -> Table:
    """Counts, one row per split."""
    columns = ["split", "documents", "tokens", "bytes", "bytes per token", "unknown %"]
    rows: list[list[Any]] = []
    for split, row in manifest["splits"].items():
        share, unknown = row["bytes"] / row["tokens"], 100 * row["unknown"] / row["tokens"]
        rows.append(
            [split, f"{row['documents']:,}", f"{row['tokens']:,}", f"{row['bytes']:,}", f"{share:.3f}", f"{unknown:.3g}"]
        )
    title = (
        f"{folder}: vocabulary {manifest['vocab']:,}, documents that decoding gives back {100 * manifest['round_trip']:.3g} %"
    )
    return console.table(title, columns, rows)


def lengths(stream: TextStream) -> Table:
    """Documents by length in tokens, in doublings."""
    found = np.diff(stream.starts)
    edges = 2 ** np.arange(int(np.log2(found.max())) + 2)
    counts, _ = np.histogram(found, edges)
    most = max(1, counts.max())
    spans = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    cells = [
        [f"{low:,}–{high - 1:,}", f"{'█' * round(40 * count / most):<40} {count:>9,}"] for low, high, count in spans if count
    ]
    return console.table(f"{stream.name}: documents by length in tokens", ["tokens", "documents"], cells)


def samples(stream: TextStream, number: int, seed: int = 1) -> Table:
    """Pieces from random places, as text and as tokens."""
    assert stream.codec
    places = np.random.default_rng(seed).integers(0, max(1, len(stream) - SHOWN), number)
    cells = []
    for place in places.tolist():
        ids = stream.ids[place : place + SHOWN].tolist()
        names = "·".join(stream.codec.tokenizer.id_to_token(i) or str(i) for i in ids)
        cells.append([place, stream.codec.decode(ids), names])
    return console.table(f"{stream.name}: samples", ["place", "text", "tokens"], cells)
