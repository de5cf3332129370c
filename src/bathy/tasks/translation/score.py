"""Scores of translations, each with the settings that made it: sacreBLEU's metrics, and the paper's BLEU on Moses tokens.

Several systems are compared with the first by paired bootstrap (Koehn, 2004): p is the chance that resampled test sets
show a difference as large if there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bathy.errors import ConfigError, DataError, require, unknown
from bathy.tasks.lines import read_texts
from bathy.tasks.translation.text.moses import Moses

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

METRICS: dict[str, Callable[[Any, bool], Metric]] = {
    "bleu": lambda lib, lower: lib.BLEU(lowercase=lower),
    "chrf": lambda lib, lower: lib.CHRF(lowercase=lower),
    "ter": lambda lib, lower: lib.TER(case_sensitive=not lower),
    "tokenised": lambda lib, lower: lib.BLEU(lowercase=lower, tokenize="none", force=True),
}
"""Name to sacreBLEU's metric; `tokenised` is the paper's: BLEU on Moses tokens of both sides, no other tokenisation."""


@dataclass(frozen=True)
class Score:
    """One number and what made it."""

    system: str
    metric: str
    score: float
    half_width: float | None
    """Of the 95 % interval by bootstrap."""
    p: float | None
    """Of the difference from the first system, by paired bootstrap; the first has none."""
    signature: str


def score(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    *,
    language: str = "en",
    lowercase: bool = False,
    samples: int = 1000,
) -> list[Score]:
    """Each system's score in each metric; `language` is that of the text, for Moses; no `samples`, no intervals and no p."""
    _check(systems, references)
    lib = require("sacrebleu", "translation")
    result = []
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(unknown("metric", name, METRICS))
        prepare = Moses(language).split if name == "tokenised" else str
        case = str.lower if lowercase else str  # before Moses, whose abbreviations depend on it
        hypotheses = [(system, [prepare(case(line)) for line in lines]) for system, lines in systems.items()]
        wanted = [[prepare(case(line)) for line in lines] for lines in references]
        note = f"|moses:{language}" if name == "tokenised" else ""
        rows = _rows(METRICS[name](lib.metrics, lowercase), hypotheses, wanted, samples)
        for (system, _), (value, half_width, p, signature) in zip(hypotheses, rows, strict=True):
            result.append(Score(system, name, value, half_width, p, signature + note))
    return result


def _rows(
    metric: Metric, systems: list[tuple[str, list[str]]], references: list[list[str]], samples: int
) -> list[tuple[float, float | None, float | None, str]]:
    """(score, half width, p, signature) of each system."""
    if not samples:
        return [(metric.corpus_score(lines, references).score, None, None, str(metric.get_signature())) for _, lines in systems]
    test = require("sacrebleu.significance", "translation").PairedTest
    signatures, scores = test(systems, {"metric": metric}, references, "bs", samples)()
    ((name, signature),) = signatures.items()
    first = scores[name][0].score
    # sacreBLEU counts differences greater than the one seen; where none was seen, every sample's is as large
    values = [1.0 if row.p_value is not None and row.score == first else row.p_value for row in scores[name]]
    return [(float(row.score), float(row.ci), p, str(signature)) for row, p in zip(scores[name], values, strict=True)]


def score_files(hypotheses: Sequence[Path], references: Sequence[Path], **options: Any) -> list[Score]:
    """Scores of translations in files, named after them."""
    names = [path.name for path in hypotheses]
    named = names if len(set(names)) == len(names) else [str(path) for path in hypotheses]
    systems = {name: read_texts(path) for name, path in zip(named, hypotheses, strict=True)}
    return score(systems, [read_texts(path) for path in references], **options)


def as_rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The scores as JSON takes them."""
    return [asdict(one) for one in scores]


def _check(systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    """Refuse texts that cannot be set side by side."""
    if not systems or not references:
        raise DataError("scoring needs at least one translation and one reference")
    for name, lines in systems.items():
        for number, reference in enumerate(references, 1):
            if len(lines) != len(reference):
                raise DataError(f"{name} has {len(lines)} lines, reference {number} has {len(reference)}; they must agree")
    if not len(references[0]):
        raise DataError("there is nothing to score: the files are empty")
