"""Exams: each a function from a subject to rows. EXAMS is the table that `bathy.examine` goes through."""

from __future__ import annotations

from collections.abc import Callable

from bathy.clinic.exams.activations import activations
from bathy.clinic.exams.attention import attention
from bathy.clinic.exams.dependency import dependency
from bathy.clinic.exams.gradients import gradients, snapshot, updates
from bathy.clinic.exams.source import source
from bathy.clinic.exams.stability import random_change, step_change
from bathy.clinic.probe import Subject
from bathy.clinic.readings import Reading

Exam = Callable[[Subject], list[Reading]]

EXAMS: dict[str, Exam] = {
    "activations": activations,
    "dependency": dependency,
    "gradients": gradients,
    "random_change": random_change,
    "step_change": step_change,
    "source": source,
    "attention": attention,
}
"""Exam name to its function, in the order in which they run."""

__all__ = ["EXAMS", "Exam", "snapshot", "updates"]
