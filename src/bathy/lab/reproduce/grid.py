"""Figure 10: no warm-up, fifteen settings of learning rate and β2, three schemes, as one sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bathy.clinic.readings import Reading
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import THREE, Spec
from bathy.lab.runs import FORMERLY, Outcome
from bathy.lab.sweep import Grid, Sweep, changes, work
from bathy.lab.sweep.grid import Point
from bathy.lab.sweep.results import chart
from bathy.settings import change

BOTH = "model.encoder_scheme+model.decoder_scheme"
TRAINED = 0.1
"""Nats a run must learn not to count as failed."""


def measure(lab: Lab) -> Measured:
    """The sweep, run to its end, and its counts."""
    rates = ",".join(lab.scale.rates)
    grid = Grid.parse([f"{BOTH}={','.join(THREE)}", f"optim.lr={rates}", "optim.beta2=0.99,0.995,0.999"])
    sweep = Sweep(grid, lab.out / "runs" / "grid")
    steps = (f"train.steps={lab.scale.grid_steps}", "optim.warmup=0", "optim.schedule=linear")
    base = Spec("grid", "post_ln", 6, steps, "iwslt")

    def run(point: Point, folder: Path) -> Outcome:
        spec = replace(base, changes=(*steps, *changes(point), change("train.run", folder)))
        return lab.finish(lab.config(spec, lab.seed_list[0])).outcome

    work(sweep, run)
    rows: list[Reading] = []
    for point in grid.points:
        outcome = run(point, sweep.folder(point))
        place: dict[str, Any] = {"model": point[BOTH], "site": f"{point['optim.lr']} {point['optim.beta2']}"}
        values = {
            "improvement": outcome.improvement,
            "gap": outcome.gap,
            "stopped": float(outcome.stopped),
            "loss": outcome.loss,
        }
        rows += [Reading(name, value, **place) for name, value in values.items()]
    return Measured(numbers(rows), rows)


def numbers(rows: Sequence[Reading]) -> dict[str, Value]:
    """Scheme.failed, .stopped, .best_loss, and the share of settings where Post-LN trains in which it beats Pre-LN."""
    improvement, stopped, loss = (_values(rows, name) for name in ("improvement", "stopped", "loss"))
    places = list(dict.fromkeys(row.site for row in rows))
    result: dict[str, Value] = {}
    for scheme in THREE:
        result[f"{scheme}.failed"] = float(sum(improvement[scheme, place] < TRAINED for place in places))
        result[f"{scheme}.stopped"] = sum(stopped[scheme, place] for place in places)
        result[f"{scheme}.best_loss"] = min(loss[scheme, place] for place in places)
    trained = [place for place in places if improvement["post_ln", place] >= TRAINED]
    if trained:
        result["post_ln.wins"] = sum(loss["post_ln", p] < loss["pre_ln", p] for p in trained) / len(trained)
    return result


def _values(rows: Sequence[Reading], quantity: str) -> dict[tuple[str, str], float]:
    return {(row.model, row.site): row.value for row in rows if FORMERLY.get(row.quantity, row.quantity) == quantity}


def table(numbers: Mapping[str, Value]) -> Table:
    """One row per scheme."""
    said = {"post_ln": "7; better than Pre-LN in 7 of the other 8", "pre_ln": "0", "admin": "0"}
    names = {"failed": 3, "stopped": 3, "best_loss": 4}
    rows = [[f"`{s}`", *(shown(numbers, f"{s}.{name}", digits) for name, digits in names.items()), said[s]] for s in THREE]
    columns = [
        "",
        f"improved by less than {TRAINED} nats, of 15",
        "stopped by divergence detection, of 15",
        "best validation loss",
    ]
    return Table([*columns, "paper: failed, of 15"], rows)


def draw(measured: Measured) -> Any:
    """Three heat maps; failed: hardly improved on guessing, or stopped by divergence detection."""
    improvement, stopped, loss = (_values(measured.readings, name) for name in ("improvement", "stopped", "loss"))
    cells = []
    for place, value in loss.items():
        rate, beta2 = place[1].split()
        state = "stopped" if improvement[place] < TRAINED or stopped[place] else "trained"
        cells.append({BOTH: place[0], "optim.lr": rate, "optim.beta2": beta2, "state": state, "loss": value})
    axes = {key: tuple(dict.fromkeys(str(cell[key]) for cell in cells)) for key in (BOTH, "optim.lr", "optim.beta2")}
    return chart(cells, Grid(axes), "loss")


FIGURE_10 = Item(
    "figure-10",
    "Figure 10: no warm-up",
    "Without warm-up Pre-LN and Admin converge in all 15 settings and Post-LN in 8, in 7 of which it beats Pre-LN.",
    {"tiny": Needs("toy corpus", 0.4, 1.0), "small": Needs("Multi30k", 1.0, 1.5), "paper": Needs("IWSLT'14 De-En", 180.0, 8.0)},
    measure,
    table,
    draw,
)
