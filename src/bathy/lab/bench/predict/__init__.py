"""Whether a forecast is right: a grid of short runs, what was read before each, and what came of it.

Without --data the committed grid (grid.json: readings and outcomes) is fitted and judged again. With --data FOLDER the runs
that the folder lacks are made first (hours; it can be stopped and resumed), and grid.json and odds.json are written there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bathy import console
from bathy.clinic.odds import fitted
from bathy.files import write_json
from bathy.lab.bench.predict.cases import cases_of, compact, largest_rates, load
from bathy.lab.bench.predict.fit import Case, auroc, calibration, ece, fit, groups_of, left_out

LOOKS: dict[str, tuple[int, list[str]]] = {
    "one look": (4, ["tokens"]),
    "rehearsal": (12, ["tokens", "amplification", "information"]),
}
"""Kind of look to the updates it makes, and the readings it rests on."""
COMMITTED = Path(__file__).parent / "grid.json"


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Fit, leave out, print; returns the numbers and the odds."""
    rows = _made(data, quick) if data else load(COMMITTED)["runs"]
    cases = cases_of(rows)
    outcomes = Counter(row["outcome"] for row in rows)
    console.out.print(f"{len(rows)} runs of {len({case.design for case in cases})} designs: {dict(outcomes)}")
    result: dict[str, Any] = {"runs": len(rows), "outcomes": dict(outcomes), "looks": {}, "odds": {}}
    for look, (updates, names) in LOOKS.items():
        result["looks"][look] = judged(cases, updates, names)
        odds = fit(cases, updates, names)
        result["odds"][look] = asdict(odds)
    _print(result["looks"])
    same = all(abs(fitted(look).bias - values["bias"]) < 1e-6 for look, values in result["odds"].items())
    console.out.print("the shipped odds are this fit" if same else "the shipped odds are another fit")
    if data:
        write_json(data / "grid.json", {"runs": rows})
        write_json(data / "odds.json", result["odds"])
    return result


def _made(data: Path, quick: bool) -> list[dict[str, Any]]:
    """The runs of a folder, after those that it lacks were made."""
    from bathy.lab.bench.predict.runs import make, read

    data.mkdir(parents=True, exist_ok=True)
    make(data / "runs.jsonl", seconds=5.0 if quick else float("inf"))
    return compact([row for path in sorted(data.glob("*.jsonl")) for row in read(path).values()])


def judged(cases: list[Case], updates: int, names: list[str]) -> dict[str, Any]:
    """AUROC and calibration error with each kind of group left out, and the largest rates against the measured ones."""
    fails = [case.fails for case in cases]
    found: dict[str, Any] = {}
    for group, key in groups_of(cases).items():
        chances = left_out(cases, updates, names, key)
        found[group] = {"auroc": auroc(chances, fails), "ece": ece(chances, fails), "calibration": calibration(chances, fails)}
    rates = largest_rates(cases, updates, names)
    right = [within_two(*each) for each in rates]
    open_above = sum(high == math.inf for _, _, high in rates)
    found["rates"] = {"designs": len(rates), "open": open_above, "within_2": statistics.fmean(right) if right else 0.0}
    return found


def within_two(told: float, trained: float, failed: float) -> bool:
    """Whether a rate is within a factor of 2 of the middle of the measured bracket; where none failed, not below half."""
    if failed == math.inf:
        return told >= trained / 2
    middle = math.sqrt(trained * failed)
    return middle / 2 <= told <= 2 * middle


def _print(looks: dict[str, Any]) -> None:
    rows = [
        (look, group, f"{values['auroc']:.3f}", f"{values['ece']:.3f}")
        for look, found in looks.items()
        for group, values in found.items()
        if group != "rates"
    ]
    console.out.print(console.table("left out as a whole", ["look", "group", "AUROC", "ECE"], rows))
    for look, found in looks.items():
        rates = found["rates"]
        text = f"{look}: {rates['within_2']:.0%} of {rates['designs']} largest rates within a factor of 2"
        console.out.print(f"{text} ({rates['open']} designs trained at every rate)")


def write_grid(rows: list[dict[str, Any]], path: Path = COMMITTED) -> None:
    """Keep the runs as the committed grid, one a line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text('{"runs": [\n' + lines + "\n]}\n", encoding="utf-8")
