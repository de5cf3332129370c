"""What the ring of recent checkpoints (train.recent_every) costs: time in percent of the updates between two, and disk.

The same run with and without the ring, interleaved; wall-clock time, because a checkpoint waits for the disk.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from bathy import console
from bathy.lab.bench import interleaved
from bathy.lab.bench.postmortem.injected import VOCAB, write_data
from bathy.tasks import make_task, read_config
from bathy.train.loop import fit
from bathy.train.recovery import RECENT
from bathy.train.world import World

EVERY = 100
"""Updates between two checkpoints, as recovery sets it."""
SIZES = {"2 layers, width 64": (2, 64), "6 layers, width 256": (6, 256)}
UPDATES, SAVES = 20, 5
"""Updates of the measured runs, and checkpoints that the ring writes in them."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return, for each size, seconds of an update and of a checkpoint, and what follows for EVERY."""
    folder = Path(tempfile.mkdtemp(prefix="bathy-ring-", dir=data))
    try:
        names = list(SIZES)[:1] if quick else list(SIZES)
        found = {name: measured(folder, *SIZES[name], rounds=2 if quick else 5) for name in names}
    finally:
        shutil.rmtree(folder)
    rows = [(name, *(f"{value:.3g}" for value in values.values())) for name, values in found.items()]
    columns = ["model", "seconds per update", "seconds per checkpoint", f"% of {EVERY} updates", "MB on disk, five kept"]
    console.out.print(console.table("the ring of recent checkpoints", columns, rows))
    return {"every": EVERY, "sizes": found}


def measured(folder: Path, layers: int, width: int, rounds: int) -> dict[str, float]:
    """One size: the median over the rounds of the seconds that the ring adds."""
    trained = partial(train, folder, layers, width)
    seconds = interleaved({"plain": partial(trained, 0), "ring": partial(trained, UPDATES // SAVES)}, rounds, time.monotonic)
    extra = [(ring - plain) / SAVES for plain, ring in zip(seconds["plain"], seconds["ring"], strict=True)]
    update, save = statistics.median(seconds["plain"]) / UPDATES, statistics.median(extra)
    size = sum(path.stat().st_size for path in (folder / "run" / RECENT).rglob("*") if path.is_file())
    return {"update": update, "checkpoint": save, "percent": 100 * save / (EVERY * update), "megabytes": size / 1e6}


def train(folder: Path, layers: int, width: int, every: int) -> None:
    """One run from its beginning, with a checkpoint in the ring every so many updates."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    config = read_config(None, [
        "task.kind=language", "task.sample=0", f"model.width={width}", f"model.ffn={4 * width}", f"model.heads={width // 32}",
        "model.context=64", f"model.decoder_layers={layers}", "model.decoder_scheme=pre_ln", "train.tokens=1024",
        f"train.steps={UPDATES}", "train.valid_every=0", "train.save_every=0", f"train.recent_every={every}",
        f"data.path={write_data(folder / 'data')}", f"data.vocab={VOCAB}",
    ])  # fmt: skip
    fit(make_task(config), config, folder / "run", World())
