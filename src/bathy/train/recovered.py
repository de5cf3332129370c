"""What a run recovered from, as findings of the clinic's report."""

from __future__ import annotations

from pathlib import Path

from bathy.clinic.findings import Evidence, Finding
from bathy.train.changes import CHANGES
from bathy.train.recovery import Recovery, effective, read_recoveries


def recovery_findings(run: Path, label: str) -> tuple[Finding, ...]:
    """A finding for each recovery of a run; none for a run that never failed."""
    attempts = read_recoveries(run)
    kept = effective(attempts)
    return tuple(_finding(one, one in kept, label) for one in attempts if one.change in CHANGES)  # a replay has others


def _finding(one: Recovery, kept: bool, label: str) -> Finding:
    outcome = "the run continued with it" if kept else "it failed again, and another change replaced this one"
    evidence = Evidence("the update that the run went back to", one.start, f"{outcome}{_amount(one)}")
    advice = f"Next time from the beginning: {CHANGES[one.change].advice}." if kept else "Nothing: see the change after it."
    title = f"recovery at update {one.failed}: {one.change}"
    return Finding("recovery", "warning" if kept else "note", title, (evidence,), f"{one.why}.", advice, label, one.failed)


def _amount(one: Recovery) -> str:
    """What exactly was changed."""
    parts = [*one.settings, f"rate at most {one.ceiling:g}" * bool(one.ceiling)]
    parts += [f"{one.skip} updates' batches skipped after update {one.start if one.at < 0 else one.at}" * bool(one.skip)]
    parts += [f"rate × {one.factor:g} until update {one.until}" * bool(one.until)]
    return "".join(f"; {part}" for part in parts if part)
