"""The report: one page that needs no network, with findings first, interactive figures, all readings, and what made them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bathy.clinic.findings import SEVERITIES, Finding
from bathy.clinic.laws import growths, theorem_1, theorem_2
from bathy.clinic.plots import FIGURES, panel
from bathy.clinic.readings import COLUMNS, Reading, select
from bathy.files import write_text
from bathy.pages import Summary, embedded, render_page


def write_report(path: Path, readings: Sequence[Reading], findings: Sequence[Finding], origin: dict[str, Any]) -> None:
    """Write the page."""
    write_text(path, render(readings, findings, origin))


def render(readings: Sequence[Reading], findings: Sequence[Finding], origin: dict[str, Any]) -> str:
    """The page as text. Every name that it shows is escaped."""
    charts = {name: chart for name, draw in FIGURES.items() if (chart := draw(readings)) is not None}
    return render_page(
        "bathy.clinic",
        "report.html",
        charts,
        summary=summary(findings),
        findings=findings,
        severities=[name for name in SEVERITIES if any(finding.severity == name for finding in findings)],
        models=list(dict.fromkeys(row.model for row in readings)),
        figures={name: (FIGURES[name].__doc__ or "").partition("\n")[0] for name in charts},
        columns=embedded(COLUMNS),
        rows=embedded([[_number(getattr(row, column)) for column in COLUMNS] for row in readings]),
        count=len(readings),
        laws=laws(readings),
        seconds=select(readings, "seconds"),
        origin={key: _text(value) for key, value in origin.items()},
    )


def summary(findings: Sequence[Finding]) -> Summary:
    """The worst finding, since when, and the first thing to do."""
    if not findings:
        return Summary("note", "There were no readings from which anything could be found.")
    worst = findings[0]
    others = sum(finding.severity in ("serious", "warning") for finding in findings[1:])
    what = f"{worst.title[:1].upper()}{worst.title[1:]}{f' (and {others} more)' if others else ''}"
    since = f"update {worst.step}" if worst.step else "before training"
    if len({finding.model for finding in findings}) > 1:
        since += f", {worst.model}"
    if worst.severity == "healthy":
        return Summary("healthy", what)
    return Summary(worst.severity, what, since, f"{worst.first}.")


def laws(readings: Sequence[Reading]) -> list[tuple[str, str]]:
    """The paper's laws as lines: what was checked, and what came out."""
    lines = []
    found = growths(readings)
    for growth in found:
        text = f"linear in N: R² {growth.linear.r2:.3f}; in log(N + {growth.c:.2f}): R² {growth.log.r2:.3f}"
        text += f"; grows as N^{growth.slope:.2f}" + ("; saturated: perturb less" if growth.saturated else "")
        lines.append((f"Output change, {panel(growth.model, growth.stack, growth.step)}", text))
    for stack in dict.fromkeys(growth.stack for growth in found):
        law = theorem_2([growth for growth in found if growth.stack == stack])
        own = ", ".join(f"{name} {c:.3g}" for name, c in law.own.items())
        lines.append((f"Theorem 2, change = C · Σβ², {stack}", f"C {law.c:.3g}, R² {law.r2:.3f}; each model's own C: {own}"))
    for down in theorem_1(readings):
        text = f"geometric mean {down.mean:.3f}, {len(down.ratios)} sub-layers, {down.seeds} seed(s); holds at {down.holds:.0%}"
        lines.append((f"Var[Δx_(i−1)] / Var[Δx_i], {panel(down.model, down.stack, down.step)}", text))
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> Any:
    """A cell: numbers to five digits, what is not finite as text."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value
