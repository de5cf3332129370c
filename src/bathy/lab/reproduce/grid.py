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
from bathy.lab.runs import Outcome, finished
from bathy.lab.sweep import Grid, Sweep, changes, work
from bathy.lab.sweep.grid import Point
from bathy.lab.sweep.results import chart

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
        spec = replace(base, changes=(*steps, *changes(point), f"train.run='{folder}'"))
        return finished(lab.config(spec, lab.seed_list[0])).outcome

    work(sweep, run)
    rows: list[Reading] = []
    for point in grid.points:
        outcome = run(point, sweep.folder(point))
        place: dict[str, Any] = {"model": point[BOTH], "site": f"{point['optim.lr']} {point['optim.beta2']}"}
        rows += [Reading(name, value, **place) for name, value in (("learnt", outcome.learnt), ("loss", outcome.loss))]
    return Measured(numbers(rows), rows)


def numbers(rows: Sequence[Reading]) -> dict[str, Value]:
    """Scheme.failed, .best_loss, and the share of settings where Post-LN trains in which it beats Pre-LN."""
    learnt = {(row.model, row.site): row.value for row in rows if row.quantity == "learnt"}
    loss = {(row.model, row.site): row.value for row in rows if row.quantity == "loss"}
    places = list(dict.fromkeys(row.site for row in rows))
    result: dict[str, Value] = {}
    for scheme in THREE:
        result[f"{scheme}.failed"] = float(sum(learnt[scheme, place] < TRAINED for place in places))
        result[f"{scheme}.best_loss"] = min(loss[scheme, place] for place in places)
    trained = [place for place in places if learnt["post_ln", place] >= TRAINED]
    if trained:
        result["post_ln.wins"] = sum(loss["post_ln", p] < loss["pre_ln", p] for p in trained) / len(trained)
    return result


def table(numbers: Mapping[str, Value]) -> Table:
    """A row a scheme."""
    said = {"post_ln": "7; better than Pre-LN in 7 of the other 8", "pre_ln": "0", "admin": "0"}
    rows = [[f"`{s}`", shown(numbers, f"{s}.failed"), shown(numbers, f"{s}.best_loss", 4), said[s]] for s in THREE]
    return Table(["", "failed, of 15", "best validation loss", "paper: failed, of 15"], rows)


def draw(measured: Measured) -> Any:
    """Three heat maps."""
    learnt = {(row.model, row.site): row.value for row in measured.readings if row.quantity == "learnt"}
    cells = []
    for row in measured.readings:
        if row.quantity == "loss":
            rate, beta2 = row.site.split()
            state = "trained" if learnt[row.model, row.site] >= TRAINED else "stopped"
            cells.append({BOTH: row.model, "optim.lr": rate, "optim.beta2": beta2, "state": state, "loss": row.value})
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
