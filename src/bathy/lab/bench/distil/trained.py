"""The teacher and its students, trained unless they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bathy.lab.runs import Run, train_if_needed
from bathy.tasks import read_config
from bathy.tasks.lines import read_texts
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.distil import prepare_text
from bathy.tasks.translation.prepare import prepare

CORPUS = Path("corpora/distilled")
"""The teacher's translations, inside the place of the runs."""


@dataclass(frozen=True)
class Trained:
    """A run that has come to its end, and the config it was trained with."""

    run: Run
    config: Config

    def translations(self, split: str) -> list[str]:
        """The split's best translations, as [decode] says; they are kept in the run's folder."""
        self.run.bleu(self.config, split)
        return read_texts(self.run.folder / f"{split}.hyp")


def train_all(
    configs: Mapping[str, Path], raw: Path, place: Path, seeds: Sequence[int], changes: Mapping[str, object]
) -> Iterator[dict[str, Trained]]:
    """The teacher; then, for each seed, the student without and with distillation. Folders lie in `place`."""
    configured = partial(_configured, configs, place)
    teacher = configured("teacher", "multi30k_teacher", {**changes, "prepare.raw": str(raw)})
    prepare(teacher)
    yield {"teacher": Trained(train_if_needed(teacher), teacher)}
    of_teacher = {"distil.teacher": [teacher.train.run], "distil.raw": str(raw)}
    for seed in seeds:
        own = {**changes, "train.seed": seed}
        plain = configured("student", f"plain_{seed}", {**own, "data.path": teacher.data.path})
        without = Trained(train_if_needed(plain), plain)
        student = configured("student", f"distilled_{seed}", {**own, **of_teacher})
        student = prepare_text(student, place / CORPUS)
        yield {f"plain {seed}": without, f"distilled {seed}": Trained(train_if_needed(student), student)}


def _configured(configs: Mapping[str, Path], place: Path, role: str, name: str, changes: Mapping[str, object]) -> Any:
    """A role's config with its run, and its data unless `changes` name them, inside `place`."""
    shipped = read_config(configs[role], needs="translation")
    own = {"data.path": str(place / shipped.data.path), "train.run": str(place / "runs" / name), **changes}
    return read_config(configs[role], [f"{key}={json.dumps(value)}" for key, value in own.items()], needs="translation")
