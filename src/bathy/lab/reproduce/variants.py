"""Table 1, longer warm-ups, other initialisations and the rescaled form: 18-layer runs that differ in one thing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from bathy.clinic.examination import study
from bathy.clinic.exams.gradients import gradients
from bathy.clinic.readings import Reading, select
from bathy.errors import require
from bathy.lab.reproduce.gradients import first_to_last
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import Spec

TABLE_1_RUNS = [Spec(f"{scheme}_18", scheme, 18) for scheme in ("post_ln", "hybrid", "pre_ln", "admin")]
TABLE_1_SAID = {
    "post_ln_18": "vanishing, diverged",
    "hybrid_18": "not vanishing, diverged",
    "pre_ln_18": "not vanishing, converged",
    "admin_18": "vanishing, converged (Section 4.3)",
}
NO_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0")
HALF = ("train.precision=float16",)


def table_1(lab: Lab) -> Measured:
    """The four combinations trained, with the gradient's way down the decoder at the start."""
    found = lab.train_all(TABLE_1_RUNS)
    for spec in TABLE_1_RUNS:
        values = {}
        for seed in lab.seed_list:
            rows = study(lambda seed, spec=spec: lab.fresh(spec, seed), lab.batch(), [seed], [gradients], spec.name)  # type: ignore[misc]
            values[str(seed)] = math.exp(first_to_last(select(rows, "gradient", stack="decoder")))
        found.numbers[f"{spec.name}.decoder_gradient"] = values
    return found


def warmup_runs(lab: Lab) -> list[Spec]:
    """Post-LN with one to four times the recipe's warm-up, and Admin with one; the updates after warm-up are as many in all."""
    steps, base = lab.full_length()
    rest = steps - base
    runs = []
    for scheme, times in (("post_ln", 1), ("post_ln", 2), ("post_ln", 3), ("post_ln", 4), ("admin", 1)):
        changes = (f"optim.warmup={base * times}", f"train.steps={base * times + rest}")
        folder = f"{scheme}_18" if times == 1 else f"warmup_{scheme}_18_x{times}"
        runs.append(Spec(f"{scheme}_18_x{times}", scheme, 18, changes, folder=folder))
    return runs


def initialisation_runs(lab: Lab) -> list[Spec]:
    """ReZero, FixUp, LookLinear and Admin with dropout and float16, and each without dropout in float32."""
    short = lab.short_changes()
    runs = []
    for scheme in ("rezero", "fixup", "looklinear", "admin"):
        runs.append(Spec(f"{scheme}_18", scheme, 18, (*short, *HALF), folder=f"init_{scheme}_18"))
        plain = (*short, *NO_DROPOUT, "train.precision=float32")
        runs.append(Spec(f"{scheme}_18_plain", scheme, 18, plain, folder=f"init_{scheme}_18_plain"))
    return runs


def rescaled_runs(lab: Lab) -> list[Spec]:
    """Admin with ω and with rescaled weights on the small dataset: in float32 to the recipe's end, in float16 a short run."""
    half = (*lab.short_changes(), *HALF)
    return [
        spec
        for scheme in ("admin", "admin_rescaled")
        for spec in (
            Spec(scheme, scheme, 6, (), "iwslt", f"{scheme}_6"),
            Spec(f"{scheme}_half", scheme, 6, half, "iwslt", f"rescaled_{scheme}_6_half"),
        )
    ]


def training(runs: Callable[[Lab], list[Spec]]) -> Callable[[Lab], Measured]:
    """A measure that trains these runs."""
    return lambda lab: lab.train_all(runs(lab))


def make_table(said: Mapping[str, str], *names: str) -> Callable[[Mapping[str, Value]], Table]:
    """A table with one row per run, in the order of the numbers, and what the paper says of it."""
    heads = {
        "improvement": "improvement over guessing (nats)",
        "ppl": "ppl",
        "gap": "source gap",
        "decoder_gradient": "decoder gradient, first / last",
    }
    heads |= {"updates": "updates", "overflows": "overflows / 1000 updates"}

    def table(numbers: Mapping[str, Value]) -> Table:
        runs = list(dict.fromkeys(name.partition(".")[0] for name in numbers if "." in name))
        rows = [[f"`{run}`", *(shown(numbers, f"{run}.{name}") for name in names), said.get(run, "–")] for run in runs]
        return Table(["run", *(heads[name] for name in names), "paper"], rows)

    return table


