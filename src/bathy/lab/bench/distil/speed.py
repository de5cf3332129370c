"""The trained models' speed on the same sentences, in turns: the CPU time of one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bathy.lab.bench import interleaved, ratio
from bathy.lab.bench.distil.trained import Trained
from bathy.tasks.translation.serve.engines import open_engine
from bathy.tasks.translation.translate import Translator

BATCHES = {1: 16, 64: 128}
"""Sentences translated at a time, and how many of the text's first are translated."""


def compare_speed(models: Mapping[str, Trained], int8: Path, lines: Sequence[str], rounds: int) -> dict[str, Any]:
    """For each batch size, milliseconds per sentence and the first model's time over each one's.

    `int8` is the student as exported for CTranslate2.
    """
    result: dict[str, Any] = {}
    for batch, count in BATCHES.items():
        some = lines[:count]
        timed: dict[str, Callable[[], object]] = {
            name: partial(Translator.load([one.run.folder], one.config.decode, batch=batch).translate, some)
            for name, one in models.items()
        }
        timed["student, CTranslate2 int8"] = partial(open_engine(int8, batch, 1).translate, some, 1)
        seconds = interleaved(timed, rounds)
        result[f"batch {batch}"] = {
            who: {
                "ms per sentence": 1000 * median(times) / len(some),
                "times as fast": dict(zip(("median", "low", "high"), ratio(next(iter(seconds.values())), times), strict=True)),
            }
            for who, times in seconds.items()
        }
    return result
