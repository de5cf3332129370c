"""Findings: what is wrong, how badly, on what evidence, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["serious", "warning", "note", "healthy"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note", "healthy")
"""From what stops a run to what is well."""


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

    def __str__(self) -> str:
        return f"{self.severity}: {self.title} ({'; '.join(map(str, self.evidence))}) {self.cause} What to do: {self.advice}"
