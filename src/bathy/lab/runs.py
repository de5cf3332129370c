"""Runs: train a config in its folder unless that is done, and say what came out."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bathy.core.transformer import Transformer
from bathy.errors import BathyError, DataError, Diverged
from bathy.files import origin, write_json, write_text
from bathy.tasks import make_task, part
from bathy.tasks.lines import read_texts
from bathy.tasks.models import load
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.layout import splits
from bathy.tasks.translation.data import read_manifest
from bathy.tasks.translation.score import as_rows, score
from bathy.tasks.translation.translate import Translator
from bathy.train.checkpoint import checkpoints
from bathy.train.log import read_log
from bathy.train.loop import finished as over
from bathy.train.loop import fit
from bathy.train.world import joined

FORMERLY = {"learnt": "improvement"}
"""What version 0.1 called a number in its files."""


@dataclass(frozen=True)
class Outcome:
    """What a run gave."""

    loss: float
    """Validation loss in nats for each target token; infinite where the run blew up."""
    ppl: float
    stopped: bool = False
    """Whether divergence detection ended it."""
    why: str = ""
    """What the detection said."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(update, validation loss)."""
    improvement: float = 0.0
    """Improvement over guessing in nats: unigram entropy of the validation targets minus the loss; 0 where the run blew up."""
    gap: float = math.nan
    """Source gap, or context gap, at the last validation."""
    updates: int = 0
    planned: int = 0
    """Updates that the config asks for."""
    overflows: float = 0.0
    """Updates skipped because float16 overflowed, for each thousand."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time of its updates; 0 where that was not noted."""

    def row(self) -> dict[str, Any]:
        """The outcome without its curve, as plain data."""
        return {key: value for key, value in asdict(self).items() if key != "curve"}

    def numbers(self) -> dict[str, float]:
        """What claims are judged by; `early` is the perplexity after a tenth of the updates."""
        first = [loss for step, loss in self.curve if step >= self.planned / 10][:1] or [math.inf]
        values = {
            "loss": self.loss,
            "ppl": self.ppl,
            "early": perplexity(first[0]),
            "improvement": self.improvement,
            "gap": self.gap,
            "updates": float(self.updates),
            "stopped": float(self.stopped),
            "overflows": self.overflows,
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is out of range."""
    return math.exp(loss) if loss < 50 else math.inf


@dataclass(frozen=True)
class Run:
    """A run that has come to its end; one that is kept beside a page has its outcome and scores, and no weights."""

    folder: Path
    outcome: Outcome

    def model(self) -> Transformer:
        """The model of the last checkpoint."""
        return load(self.folder)

    def bleu(self, config: Config, split: str) -> dict[str, float]:
        """Tokenised BLEU and chrF of a split, cased and lower-cased, translated as [decode] says.

        bleu_SPLIT.json has their signatures. A model of lower-cased text has the latter only; a run that blew up before its
        first checkpoint has 0.
        """
        path = self.folder / f"bleu_{split}.json"
        if not path.exists():
            if not checkpoints(self.folder):
                return dict.fromkeys(("bleu", "bleu_lower", "chrf", "chrf_lower"), 0.0)
            write_json(path, translate_split(self.folder, config, split))
        rows = json.loads(path.read_text(encoding="utf-8"))
        lower = {True: "_lower", False: ""}
        names = {"tokenised": "bleu", "chrf": "chrf"}
        return {names[row["metric"]] + lower[_lowered(row)]: row["score"] for row in rows if row["metric"] in names}

    def signature(self, split: str) -> str:
        """How that BLEU was computed."""
        path = self.folder / f"bleu_{split}.json"
        return str(json.loads(path.read_text(encoding="utf-8"))[0]["signature"]) if path.exists() else ""

    def checkpoints(self) -> list[tuple[int, Transformer]]:
        """(update, model) of every checkpoint that was kept."""
        return [(step, load(place)) for step, place in checkpoints(self.folder)]


def _lowered(row: dict[str, Any]) -> bool:
    return "case:lc" in row["signature"]


def chance_of_difference(one: Run, other: Run, config: Config, split: str) -> float:
    """p of the difference in tokenised BLEU between two runs of one text, by sacreBLEU's paired bootstrap; NaN without both."""
    paths = [run.folder / f"{split}.hyp" for run in (one, other)]
    if not all(path.exists() for path in paths):
        return math.nan
    text, _, target = _split_files(config, split)
    systems = {str(place): read_texts(path) for place, path in enumerate(paths)}
    options: dict[str, Any] = {"language": text["target"], "lowercase": text["lowercase"]}
    return score(systems, [read_texts(target)], ("tokenised",), **options)[1].p or 0.0


def _split_files(config: Config, split: str) -> tuple[dict[str, Any], Path, Path]:
    """How a run's text was prepared, and the source and target of one of its splits."""
    text = read_manifest(config.data.folders[0])["settings"]["prepare"]
    source, target = splits(Path(text["raw"]), text["source"], text["target"])[split]
    return text, source, target


def translate_split(folder: Path, config: Config, split: str) -> list[dict[str, Any]]:
    """Scores of a split's translations: BLEU on Moses tokens, as in the paper, sacreBLEU's and chrF, cased and lower-cased."""
    text, source, target = _split_files(config, split)
    found = Translator.load([folder], config.decode).translate(read_texts(source))
    lines = [translation.texts[0] for translation in found]
    write_text(folder / f"{split}.hyp", "".join(f"{line}\n" for line in lines))
    scores: list[dict[str, Any]] = []
    for lower in (True,) if text["lowercase"] else (False, True):
        options: dict[str, Any] = {"language": text["target"], "lowercase": lower, "samples": 0}
        scores += as_rows(score({split: lines}, [read_texts(target)], ("tokenised", "bleu", "chrf"), **options))
    return scores


def train_if_needed(config: Config) -> Run:
    """The run of a config, trained to its end or to where divergence detection stops it; a finished one is not touched."""
    folder = Path(config.train.run)
    if not ended(config, folder):
        outcome = _outcome(config, folder, _train(config, folder))
        write_json(folder / "outcome.json", {"origin": origin(), **identity(config), "outcome": asdict(outcome)})
    return read_run(folder)


def read_run(folder: Path) -> Run:
    """The run whose outcome lies in a folder."""
    row = {FORMERLY.get(name, name): value for name, value in _read_outcome(folder)["outcome"].items()}
    return Run(folder, Outcome(**row | {"curve": [(step, loss) for step, loss in row["curve"]]}))


def ended(config: Config, folder: Path) -> bool:
    """Whether the folder holds the outcome of this config with this data, of a run that was trained to its end."""
    return (folder / "outcome.json").exists() and not differences(config, _read_outcome(folder))


def differences(config: Config, found: dict[str, Any], but: Collection[str] = ()) -> list[str]:
    """What a config decides otherwise than an identity that was written down: `section.key`s, all `but` some, and the text."""
    wanted, written = identity(config), _current(config, found.get("config", {}))
    if written is None:
        return ["settings that this version does not read"]
    pairs = [(name, key) for name, section in wanted["config"].items() for key in section]
    changed = [f"{name}.{key}" for name, key in pairs if written[name][key] != wanted["config"][name][key]]
    text = [] if _same_text(found.get("data"), wanted["data"]) else ["the text"]
    return [key for key in changed if key not in but] + text


def _same_text(found: Any, wanted: Any) -> bool:
    """Whether two fingerprints are of one text; a test split that only one of them knows makes no difference."""
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same_text, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return all(found.get(split) == wanted.get(split) for split in {"train", "valid"} | (found.keys() & wanted.keys()))
    return bool(found == wanted)


def _current(config: Config, values: Any) -> Any:
    """The settings of an outcome as this version writes them: settings that are new since then have their defaults."""
    try:
        return _decisive(type(config)(**values))
    except (BathyError, TypeError):
        return None


def _read_outcome(folder: Path) -> dict[str, Any]:
    path = folder / "outcome.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not a run's outcome: {error}; remove it, and the run resumes from its checkpoint") from None
    return found


