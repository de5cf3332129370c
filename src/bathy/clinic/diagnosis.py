"""Diagnosis: every rule over the rows of every model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bathy.clinic.findings import SEVERITIES, Finding
from bathy.clinic.readings import Reading, groups
from bathy.clinic.rules import chosen, healthy

KEPT = 4
"""Samples of a monitor, beside the first, from which warnings are drawn."""


def diagnose(readings: Sequence[Reading], without: Iterable[str] = (), live: bool = False) -> list[Finding]:
    """The findings of every model in the rows, the worst first; a model with nothing worse than a note is also healthy.

    `without` switches rules off by name; `live` leaves those that a monitor applies, and no healthy ones.
    """
    rules = chosen(without, live)
    found: list[Finding] = []
    for (model,), rows in groups(readings, "model"):
        step = max(row.step for row in rows)
        own = [finding for rule in rules.values() if (finding := rule.look(rows))]
        if not live and all(finding.severity == "note" for finding in own) and (well := healthy(rows)):
            own.append(well)
        found += [replace(finding, model=model, step=step) for finding in own]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def new_findings(samples: Sequence[Sequence[Reading]], known: Iterable[Finding], without: Iterable[str] = ()) -> list[Finding]:
    """What the newest of a monitor's samples shows that none before did: each kind once in a run."""
    names = {finding.name for finding in known}
    recent = [row for rows in [*samples[:1], *samples[1:][-KEPT:]] for row in rows]
    return [finding for finding in diagnose(recent, without, live=True) if finding.name not in names]
