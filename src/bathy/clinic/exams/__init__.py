"""Exams: each a function from a subject to rows. EXAMS is the table that `bathy.examine` goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bathy.clinic.exams.activations import Scales, activations
from bathy.clinic.exams.attention import Attention, attention
from bathy.clinic.exams.dependency import Chains, dependency
from bathy.clinic.exams.gradients import Gradients, gradients, snapshot, updates
from bathy.clinic.exams.norms import norms
from bathy.clinic.exams.source import source
from bathy.clinic.exams.stability import Outputs, random_change, step_change
from bathy.clinic.probe import Recorder, Subject
from bathy.clinic.readings import Reading

Measure = Callable[[Subject], list[Reading]]


@dataclass(frozen=True)
class Exam:
    """A row of the table: the function, and what it reads from the recorded pass that all exams share."""

    measure: Measure
    recorders: tuple[type[Recorder], ...]


EXAMS: dict[str, Exam] = {
    "activations": Exam(activations, (Scales,)),
    "dependency": Exam(dependency, (Chains,)),
    "gradients": Exam(gradients, (Gradients,)),
    "random_change": Exam(random_change, (Outputs,)),
    "step_change": Exam(step_change, (Outputs, Gradients)),
    "source": Exam(source, (Scales,)),
    "attention": Exam(attention, (Attention,)),
    "norms": Exam(norms, ()),
}
"""Exam name to its row, in the order in which they run."""

__all__ = ["EXAMS", "Exam", "Measure", "snapshot", "updates"]
