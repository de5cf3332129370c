"""What the checks cost: opening a folder of 40 million pairs, and drawing a batch while its blocks are checked.

    python tests/chaos/measure_checks.py [pairs]

The large folder is sparse: its files have their full size, its ids are all 0, and its checksums are true.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bathy.files import digest
from bathy.tasks.blocks import BLOCK, _sum, block_sums
from bathy.tasks.translation.batches import Batches
from bathy.tasks.translation.data import Split

TOKENS, VOCAB, SMALL, ROUNDS = 30, 8000, 60_000, 9


def sparse_side(folder: Path, side: str, pairs: int) -> dict[str, Any]:
    """One side of the large folder; returns its part of the manifest."""
    sums = {}
    for name, count, kind in (
        (f"train.{side}.ids.npy", pairs * TOKENS, "<u2"),
        (f"train.{side}.offsets.npy", pairs + 1, "<i8"),
    ):
        array = np.lib.format.open_memmap(folder / name, "w+", kind, (count,))
        if "offsets" in name:
            array[-1] = pairs * TOKENS
        array.flush()
        raw = np.memmap(folder / name, np.uint8, mode="r")
        blocks = -(-len(raw) // BLOCK)
        middle = _sum(bytes(BLOCK)) * max(0, blocks - 2)
        sums[name] = _sum(raw[:BLOCK]) + middle + (_sum(raw[(blocks - 1) * BLOCK :]) if blocks > 1 else "")
    return facts(pairs, pairs * TOKENS, dict.fromkeys(sums, ""), sums)


def dense_side(folder: Path, side: str, pairs: int, rng: np.random.Generator) -> dict[str, Any]:
    """One side of a small folder of random ids."""
    lengths = rng.integers(5, 60, pairs)
    arrays = {"ids": rng.integers(4, VOCAB, lengths.sum()).astype("<u2"), "offsets": np.concatenate([[0], lengths.cumsum()])}
    for name, array in arrays.items():
        np.save(folder / f"train.{side}.{name}.npy", array)
    paths = [folder / f"train.{side}.{name}.npy" for name in arrays]
    return facts(pairs, int(lengths.sum()), {p.name: digest(p) for p in paths}, {p.name: block_sums(p) for p in paths})


def facts(pairs: int, tokens: int, sha256: dict[str, str], blocks: dict[str, str]) -> dict[str, Any]:
    means = {"unknown": 0, "unknown_rate": 0.0, "mean": tokens / pairs, "median": TOKENS, "p99": TOKENS, "longest": TOKENS}
    return {"tokens": tokens, **means, "sha256": sha256, "blocks": blocks}


def write_manifest(folder: Path, pairs: int, sides: dict[str, Any]) -> None:
    """A manifest as prepare writes it."""
    split = {"sentences": pairs, **sides}
    rest: dict[str, Any] = {"round_trip": {}, "settings": {}, "inputs": [], "keys": {}, "origin": {}}
    (folder / "manifest.json").write_text(json.dumps({"format": 2, "vocab": VOCAB, "splits": {"train": split}, **rest}))


def measure_opening(folder: Path, pairs: int) -> None:
    write_manifest(folder, pairs, {side: sparse_side(folder, side, pairs) for side in ("source", "target")})
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        split = Split(folder, "train")
        first = split.source[0], split.target[pairs - 2]
        seconds.append(time.perf_counter() - start)
        assert len(split) == pairs and len(first[0]) == 0
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    sys.stdout.write(f"{pairs:,} pairs, {size:.1f} GB: opened in {median(seconds):.3f} s (median of {ROUNDS})\n")


def measure_batches(folder: Path) -> None:
    rng = np.random.default_rng(1)
    write_manifest(folder, SMALL, {side: dense_side(folder, side, SMALL, rng) for side in ("source", "target")})
    checked: list[float] = []
    known: list[float] = []
    for _ in range(ROUNDS):
        stream = Batches([Split(folder, "train")], 4096, seed=1)
        plan = stream.plan()
        for times in (checked, known):  # the same batches: first with every block unchecked, then with none
            start = time.process_time()
            for rows in plan:
                stream.gathered(rows)
            times.append(1000 * (time.process_time() - start) / len(plan))
    shown = f"{median(checked):.3f} ms in the first epoch, {median(known):.3f} ms afterwards"
    sys.stdout.write(f"{SMALL:,} pairs: a batch of 4,096 tokens takes {shown} (CPU time, median of {ROUNDS} pairs)\n")


if __name__ == "__main__":
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000_000
    with tempfile.TemporaryDirectory() as large, tempfile.TemporaryDirectory() as small:
        measure_opening(Path(large), pairs)
        measure_batches(Path(small))
