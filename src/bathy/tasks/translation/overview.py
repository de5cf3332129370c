"""What a data folder holds, for a person: counts, lengths, samples, and what batching would waste."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from bathy import console
from bathy.clinic.plots import save
from bathy.errors import require
from bathy.tasks.translation.data import Manifest, Split, verify
from bathy.tasks.translation.text.codec import Codec

BINS = 20
ENOUGH = 1000
"""Batches that the padding report looks at; a small corpus gives several epochs of them."""


def look(folder: Path, split: str, check: bool) -> tuple[Manifest, Split]:
    """A data folder's manifest and a split; every file compared with its checksum, if asked."""
    opened = Split(folder, split)
    if check:
        verify(folder, opened.manifest)
    return opened.manifest, opened


def summary(folder: Path, manifest: Manifest) -> Table:
    """Counts, lengths and losses, one row per split."""
    columns = ["split", "pairs", "tokens", "mean", "99 % below", "longest", "unknown %", "cut", "dropped"]
    rows = []
    for split, row in manifest["splits"].items():
        sides: list[Any] = [row["source"], row["target"]]
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in row.get("dropped", {}).items())
        unknown = " / ".join(f"{100 * side['unknown_rate']:.3g}" for side in sides)
        both = [" / ".join(f"{side[name]:,}" for side in sides) for name in ("tokens", "mean", "p99", "longest")]
        rows.append([split, f"{row['sentences']:,}", *both, unknown, row.get("cut", 0), dropped or "none"])
    survive = " / ".join(f"{100 * manifest['round_trip'][side]:.3g} %" for side in ("source", "target"))
    title = (
        f"{folder}: vocabulary {manifest['vocab']:,}, lines that tokenising and joining give back {survive}; source / target"
    )
    return console.table(title, columns, rows)


def lengths(split: Split) -> list[dict[str, Any]]:
    """Sentences by length, one row per bin and side; the last bin takes all beyond the 99.5th percentile."""
    both = {"source": split.source.lengths, "target": split.target.lengths}
    top = max(int(np.quantile(values, 0.995)) for values in both.values()) + 1
    edges = np.arange(0, top + -(-top // BINS) + 1, -(-top // BINS))
    rows = []
    for side, values in both.items():
        counts, _ = np.histogram(np.minimum(values, top), edges)
        spans = zip(pairwise(edges.tolist()), counts.tolist(), strict=True)
        rows += [{"side": side, "from": low, "to": high, "sentences": n} for (low, high), n in spans]
    return rows


def histogram(split: Split) -> Table:
    """The lengths as bars of text."""
    rows = lengths(split)
    most = max(row["sentences"] for row in rows)
    half = len(rows) // 2
    cells = []
    for source, target in zip(rows[:half], rows[half:], strict=True):
        bars = [f"{'█' * round(24 * row['sentences'] / most):<24} {row['sentences']:>9,}" for row in (source, target)]
        last = "" if source is rows[half - 1] else source["to"] - 1
        cells.append([f"{source['from']}–{last}", *bars])
    return console.table(f"{split.name}: sentences by length in tokens", ["tokens", "source", "target"], cells)


def picture(split: Split, path: Path) -> None:
    """The lengths as a picture, SVG, PNG, PDF or JSON by the path's ending."""
    altair: Any = require("altair", "clinic")
    rows = altair.Data(values=lengths(split))
    bars = altair.Chart(rows, width=560, height=160, title=f"{split.name}: {len(split):,} pairs").mark_bar()
    x = altair.X("from:Q", bin="binned", title="tokens, EOS included")
    chart = bars.encode(x=x, x2="to:Q", y=altair.Y("sentences:Q"), row=altair.Row("side:N", title=None))
    save(chart, path)


def samples(split: Split, number: int, seed: int = 1) -> Table:
    """Random pairs: subwords of the source, and both sides as natural text."""
    codec = Codec.load(split.folder)
    rows = np.random.default_rng(seed).choice(len(split), min(number, len(split)), replace=False)
    cells = []
    for row in map(int, rows):
        source, target = split.source[row].tolist(), split.target[row].tolist()
        pieces = " ".join(codec.subwords["source"].names[i] for i in source)
        cells.append([row, *map(escape, (codec.decode([source], "source")[0], codec.decode([target])[0], pieces))])
    return console.table(f"{split.name}: samples", ["row", "source", "target", "source subwords"], cells)


def padding(split: Split, tokens: int, seed: int = 1) -> dict[str, float]:
    """What an epoch of batches at a token budget looks like: how many, how full, how random their order."""
    from bathy.tasks.translation.batches import Batches

    stream = Batches([split], tokens, seed)
    source, target = split.source.lengths, split.target.lengths
    plans: list[list[Any]] = []
    while sum(len(plan) for plan in plans) < ENOUGH:
        stream.epoch = len(plans)
        plans.append(stream.plan())
    shapes = np.array([(len(rows), source[rows].max(), target[rows].max()) for plan in plans for rows in plan], dtype=np.int64)
    real = len(plans) * int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64))
    longest = shapes[:, 1]
    varied = len(longest) > 2 and longest.std() > 0
    return {
        "batches": len(plans[0]),
        "sentences a batch": float(shapes[:, 0].mean()),
        "real tokens": real / int((shapes[:, 0] * (shapes[:, 1] + shapes[:, 2])).sum()),
        "filled": float((shapes[:, 0] * shapes[:, 1:].max(axis=1)).mean() / tokens),
        "correlation of adjacent lengths": float(np.corrcoef(longest[1:], longest[:-1])[0, 1]) if varied else 0.0,
    }
