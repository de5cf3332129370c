"""A folder checked whole: what is wrong with it, what can still be used, and what can safely be repaired.

report = verify(Path("runs/toy"))      # a run, checkpoint, model, data or corpus folder
report.faults                          # nothing, or what is wrong with which file, and the way out
repair(report)                         # what was done; only where nothing that is intact can be lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bathy.errors import DataError
from bathy.tasks.verify import models
from bathy.tasks.verify.fault import Fault

Check = Callable[[Path], Iterator[Fault]]


@dataclass(frozen=True)
class Kind:
    """A kind of folder: the files it is known by, how it is checked, and how it is repaired."""

    files: tuple[str, ...]
    check: Check
    repair: Callable[[Path, list[Fault]], Iterator[str]]


KINDS = {
    "run": Kind(("checkpoints", "metrics.jsonl", "config.toml"), models.check_run, models.repair_run),
    "checkpoint": Kind(("meta.json", "trainer.pt"), models.check_checkpoint, models.repair_nothing),
    "data": Kind(("manifest.json", ".work"), models.check_data, models.repair_data),
    "corpus": Kind(("corpus.json", ".downloads"), models.check_corpus, models.repair_nothing),
    "model": Kind(("config.json", "model.safetensors"), models.check_model, models.repair_nothing),
}
"""Looked through from the top: the first kind of which a file is there."""


@dataclass(frozen=True)
class Report:
    """What was found."""

    path: Path
    kind: str
    faults: list[Fault]


def verify(path: Path) -> Report:
    """Check every file of a folder."""
    kind = kind_of(path)
    return Report(path, kind, list(KINDS[kind].check(path)))


def kind_of(path: Path) -> str:
    """What a folder is, by its files."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give a {', '.join(KINDS)} folder")
    for name, kind in KINDS.items():
        if any((path / file).exists() for file in kind.files):
            return name
    wanted = "; ".join(f"{name}: {kind.files[0]}" for name, kind in KINDS.items())
    raise DataError(f"{path} is no folder of bathy's: it has none of the files one is known by ({wanted})")


def repair(report: Report) -> list[str]:
    """Repair what can be repaired without losing anything intact; returns what was done."""
    return list(KINDS[report.kind].repair(report.path, report.faults))
