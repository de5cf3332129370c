"""The recipe of a scale, chosen once: learning rate and warm-up of 6-layer Post-LN, by validation loss, before anything else.

The paper took its recipe from the Post-LN literature, so the baseline is tuned and what is compared with it is not. The rule:
the lowest validation loss at the end; of runs within 0.02 nats of it the one with the lower rate, then the shorter warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.recipes import recipe
from bathy.lab.reproduce.spec import Spec
from bathy.lab.reproduce.variants import draw

RATES = ("1e-3", "2e-3", "4e-3")
WARMUPS = (8, 4)
"""Of the run's updates, one in so many."""
TIE = 0.02
"""Nats within which two runs count as equal."""


def grid(lab: Lab) -> list[Spec]:
    """One run per rate and warm-up; the last tenth of each is averaged, as everywhere."""
    steps = recipe(lab.scale.configs["ende"]).train.steps
    saved = (f"train.save_every={max(1, steps // 100)}", "train.keep_last=10", "decode.average=0.1")
    return [
        Spec(f"lr_{rate}_warmup_{steps // share}", "post_ln", 6, (f"optim.lr={rate}", f"optim.warmup={steps // share}", *saved))
        for rate in RATES
        for share in WARMUPS
    ]


def measure(lab: Lab) -> Measured:
    """Validation loss of every point, and which one the rule chooses once all are there."""
    runs = grid(lab)
    found = lab.train_all(runs)
    if not lab.missing:
        chosen = choose({run.name: _mean(found.numbers[f"{run.name}.loss"]) for run in runs})
        found.numbers |= {f"{run.name}.chosen": float(run.name == chosen) for run in runs}
    return found


def choose(losses: Mapping[str, float]) -> str:
    """The first run, in the order of rates and warm-ups, whose loss is within a tie of the lowest."""
    return next(name for name, loss in losses.items() if loss <= min(losses.values()) + TIE)


def _mean(value: Value) -> float:
    return sum(value.values()) / len(value) if isinstance(value, dict) else value


def table(numbers: Mapping[str, Value]) -> Table:
    """One row per run."""
    runs = list(dict.fromkeys(name.rpartition(".")[0] for name in numbers))
    rows = [
        [
            f"`{run}`",
            *(shown(numbers, f"{run}.{name}", 4) for name in ("loss", "ppl")),
            "chosen" if numbers.get(f"{run}.chosen") else "",
        ]
        for run in runs
    ]
    return Table(["6-layer Post-LN", "validation loss", "ppl", ""], rows)


RECIPE = Item(
    "recipe",
    "The recipe, chosen on 6-layer Post-LN",
    "Not in the paper: learning rate and warm-up of the scale's recipe, chosen by 6-layer Post-LN's validation loss alone. "
    f"Of runs within {TIE} nats of the best, the lower rate and then the shorter warm-up.",
    {"tiny": Needs("toy corpus", 0.3, 1.0), "small": Needs("Multi30k", 1.5, 1.5)},
    measure,
    table,
    draw,
)
