"""Which of the teacher's translations a student learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bathy.errors import require
from bathy.tasks.translation.distil.teacher import Taught
from bathy.tasks.translation.distil_settings import DistilConfig


def choose(taught: Taught, reference: str, how: str) -> tuple[str, float]:
    """One translation and its score: the best, or the one most like the reference by chrF."""
    if how == "best" or len(taught.texts) == 1:
        return taught.texts[0], taught.scores[0]
    chrf = require("sacrebleu.metrics", "translation").CHRF()
    alike = [chrf.sentence_score(text, [reference]).score for text in taught.texts]
    best = max(range(len(alike)), key=lambda i: (alike[i], -i))
    return taught.texts[best], taught.scores[best]


def select(
    rows: Sequence[Taught], references: Sequence[str], config: DistilConfig
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """The pairs a student is trained on, in their order, and how many were dropped for what."""
    chosen = [choose(row, reference, config.choose) for row, reference in zip(rows, references, strict=True)]
    worst = sorted(score for _, score in chosen)[: int(config.drop_worst * len(chosen))]
    bar = worst[-1] if worst else float("-inf")
    pairs, dropped = [], Counter[str]()
    for row, (text, score) in zip(rows, chosen, strict=True):
        reason = next(_faults(row, text, score <= bar if worst else False, config.max_ratio), "")
        if reason:
            dropped[reason] += 1
        else:
            pairs.append((row.source, text))
    return pairs, dropped


def _faults(row: Taught, text: str, poor: bool, ratio: float) -> Iterator[str]:
    """Why a pair is not used."""
    lengths = sorted((len(row.source.split()), len(text.split())))
    if row.cut:
        yield "longer than the teacher reads"
    if not lengths[0]:
        yield "a side is empty"
    if poor:
        yield "among the worst by the teacher's score"
    if ratio and lengths[1] > ratio * lengths[0] + 1:
        yield "unequal lengths"
