"""A comparison: variants of one model, each at its best rate, with several seeds.

The held-out text is cut in two. Every variant is trained at each rate with the first seed; the rate with the lowest loss on
the first half is kept and trained with the other seeds. What is reported is the second half, on which nothing was chosen.
A run that has ended is not trained again, so a comparison that was stopped goes on where it was; Ctrl-C reports what has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from bathy import console
from bathy.files import read_json, write_json
from bathy.kernels.memory import hold_memory
from bathy.lab.bench.data import random_stream
from bathy.lab.ladder.results import TRAINS
from bathy.lab.runs import Run, train_if_needed
from bathy.tasks import read_config
from bathy.tasks.language.data import open_stream
from bathy.tasks.language.score import Encoded, ids_loss
from bathy.tasks.language.task import held_out_entropy

Settings = Mapping[str, object]
SEEDS = (1111, 2222, 3333)
BASE: Settings = {
    "task.kind": "language", "task.sample": 0, "data.path": "data/tinyshakespeare", "data.vocab": 68,
    "model.decoder_layers": 4, "model.decoder_scheme": "pre_ln", "model.width": 128, "model.ffn": 512, "model.heads": 4,
    "model.context": 64, "model.max_length": 64, "model.positions": "learned", "model.feed_forward": "gelu",
    "model.biases": False, "model.embedding_scale": "one", "model.init": "normal",
    "optim.name": "adamw", "optim.schedule": "cosine", "optim.warmup": 50, "optim.warmup_from": 0.0, "optim.beta2": 0.99,
    "optim.weight_decay": 0.1, "optim.clip": 1.0,
    "train.tokens": 768, "train.steps": 500, "train.valid_every": 0, "train.save_every": 0, "train.keep_last": 1,
}  # fmt: skip
"""configs/lm_tinyshakespeare_cpu.toml (nanoGPT's CPU line) with a quarter of its updates and half its warm-up, validated at
the end only."""
HALVES = ("first", "second", "parameters")
FLOOR = 0.1
"""Share of the learning rate at which a schedule ends."""


@dataclass(frozen=True)
class Study:
    """Variants of a base, as changes of its settings; the first is what the others are compared with."""

    name: str
    variants: Mapping[str, Settings]
    rates: Sequence[float]
    base: Settings

    def settings(self, variant: str, rate: float, seed: int) -> list[str]:
        """A run as `section.key=value` changes."""
        own: Settings = {"optim.lr": rate, "optim.lr_floor": FLOOR * rate, "train.seed": seed}
        run = {"train.run": f"runs/{self.name}/{variant}-{rate:g}-{seed}"}
        whole = {**self.base, **self.variants[variant], **own, **run}
        return [f"{key}={json.dumps(value)}" for key, value in whole.items()]


@dataclass(frozen=True)
class Trained:
    """A run and its loss on both halves of the held-out text."""

    variant: str
    rate: float
    seed: int
    first: float
    second: float
    trains: bool
    """Not stopped, and on the whole held-out text at most 75 % of the unigram entropy: the rule of `bathy ladder`."""
    why: str
    parameters: int


def run_study(study: Study, data: Path | None, quick: bool) -> dict[str, Any]:
    """Train what is missing, print a table as runs end, and return every number."""
    torch.set_num_threads(1)
    hold_memory()
    short: Settings = {"data.path": str(random_stream(68)), "train.steps": 3, "optim.warmup": 1} if quick else {}
    chosen: Settings = {"data.path": str(data)} if data else {}
    own = Study(study.name, study.variants, study.rates, {**study.base, **short, **chosen})
    seeds = SEEDS[:2] if quick else SEEDS
    with suppress(KeyboardInterrupt):  # what has ended by then is the result
        for run in runs(own, seeds):
            losses = f"{run.first:.4f} and {run.second:.4f}"
            console.out.print(f"{run.variant}, rate {run.rate:g}, seed {run.seed}: {losses} {run.why}", markup=False)
    found = finished(own, seeds)
    rows = [summary(found, variant, study) for variant in dict.fromkeys(run.variant for run in found)]
    show(study.name, rows)
    return {
        "base": dict(own.base),
        "variants": {name: dict(settings) for name, settings in study.variants.items()},
        "rates": list(study.rates),
        "rows": rows,
        "runs": [_plain(vars(run)) for run in found],
    }


def runs(study: Study, seeds: Sequence[int]) -> Iterator[Trained]:
    """Every rate with the first seed; then each variant's best rate with the second seed, and so on."""
    tried = []
    for rate in study.rates:
        for variant in study.variants:
            tried.append(train(study, variant, rate, seeds[0]))
            yield tried[-1]
    for seed in seeds[1:]:
        for variant in study.variants:
            yield train(study, variant, min((run for run in tried if run.variant == variant), key=_order).rate, seed)


def finished(study: Study, seeds: Sequence[int]) -> list[Trained]:
    """Every run of the comparison that has ended, whoever trained it."""
    points = [(variant, rate, seed) for seed in seeds for rate in study.rates for variant in study.variants]
    folders = [Path(read_config(None, study.settings(*point)).train.run) for point in points]
    return [train(study, *point) for point, folder in zip(points, folders, strict=True) if (folder / "outcome.json").exists()]


def _order(run: Trained) -> tuple[bool, float]:
    """Runs that train come first, by their loss on the first half."""
    return not run.trains, run.first


def train(study: Study, variant: str, rate: float, seed: int) -> Trained:
    """The run, trained unless it is there."""
    config = read_config(None, study.settings(variant, rate, seed))
    run = train_if_needed(config)
    first, second, size = halves(run, config)
    limit = TRAINS * held_out_entropy(config)
    trains = not run.outcome.stopped and (first + second) / 2 <= limit
    return Trained(variant, rate, seed, first, second, trains, run.outcome.why, size)


def halves(run: Run, config: Any) -> tuple[float, float, int]:
    """Loss on the two halves of the held-out text, and the number of parameters; infinite for a run that blew up.

    They are kept in the run's folder.
    """
    if not math.isfinite(run.outcome.loss):
        return math.inf, math.inf, 0
    path = run.folder / "halves.json"
    if not path.exists():
        write_json(path, dict(zip(HALVES, _halves(run, config), strict=True)))
    first, second, size = (read_json(path)[name] for name in HALVES)
    return first, second, size


def _halves(run: Run, config: Any) -> tuple[float, float, int]:
    model, ids = run.model(), open_stream(config.data, "valid").ids[:]
    middle = len(ids) // 2
    parts = Encoded(ids[: middle + 1], 0), Encoded(ids[middle:], 0)
    first, second = (ids_loss(model, part) for part in parts)
    return first, second, sum(parameter.numel() for parameter in model.parameters())


def summary(found: Sequence[Trained], variant: str, study: Study) -> dict[str, Any]:
    """A variant at its best rate: loss on the second half over the seeds, and what it gains on the first variant."""
    own, reference = at_best(found, variant), at_best(found, next(iter(study.variants)))
    losses = [run.second for run in own.values()]
    gains = [reference[seed].second - run.second for seed, run in own.items() if seed in reference]
    row: dict[str, Any] = {"variant": variant, "rate": next(iter(own.values())).rate, "seeds": len(own)}
    row |= {"parameters": next(iter(own.values())).parameters, "loss": mean(losses), "deviation": _deviation(losses)}
    row |= {"gain": mean(gains), "gain_deviation": _deviation(gains), "trains": sum(run.trains for run in own.values())}
    return _plain(row)


def at_best(found: Sequence[Trained], variant: str) -> dict[int, Trained]:
    """Seed to run, at the rate that the first seed chose."""
    own = [run for run in found if run.variant == variant]
    rate = min((run for run in own if run.seed == own[0].seed), key=_order).rate
    return {run.seed: run for run in own if run.rate == rate}


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows."""
    columns = list(rows[0]) if rows else []
    cells = [["–" if row[name] is None else row[name] for name in columns] for row in rows]
    console.out.print(console.table(title, columns, cells))


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with what JSON cannot hold as null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
