"""`bathy.examine`: every exam on one model and one batch; and studies of many models over seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from bathy.clinic import rules
from bathy.clinic.diagnosis import diagnose
from bathy.clinic.exams import EXAMS, Exam, Measure
from bathy.clinic.findings import SEVERITIES, Finding
from bathy.clinic.losses import LOSSES, Loss
from bathy.clinic.probe import examined, unwatched
from bathy.clinic.readings import Reading, read, write
from bathy.clinic.rules import weakened
from bathy.console import table, track
from bathy.errors import ConfigError, unknown
from bathy.files import origin
from bathy.pages.shown import Part, Shown
from bathy.sites.batch import Batch
from bathy.sites.site import Site


@dataclass(frozen=True)
class Examination(Shown):
    """Rows, and what follows from them. A saved one is drawn again without the model; two add up to stand side by side."""

    readings: list[Reading]
    origin: dict[str, Any] = field(default_factory=dict, compare=False)
    without: tuple[str, ...] = ()
    """Rules that are switched off."""
    known: tuple[Finding, ...] = ()
    """Findings that do not rest on the rows, such as the cause that a post-mortem named."""
    width: ClassVar[int] = 200

    @cached_property
    def findings(self) -> list[Finding]:
        """What is known besides the rows, and what the rows say, the worst first."""
        found = [*self.known, *diagnose(self.readings, self.without)]
        return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

    def parts(self) -> list[Part]:
        """The findings as a table: what is wrong, on what evidence, and the first thing to do."""
        models = ", ".join(dict.fromkeys(row.model for row in self.readings))
        rows = [(f.severity, f.place, f.title, "; ".join(map(str, f.evidence)), f.first) for f in self.findings]
        shown = table(f"{models}: {len(self.readings)} readings", ["severity", "where", "finding", "evidence", "first"], rows)
        return [shown, 'save("report.html") writes all of it, with figures']

    def save(self, path: str | Path) -> None:
        """Write as the name's ending says: .html the report, .jsonl the readings."""
        path = Path(path)
        if path.suffix == ".jsonl":
            write(path, self.readings, self.origin)
        elif path.suffix == ".html":
            from bathy.clinic.report import write_report

            write_report(path, self.readings, self.findings, self.origin)
        else:
            raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}; an examination is saved as .html or .jsonl")

    @classmethod
    def load(cls, path: str | Path) -> Examination:
        """Read what `save` wrote as .jsonl, or a monitor as readings.jsonl."""
        readings, made = read(Path(path))
        return cls(readings, made, tuple(made.get("without", ())))

    def __add__(self, other: Examination) -> Examination:
        without = tuple(dict.fromkeys((*self.without, *other.without)))
        known = (*self.known, *other.known)
        return Examination([*self.readings, *other.readings], self.origin | {"beside": other.origin}, without, known)


def examine(
    model: nn.Module,
    batch: Batch,
    loss: Loss | None = None,
    *,
    exams: Iterable[str] = tuple(EXAMS),
    name: str = "model",
    step: int = 0,
    lr: float | None = None,
    loss_scale: float = 1.0,
    tokens: int = 4096,
    seed: int = 0,
    without: Iterable[str] = (),
) -> Examination:
    """Examine the model on at most `tokens` real tokens of the batch; it and the random state come back as they were.

    `loss(output, batch)` is the training objective; without it the output's own `loss`, else cross-entropy of the next token
    where the logits fit the batch's token ids, else a seeded random projection of the output. `origin` says which.
    `lr` is the learning rate of the step whose output change is measured, else 1e-5. Under
    `torch.autocast` the exams run in that precision, and `loss_scale` is the factor on the loss. `without` names rules that
    are switched off.
    """
    chosen, off = {exam: find_exam(exam) for exam in exams}, list(without)
    rules.chosen(off)  # an unknown rule is an error before anything is measured
    settings = {"exams": list(chosen), "tokens": tokens, "seed": seed, "lr": lr, "loss_scale": loss_scale}
    settings |= {"without": off} if off else {}
    label: dict[str, Any] = {"model": name, "step": step}
    readings: list[Reading] = []
    planned = tuple(dict.fromkeys(recorder for exam in chosen.values() for recorder in exam.recorders))
    measured = {"lr": lr, "loss_scale": loss_scale, "seed": seed, "label": label, "planned": planned}
    with examined(model, batch, loss, tokens, **measured) as subject:
        for exam in track(list(chosen), f"examining {name}"):
            start = time.perf_counter()
            readings += chosen[exam].measure(subject)
            readings.append(Reading("seconds", time.perf_counter() - start, exam, **label))
        settings |= unwatched_in(subject.sites)
    settings["loss"] = "given" if loss else LOSSES[subject.loss] if subject.recorders else "not needed"
    return Examination(readings, origin(model=type(model).__name__, **settings), tuple(off))


def unwatched_in(sites: Sequence[Site]) -> dict[str, Any]:
    """What cannot be watched, with the reason, and the findings that this weakens; empty where everything can be."""
    missing = unwatched(sites)
    if not missing:
        return {}
    reasons = [f"{each.site.name} {each.moment}: {each.reason}" for each in missing]
    return {"unwatched": reasons, "weakened": weakened(each.moment for each in missing)}


def find_exam(name: str) -> Exam:
    """The exam of that name, or an error that names the nearest."""
    if name not in EXAMS:
        raise ConfigError(unknown("exam", name, EXAMS))
    return EXAMS[name]


def study(
    build: Callable[[int], nn.Module],
    batch: Batch,
    seeds: Sequence[int],
    exams: Sequence[Measure],
    name: str = "model",
    loss: Loss | None = None,
) -> list[Reading]:
    """The exams on a fresh model for every seed; rows carry the seed. `build(seed)` runs with the random state seeded."""
    readings: list[Reading] = []
    for seed in track(seeds, f"studying {name}"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build(seed)
        with examined(model, batch, loss, seed=seed, label={"model": name}) as subject:
            rows = [row for exam in exams for row in exam(subject)]
        readings += [replace(row, seed=seed) for row in rows]
    return readings
