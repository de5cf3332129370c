"""Whether audits are right: every scheme with one mistake made on purpose, and models with their own initialisation.

A mistake counts as found where a deviation of the expected name is reported. Of the installed transformers and timm, every
class that builds small is audited as it comes; what is left out is listed with the reason. `--data FOLDER` keeps finished
audits there, and the same command resumes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bathy import console
from bathy.core.schemes import SCHEMES
from bathy.lab.bench.audit.mutations import DEPTHS, MUTATIONS, mistaken
from bathy.lab.bench.audit.sound import false_alarms


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print what was found of each mistake, and the alarms on models that have none."""
    mistakes, alarms = _mistakes(quick), false_alarms(data, quick)
    for line in mistakes["missed"]:
        console.out.print("missed:", *line)
    for name, text in [*alarms["alarm_list"], *alarms["failed"].items()]:
        console.out.print("alarm:", f"{name}:", text)
    for name, reason in alarms["left_out"].items():
        console.out.print("left out:", f"{name}:", reason)
    columns = ["models", "tried", "left out", "audited", "audit failed", "with an alarm"]
    rows = [tuple(row.values()) for row in alarms["by_library"]]
    console.out.print(console.table("models with their own initialisation", columns, rows))
    console.out.print(f"{mistakes['share']:.1%} of {sum(mistakes['made'].values())} mistakes found and named")
    console.out.print(
        f"{alarms['alarms']} of {alarms['audited']} sound models with an alarm; {len(alarms['left_out'])} left out"
    )
    return mistakes | alarms


def _mistakes(quick: bool) -> dict[str, Any]:
    """Every scheme with every mistake that it can have, by shape."""
    shapes = list(DEPTHS.values())[:1] if quick else list(DEPTHS.values())
    cases = [(scheme, name, depths) for scheme in SCHEMES for name in MUTATIONS for depths in shapes]
    found: Counter[str] = Counter()
    made: Counter[str] = Counter()
    missed = []
    for scheme, name, depths in console.track(cases[:40] if quick else cases, "auditing mistakes"):
        result = mistaken(scheme, name, depths)
        if result is None:
            continue
        made[name] += 1
        found[name] += bool(result & MUTATIONS[name][1])
        if not result & MUTATIONS[name][1]:
            missed.append((scheme, name, str(depths), ", ".join(sorted(result)) or "nothing"))
    rows = [(name, made[name], found[name]) for name in MUTATIONS if made[name]]
    console.out.print(console.table("mistakes made on purpose", ["mistake", "made", "found and named"], rows))
    share = sum(found.values()) / max(1, sum(made.values()))
    return {"made": dict(made), "found": dict(found), "share": share, "missed": missed}
