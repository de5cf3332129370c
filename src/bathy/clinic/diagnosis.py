"""Diagnosis: every rule over the rows of every model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bathy.clinic import rules
from bathy.clinic.findings import SEVERITIES, Finding
from bathy.clinic.readings import Reading, groups

Rule = Callable[[Sequence[Reading]], Finding | None]


RULES: tuple[Rule, ...] = (
    rules.overflow,
    rules.underflow,
    rules.amplification,
    rules.dead_encoder,
    rules.learning_rate,
    rules.silent,
    rules.vanishing,
)
LIVE: tuple[Rule, ...] = (rules.overflow, rules.amplification, rules.learning_rate)
"""What a monitor asks at every sample."""


def diagnose(readings: Sequence[Reading]) -> list[Finding]:
    """The findings of every model in the rows, the worst first; a model without any is found healthy."""
    found: list[Finding] = []
    for (model,), rows in groups(readings, "model"):
        step = max(row.step for row in rows)
        own = [finding for rule in RULES if (finding := rule(rows))]
        if all(finding.severity == "note" for finding in own) and (well := rules.healthy(rows)):
            own.append(well)
        found += [replace(finding, model=model, step=step) for finding in own]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
