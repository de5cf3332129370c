"""A distilled student beside the same student without distillation and their teacher: quality with three seeds, and speed.

The configs are configs/multi30k_teacher.toml and multi30k_student.toml; what is not trained yet is trained, and finished runs
of these configs are taken as they are, so a comparison that was stopped resumes; Ctrl-C reports the seeds that have ended.
Nothing is chosen by the test set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from bathy import console
from bathy.errors import DataError
from bathy.files import read_json
from bathy.lab.bench.data import CACHE, raw_text
from bathy.lab.bench.distil.speed import compare_speed
from bathy.lab.bench.distil.trained import CORPUS, Trained, train_all
from bathy.lab.runs import identity
from bathy.tasks.lines import read_texts
from bathy.tasks.translation.corpora.layout import splits
from bathy.tasks.translation.export import export
from bathy.tasks.translation.score import Score, as_rows, score
from bathy.tasks.translation.serve.engines import open_engine

CONFIGS = {"teacher": Path("configs/multi30k_teacher.toml"), "student": Path("configs/multi30k_student.toml")}
SEEDS = (1111, 2222, 3333)
TESTS = ("test_2016_flickr", "test")
"""The split that is scored: the first of these that the corpus has."""
MOST_BELOW, LEAST_FASTER = 1.0, 2.0
"""What was expected before the runs: chrF that a distilled student is below its teacher at most, and its speed over the
teacher's at least; also a higher chrF than without distillation."""
METRICS = ("bleu", "chrf")
INT8, ROUNDS = "int8", 20
QUICK: Mapping[str, object] = {
    "data.vocab": 300, "model.encoder_layers": 1, "model.decoder_layers": 1, "model.width": 16, "model.heads": 2,
    "model.ffn": 16, "train.tokens": 256, "train.steps": 4, "optim.warmup": 1,
    "distil.beam": 1, "distil.max_ratio": 0, "distil.keep_original": True, "decode.beam": 2, "decode.max_length": 5,
}  # fmt: skip


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Train what is missing; print and return scores with intervals and paired tests, means over seeds, and speed."""
    torch.set_num_threads(1)
    raw = raw_text(data)
    toy: dict[str, object] = {} if data else {"prepare.source": "de", "prepare.target": "en"}
    changes = {**toy, **(QUICK if quick else {})}
    place = Path() if data and not quick else CACHE / f"distil-{raw.name}{'-quick' if quick else ''}"
    trained: dict[str, Trained] = {}
    with suppress(KeyboardInterrupt):
        for some in train_all(CONFIGS, raw, place, SEEDS[:2] if quick else SEEDS, changes):
            trained |= some
    if len(trained) < 3:
        raise KeyboardInterrupt  # nothing to compare yet
    result = {**describe(trained, place), **measure(trained, 2 if quick else ROUNDS)}
    result["expected"] = judge(result)
    show(result)
    return result


def describe(trained: Mapping[str, Trained], place: Path) -> dict[str, Any]:
    """What was trained, on what, to which validation loss."""
    corpus = read_json(place / CORPUS / "corpus.json")
    return {
        "configs": {name: identity(trained[name].config)["config"] for name in ("teacher", f"plain {SEEDS[0]}")},
        "corpus": {key: corpus[key] for key in ("distil", "decode", "dropped")},
        "validation loss": {name: one.run.outcome.loss for name, one in trained.items()},
    }


def measure(trained: Mapping[str, Trained], rounds: int) -> dict[str, Any]:
    """Quality and speed on the test set; the first distilled student also as CTranslate2 runs it in int8."""
    teacher, student = trained["teacher"], trained[f"distilled {SEEDS[0]}"]
    text = teacher.config.prepare
    found = splits(Path(text.raw), text.source, text.target)
    if not (split := next((name for name in TESTS if name in found), "")):
        raise DataError(f"{text.raw} has no split {' or '.join(TESTS)} to score")
    source, reference = map(read_texts, found[split])
    systems = {name: one.translations(split) for name, one in trained.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / INT8
        export(student.run.folder, "ctranslate2", folder, student.config.decode, kind=INT8)
        systems[INT8] = [one[0] for one in open_engine(folder, batch=64, threads=1).translate(source, 1)]
        speed = compare_speed({"teacher": teacher, "student": student}, folder, source, rounds)
    return {"split": split, "sentences": len(source), **quality(systems, reference, text.target), "speed": speed}


def quality(systems: Mapping[str, Sequence[str]], reference: Sequence[str], language: str) -> dict[str, Any]:
    """Scores of every system beside the teacher, of each student beside its partner, and means over the seeds."""
    options: dict[str, Any] = {"metrics": METRICS, "language": language}
    scores = score(systems, [reference], **options)
    seeds = [name.removeprefix("plain ") for name in systems if name.startswith("plain ")]
    pairs = [(f"plain {seed}", f"distilled {seed}") for seed in seeds] + [(f"distilled {SEEDS[0]}", INT8)]
    tests = [
        {"first": one, "second": other, "metric": row.metric, "p": row.p}
        for one, other in pairs
        for row in score({name: systems[name] for name in (one, other)}, [reference], **options)
        if row.system == other
    ]
    means = {kind: {metric: _mean(scores, kind, metric) for metric in METRICS} for kind in ("plain", "distilled")}
    return {"scores": as_rows(scores), "pairs": tests, "means": means}


def _mean(scores: Sequence[Score], kind: str, metric: str) -> dict[str, float | None]:
    values = [row.score for row in scores if row.system.startswith(f"{kind} ") and row.metric == metric]
    return {"mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def judge(result: Mapping[str, Any]) -> dict[str, bool]:
    """Whether what was expected came true."""
    chrf = {row["system"]: row["score"] for row in result["scores"] if row["metric"] == "chrf"}
    plain, distilled = (result["means"][kind]["chrf"]["mean"] for kind in ("plain", "distilled"))
    return {
        "a higher chrF than without distillation": distilled > plain,
        f"at most {MOST_BELOW:g} chrF below the teacher": chrf["teacher"] - distilled <= MOST_BELOW,
        f"at least {LEAST_FASTER:g} times as fast as the teacher": all(
            case["student"]["times as fast"]["median"] >= LEAST_FASTER for case in result["speed"].values()
        ),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print scores, speed and the judgement."""
    rows = [
        (row["system"], row["metric"], row["score"], row["half_width"], "–" if row["p"] is None else row["p"])
        for row in result["scores"]
    ]
    title = f"{result['split']}, {result['sentences']} sentences"
    console.out.print(
        console.table(title, ["system", "metric", "score", "± 95 %", "p of the difference from the teacher"], rows)
    )
    speed = [
        (case, who, row["ms per sentence"], f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]")
        for case, found in result["speed"].items()
        for who, row in found.items()
        for r in (row["times as fast"],)
    ]
    console.out.print(
        console.table("CPU time, 1 thread", ["batch", "model", "ms/sentence", "times as fast as the teacher, 95 %"], speed)
    )
    for what, true in result["expected"].items():
        console.out.print(f"{what}: {'yes' if true else 'no'}")