def _train(config: Config, folder: Path) -> str:
    """Train; why divergence detection stopped the run, or nothing. After a signal the run can be resumed."""
    with joined() as world:
        try:
            state = fit(make_task(config), config, folder, world)
        except Diverged as error:
            return str(error)
    if not over(config, state):
        raise KeyboardInterrupt
    return ""


def identity(config: Config) -> dict[str, Any]:
    """What decides how a run comes out: its text, and its config but for where it and its data lie."""
    return {"config": _decisive(config), "data": part(config.task.kind, "data").fingerprint(config.data.folders)}


def _decisive(config: Config) -> dict[str, Any]:
    places: Any = {"prepare": True, "decode": True, "data": {"path"}, "train": {"run"}}
    return config.model_dump(mode="json", exclude=places)


def _outcome(config: Config, folder: Path, why: str) -> Outcome:
    """What metrics.jsonl says of a run that has ended."""
    rows = read_log(folder / "metrics.jsonl")
    valid = [row for row in rows if "valid_loss" in row]
    curve = [(row["step"], row["valid_loss"]) for row in valid]
    finite = bool(curve) and math.isfinite(curve[-1][1])
    loss = curve[-1][1] if finite else math.inf
    updates, skipped = rows[-1]["step"] if rows else 0, sum("overflow" in row for row in rows)
    return Outcome(
        loss=loss,
        ppl=perplexity(loss),
        stopped=bool(why),
        why=why,
        curve=curve,
        improvement=part(config.task.kind, "task").held_out_entropy(config) - loss if finite else 0.0,
        gap=valid[-1].get("source_gap", valid[-1].get("context_gap", math.nan)) if finite else 0.0,
        updates=updates,
        planned=config.train.steps,
        overflows=1000 * skipped / max(1, updates),
        seconds=_seconds(config, rows),
    )


def _seconds(config: Config, rows: list[dict[str, Any]]) -> float:
    """Time of a run's updates: tokens over tokens per second, row by row."""
    timed = [row for row in rows if row.get("tokens_per_second")]
    steps = [0, *(row["step"] for row in timed)]
    tokens = config.train.tokens * config.train.accumulate
    parts = zip(steps, steps[1:], timed, strict=False)
    return float(sum((b - a) * tokens * row.get("efficiency", 1.0) / row["tokens_per_second"] for a, b, row in parts))
