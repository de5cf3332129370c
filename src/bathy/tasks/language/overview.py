"""What a data folder of text holds, for a person: counts, a look at the text, and what batches make of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bathy import console
from bathy.clinic.plots import save
from bathy.errors import require
from bathy.tasks.language.data import Manifest, TextStream, read_manifest, verify

SHOWN = 48
"""Tokens of a sample."""


def look(folder: Path, split: str, check: bool) -> tuple[Manifest, TextStream]:
    """A data folder's manifest and a split; every file compared with its checksum, if asked."""
    manifest = read_manifest(folder)
    if check:
        verify(folder, manifest)
    return manifest, TextStream(folder, split)


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


def lengths(stream: TextStream) -> list[dict[str, Any]]:
    """Documents by length in tokens, in doublings."""
    found = np.diff(stream.starts)
    edges = 2 ** np.arange(int(np.log2(found.max())) + 2)
    counts, _ = np.histogram(found, edges)
    spans = zip(pairwise(edges.tolist()), counts.tolist(), strict=True)
    return [{"from": low, "to": high, "documents": count} for (low, high), count in spans if count]


def histogram(stream: TextStream) -> Table:
    """The lengths as bars of text."""
    rows = lengths(stream)
    most = max(row["documents"] for row in rows)
    cells = [
        [f"{row['from']:,}–{row['to'] - 1:,}", f"{'█' * round(40 * row['documents'] / most):<40} {row['documents']:>9,}"]
        for row in rows
    ]
    return console.table(f"{stream.name}: documents by length in tokens", ["tokens", "documents"], cells)


def picture(stream: TextStream, path: Path) -> None:
    """The lengths as a picture, SVG, PNG, PDF or JSON by the path's ending."""
    altair: Any = require("altair", "clinic")
    rows = altair.Data(values=lengths(stream))
    bars = altair.Chart(rows, width=560, height=160, title=f"{stream.name}: documents by length").mark_bar()
    x = altair.X("from:Q", bin="binned", scale=altair.Scale(type="log", base=2), title="tokens")
    save(bars.encode(x=x, x2="to:Q", y=altair.Y("documents:Q")), path)


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
