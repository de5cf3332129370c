"""Whether a forecast is right: a grid of short runs, what was read before each, and what came of it.

Without --data the committed grid (grid.jsonl.gz: readings and outcomes) is fitted and judged again. With --data FOLDER the runs
that the folder lacks are made first (hours; it can be stopped and resumed), and grid, traces and odds are written there.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bathy import console
from bathy.clinic import plots
from bathy.clinic.odds import Odds, fitted
from bathy.files import write_json
from bathy.lab.bench.predict.cases import Case, Part, cases_of, compact, load, save
from bathy.lab.bench.predict.fit import auroc, calibration, ece, ece_by_chance, fit, groups_of, left_out
from bathy.lab.bench.predict.plot import calibration_plot
from bathy.lab.bench.predict.rates import largest_rates

LOOKS = {"one look": 4, "rehearsal": 16}
"""Kind of look to the updates it makes."""
READINGS = ("tokens", "amplification", "gradient", "warmup")
"""What both rest on."""
PARTS: tuple[Part, ...] = ("development", "held out", "larger")
"""Parts of the grid; the odds are fitted on the first two, their readings chosen on the first."""
COMMITTED = Path(__file__).parent / "grid.jsonl.gz"


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Fit on the grid and judge there with groups left out, then on larger models; print.

    The held-out families, on which no reading was chosen, are judged by a fit on the others, too.
    """
    rows = _made(data, quick) if data else load(COMMITTED)
    outcomes = Counter(row["outcome"] for row in rows)
    console.out.print(f"{len(rows)} runs: {dict(outcomes)}")
    result: dict[str, Any] = {"runs": len(rows), "outcomes": dict(outcomes), "looks": {}, "odds": {}}
    cases = {part: cases_of(rows, part) for part in PARTS}
    whole = cases["development"] + cases["held out"]
    for look, updates in LOOKS.items():
        odds, others = fit(whole, updates, READINGS), fit(cases["development"], updates, READINGS)
        judged = {f"{group} left out": judge(whole, left_out(whole, updates, READINGS, key))
                  for group, key in groups_of().items()}  # fmt: skip
        apart = {"held out": (cases["held out"], others), "larger": (cases["larger"], odds)}
        judged |= {part: judge(own, told(own, by)) for part, (own, by) in apart.items() if own}
        result["looks"][look], result["odds"][look] = judged, asdict(odds)
    console.out.print(console.table("forecasts of runs that the fit has not seen", COLUMNS, table_rows(result["looks"])))
    same = all(abs(fitted(look).bias - values["bias"]) < 1e-6 for look, values in result["odds"].items())
    console.out.print("the shipped odds are this fit" if same else "the shipped odds are another fit")
    if data:
        save(rows, data / COMMITTED.name)
        plots.save(calibration_plot(result["looks"]), data / "calibration.svg")
        write_json(data / "odds.json", result["odds"])
    return result


def _made(data: Path, quick: bool) -> list[dict[str, Any]]:
    """The runs of a folder, after those that it lacks were made."""
    from bathy.lab.bench.monitor import TRACES, traces_of
    from bathy.lab.bench.predict.grid import larger, small
    from bathy.lab.bench.predict.runs import make, read

    data.mkdir(parents=True, exist_ok=True)
    for name, runs in (("small", small()), ("larger", larger())):
        make(runs, data / f"{name}_runs.jsonl", seconds=5.0 if quick else float("inf"))
    made = [row for path in sorted(data.glob("*_runs.jsonl")) for row in read(path).values()]
    save(traces_of(made), data / TRACES.name)
    return compact(made)


def told(cases: Sequence[Case], odds: Odds) -> list[float]:
    """The probability of failing for each case."""
    return [odds.failure(case.features(odds.updates)) for case in cases]


def judge(cases: Sequence[Case], chances: Sequence[float]) -> dict[str, Any]:
    """How right these probabilities are: AUROC, calibration, and the largest rates that follow from them.

    Runs that trail a lower rate are left out, but for one more AUROC, in which they count as training.
    """
    whole = auroc(chances, [case.fails for case in cases])
    pairs = [(case, chance) for case, chance in zip(cases, chances, strict=True) if case.decides]
    cases, chances = [case for case, _ in pairs], [chance for _, chance in pairs]
    fails = [case.fails for case in cases]
    rates = largest_rates(cases, chances)
    return {
        "failed": sum(fails), "trained": len(fails) - sum(fails), "auroc": auroc(chances, fails),
        "auroc_with_trailing": whole, "ece": ece(chances, fails),
        "ece_by_chance": ece_by_chance(chances),
        "calibration": calibration(chances, fails), "designs": len(rates),
        "within_2": statistics.fmean(rate.right for rate in rates) if rates else None,
        "covered": statistics.fmean(rate.covered for rate in rates) if rates else None,
    }  # fmt: skip


COLUMNS = ["look", "judged on", "failed + trained", "AUROC", "ECE (by chance)", "largest rate within ×2", "interval meets it"]


def table_rows(looks: dict[str, Any]) -> list[tuple[str, ...]]:
    """What is printed, and stands on the page: one row for each look and part."""
    return [
        (
            look,
            part,
            f"{found['failed']} + {found['trained']}",
            f"{found['auroc']:.3f}",
            f"{found['ece']:.3f} ({found['ece_by_chance']:.3f})",
            f"{found['within_2'] or 0:.0%} of {found['designs']}",
            f"{found['covered'] or 0:.0%}",
        )
        for look, judged in looks.items()
        for part, found in judged.items()
    ]
