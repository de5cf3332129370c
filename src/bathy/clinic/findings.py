"""Findings: what is wrong, how badly, on what evidence, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["serious", "warning", "note", "healthy"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note", "healthy")
"""From what stops a run to what is fine."""


@dataclass(frozen=True)
class Evidence:
    """One reading, or a number made of several, against what it is compared with."""

    what: str
    value: float
    reference: str
    where: str = ""

    def __str__(self) -> str:
        place = f"the {self.where}" if self.where in ("encoder", "decoder") else self.where
        return f"{self.what}{' in ' + place if place else ''} is {self.value:.3g}; {self.reference}"


@dataclass(frozen=True)
class Finding:
    """What is wrong, how badly, on what evidence, why, and what to do."""

    name: str
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...]
    cause: str
    advice: str
    model: str = ""
    step: int = 0
    site: str = ""
    """Where to look first: a site, a stack or a module; empty where it concerns the whole model."""

    @property
    def first(self) -> str:
        """The first thing to do: the first sentence of the advice."""
        return self.advice.partition(". ")[0].rstrip(".")

    @property
    def place(self) -> str:
        """Model, update and site, as far as they are known."""
        return ", ".join(part for part in (self.model, f"update {self.step}" * bool(self.step), self.site) if part)

    def __str__(self) -> str:
        return f"{self.severity}: {self.title} ({'; '.join(map(str, self.evidence))}) {self.cause} What to do: {self.advice}"
