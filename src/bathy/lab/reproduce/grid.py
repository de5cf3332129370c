"""Figure 10: no warm-up, fifteen settings of learning rate and β2, three schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bathy.clinic.readings import Reading, groups
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import THREE, Spec
from bathy.lab.runs import FORMERLY
from bathy.lab.sweep import Grid
from bathy.lab.sweep.results import chart

TRAINED = 0.1
"""Nats by which a run must improve on guessing not to count as failed."""
USED = 0.1
"""Nats that a wrong source must cost a run not to count as ignoring its source."""
BETA2 = ("0.99", "0.995", "0.999")
QUANTITIES = ("improvement", "gap", "stopped", "loss")


def specs(lab: Lab) -> dict[tuple[str, str, str], Spec]:
    """(Scheme, rate, β2) to its run."""
    steps = (f"train.steps={lab.scale.grid_steps}", "optim.warmup=0", "optim.schedule=linear")
    places = [(s, rate, beta2) for s in THREE for rate in (*lab.scale.low_rates, *lab.scale.rates) for beta2 in BETA2]
    return {
        place: Spec(
            "grid_" + "_".join(place), place[0], 6, (*steps, f"optim.lr={place[1]}", f"optim.beta2={place[2]}"), "iwslt"
        )
        for place in places
    }


def measure(lab: Lab) -> Measured:
    """Every run's loss, and the counts of each seed whose runs are all finished: for the scale's rates and the paper's own."""
    runs = specs(lab)
    trained = lab.train_all(list(runs.values()))
    rows: list[Reading] = []
    losses: dict[str, Value] = {}
    for (scheme, rate, beta2), spec in runs.items():
        place: dict[str, Any] = {"model": scheme, "site": f"{rate} {beta2}"}
        for name in QUANTITIES:
            per_seed = trained.by_seed(f"{spec.name}.{name}")
            rows += [Reading(name, value, seed=int(seed), **place) for seed, value in per_seed.items()]
        losses |= {name: value for name, value in trained.numbers.items() if name == f"{spec.name}.loss"}
    counts = numbers(rows, lab.scale.rates) | numbers(rows, lab.scale.low_rates, "_low")
    return Measured(counts | losses, rows)


def numbers(rows: Sequence[Reading], rates: Sequence[str], mark: str = "") -> dict[str, Value]:
    """Scheme.failed, .ignoring, .stopped and .best_loss by seed, and the share of settings where Post-LN trains in which it
    beats Pre-LN; `mark` follows the scheme's name."""
    places = [f"{rate} {beta2}" for rate in rates for beta2 in BETA2]
    result: dict[str, dict[str, float]] = {}
    for (seed,), own in groups(rows, "seed"):
        improvement, gap, stopped, loss = (_values(own, name) for name in QUANTITIES)
        if not places or any((scheme, place) not in loss for scheme in THREE for place in places):
            continue
        found = {}
        for scheme in THREE:
            trained_at = [place for place in places if improvement[scheme, place] >= TRAINED]
            found[f"{scheme}{mark}.failed"] = float(len(places) - len(trained_at))
            found[f"{scheme}{mark}.ignoring"] = float(sum(gap[scheme, place] < USED for place in trained_at))
            found[f"{scheme}{mark}.stopped"] = sum(stopped[scheme, place] for place in places)
            found[f"{scheme}{mark}.best_loss"] = min(loss[scheme, place] for place in places)
        trained = [place for place in places if improvement["post_ln", place] >= TRAINED]
        if trained:
            found[f"post_ln{mark}.wins"] = fmean(loss["post_ln", p] < loss["pre_ln", p] for p in trained)
        for name, value in found.items():
            result.setdefault(name, {})[str(seed)] = value
    return dict(result)


def _values(rows: Sequence[Reading], quantity: str) -> dict[tuple[str, str], float]:
    return {(row.model, row.site): row.value for row in rows if _quantity(row) == quantity}


def _quantity(row: Reading) -> str:
    return FORMERLY.get(row.quantity, row.quantity)


def table(numbers: Mapping[str, Value]) -> Table:
    """One row per scheme, at the paper's rates and at ten times those where both were measured."""
    said = {"post_ln": "7; better than Pre-LN in 7 of the other 8", "pre_ln": "0", "admin": "0"}
    names = {"failed": 3, "ignoring": 3, "stopped": 3, "best_loss": 4}
    both = any("_low." in name for name in numbers)
    rates = {"_low": "as in the paper", "": "ten times those"} if both else {"": ""}
    rows = [
        [f"`{s}`", label, *(shown(numbers, f"{s}{mark}.{name}", digits) for name, digits in names.items()), said[s]]
        for mark, label in rates.items()
        for s in THREE
    ]
    columns = [
        "",
        "rates",
        f"improved by less than {TRAINED} nats, of 15",
        f"improved, but a wrong source costs less than {USED} nats, of 15",
        "stopped by divergence detection, of 15",
        "best validation loss",
    ]
    return Table([*columns, "paper: failed, of 15"], rows)


def draw(measured: Measured) -> Any:
    """Three heat maps, means over seeds; failed: with one seed it hardly improved on guessing, or was stopped.

    A * marks a mean source gap below USED, in a run that is not failed.
    """
    cells = []
    for (scheme, site), rows in groups(measured.readings, "model", "site"):
        improvement, gap, stopped, loss = ([row.value for row in rows if _quantity(row) == name] for name in QUANTITIES)
        rate, beta2 = site.split()
        state = "stopped" if min(improvement) < TRAINED or any(stopped) else "trained"
        mark = "*" if gap and fmean(gap) < USED else ""
        cells.append({"scheme": scheme, "rate": rate, "beta2": beta2, "state": state, "loss": fmean(loss), "mark": mark})
    axes = {key: tuple(dict.fromkeys(str(cell[key]) for cell in cells)) for key in ("scheme", "rate", "beta2")}
    return chart(cells, Grid(axes), "loss")


FIGURE_10 = Item(
    "figure-10",
    "Figure 10: no warm-up",
    "Without warm-up Pre-LN and Admin converge in all 15 settings and Post-LN in 8, in 7 of which it beats Pre-LN.",
    {"tiny": Needs("toy corpus", 0.4, 1.0), "small": Needs("Multi30k", 2.0, 1.5), "paper": Needs("IWSLT'14 De-En", 180.0, 8.0)},
    measure,
    table,
    draw,
)