def draw(measured: Measured, against: str = "updates", at: Callable[[Reading], float] = lambda reading: reading.step) -> Any:
    """Validation loss against updates, or what `at` makes of a reading; one line per run, dashed where one may hide another."""
    alt: Any = require("altair", "clinic")

    losses = [reading for reading in measured.readings if reading.quantity == "loss"]
    rows = [{"run": r.model, "at": at(r), "loss": r.value, "seed": r.seed} for r in losses]
    chart = alt.Chart(alt.Data(values=rows)).mark_line(point=alt.OverlayMarkDef(size=12))
    names = list(dict.fromkeys(row["run"] for row in rows))
    lines = chart.encode(
        x=alt.X("at:Q", title=against),
        y=alt.Y("loss:Q", title="validation loss, nats", scale=alt.Scale(zero=False)),
        color=alt.Color("run:N", title=None, sort=names),
        strokeDash=alt.StrokeDash("run:N", legend=None, sort=names, scale=alt.Scale(range=[[1, 0], [4, 4]])),
        detail="seed:N",
    )
    return lines.properties(width=420, height=260)


WARM_SAID = {f"post_ln_18_x{times}": "failed" for times in (1, 2, 3, 4)}
INIT_SAID = {f"{scheme}_18": "diverged" for scheme in ("rezero", "fixup", "looklinear")} | {"admin_18": "converged"}
HALF_SAID = {"admin_rescaled": "about the same as admin", "admin_rescaled_half": "not very stable"}

TABLE_1 = Item(
    "table-1",
    "Table 1: a Post-LN encoder under a Pre-LN decoder",
    "Changing the decoder to Pre-LN repairs the vanishing gradient and does not save the training.",
    {"tiny": Needs("toy corpus", 0.15, 1.0), "small": Needs("Multi30k", 3.5, 2.0), "paper": Needs("WMT'14 En-De", 290.0, 32.0)},
    table_1,
    make_table(TABLE_1_SAID, "decoder_gradient", "improvement", "gap"),
    draw,
)
WARMUP = Item(
    "warmup",
    "Section 5.2: longer warm-ups",
    "18-layer Post-LN fails with 8, 16, 24 and 32 thousand updates of warm-up.",
    {"tiny": Needs("toy corpus", 0.2, 1.0), "small": Needs("Multi30k", 2.0, 2.0), "paper": Needs("WMT'14 En-De", 360.0, 32.0)},
    training(warmup_runs),
    make_table(WARM_SAID, "improvement", "gap", "updates"),
    draw,
)
INITIALISATIONS = Item(
    "initialisations",
    "Section 5.3: other initialisations at 18 layers",
    "ReZero, FixUp and LookLinear diverge; half precision and dropout are to blame for the first two.",
    {"tiny": Needs("toy corpus", 0.3, 1.0), "small": Needs("Multi30k", 0.4, 2.0), "paper": Needs("WMT'14 En-De", 580.0, 32.0)},
    training(initialisation_runs),
    make_table(INIT_SAID, "improvement", "gap", "updates"),
    draw,
)
RESCALED = Item(
    "rescaled",
    "Appendix C: rescaled weights instead of ω",
    "Setting the weights as if ω had been folded in gives about the same quality, but is not very stable in half precision.",
    {"tiny": Needs("toy corpus", 0.1, 1.0), "small": Needs("Multi30k", 0.3, 1.5), "paper": Needs("IWSLT'14 De-En", 12.0, 8.0)},
    training(rescaled_runs),
    make_table(HALF_SAID, "ppl", "improvement", "overflows"),
    draw,
)
