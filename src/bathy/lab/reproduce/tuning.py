"""The recipe of a scale, chosen once: learning rate and warm-up of 6-layer Post-LN, by validation loss, before anything else.

The paper took its recipe from the Post-LN literature, so the baseline is tuned and what is compared with it is not. The rule:
the lowest validation loss at the end; of runs within 0.02 nats of it the one with the lower rate, then the shorter warm-up.

`batch` asks what the recipe's batch and format cost: the same tokens in fewer, larger updates, and in bfloat16. The rule: a
run gives more for its time if its validation loss is below that of the recipe's own run after as many seconds, on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bathy.clinic.readings import Reading
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.recipes import recipe
from bathy.lab.reproduce.spec import Spec
from bathy.lab.reproduce.variants import draw
from bathy.lab.runs import Outcome

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


def batch_runs(lab: Lab) -> list[Spec]:
    """The recipe on 6-layer Post-LN; two and four times its batch, at its rate and at one that grows as √batch; bfloat16."""
    plain = recipe(lab.scale.configs["ende"])
    lr, warmup, steps, tokens = plain.optim.lr, plain.optim.warmup, plain.train.steps, plain.train.tokens
    kinds = [(1, lr, "float32"), (1, lr, "bfloat16")]
    kinds += [(times, rate, "float32") for times in (2, 4) for rate in (lr, lr * times**0.5)]
    runs = []
    for times, rate, precision in kinds:
        name = f"batch_{tokens * times}_lr_{rate:.2g}_{precision}"
        length = (f"train.tokens={tokens * times}", f"train.steps={steps // times}", f"optim.warmup={warmup // times}")
        looks = (f"train.valid_every={max(1, steps // times // 20)}", f"train.save_every={max(1, steps // times // 100)}")
        runs.append(Spec(name, "post_ln", 6, (*length, *looks, f"optim.lr={rate:.2g}", f"train.precision={precision}")))
    return runs


def batch_measure(lab: Lab) -> Measured:
    """Loss and seconds of every run, and how far its loss is from that of the recipe's own run after as many seconds."""
    runs = batch_runs(lab)
    found = lab.train_all(runs)
    each: dict[str, dict[str, float]] = {}
    for seed in map(str, lab.seed_list):
        ended = {spec.name: run.outcome for spec in runs if (run := lab.outcome(spec, int(seed)))}
        plain = ended.get(runs[0].name)
        for name, outcome in ended.items():
            each.setdefault(f"{name}.seconds", {})[seed] = outcome.seconds
            if plain and plain.seconds:
                each.setdefault(f"{name}.against", {})[seed] = outcome.loss - _loss_after(plain, outcome.seconds)
    found.numbers |= each
    return found


def _loss_after(outcome: Outcome, seconds: float) -> float:
    """A run's validation loss after so many seconds, between its validations on a line; its last loss beyond its end."""
    steps, losses = zip(*outcome.curve, strict=True)
    return float(np.interp(seconds / outcome.seconds * outcome.updates, steps, losses))


def batch_table(numbers: Mapping[str, Value]) -> Table:
    """One row per run."""
    what = ("updates", "seconds", "loss", "against")
    rows = [[f"`{run}`", *(shown(numbers, f"{run}.{name}", 4) for name in what)] for run in _runs(numbers)]
    return Table(["6-layer Post-LN", "updates", "seconds", "validation loss", "against the first after as many seconds"], rows)


def batch_draw(measured: Measured) -> Any:
    """Validation loss against seconds."""

    def seconds(reading: Reading) -> float:
        whole, updates = (measured.numbers[f"{reading.model}.{what}"] for what in ("seconds", "updates"))
        assert isinstance(whole, dict) and isinstance(updates, dict)
        return reading.step / updates[str(reading.seed)] * whole[str(reading.seed)]

    return draw(measured, "seconds", seconds)


def table(numbers: Mapping[str, Value]) -> Table:
    """One row per run."""
    rows = [
        [
            f"`{run}`",
            *(shown(numbers, f"{run}.{name}", 4) for name in ("loss", "ppl")),
            "chosen" if numbers.get(f"{run}.chosen") else "",
        ]
        for run in _runs(numbers)
    ]
    return Table(["6-layer Post-LN", "validation loss", "ppl", ""], rows)


def _runs(numbers: Mapping[str, Value]) -> list[str]:
    """The runs that numbers are of; a run's name may have a dot, in its rate."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in numbers))


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
BATCH = Item(
    "batch",
    "What the recipe's batch and format cost",
    "Not in the paper: the same tokens in fewer, larger updates, with the warm-up's share of them, and in bfloat16.",
    {"tiny": Needs("toy corpus", 0.3, 1.0), "small": Needs("Multi30k", 1.0, 1.5)},
    batch_measure,
    batch_table,
    batch_draw,
)
