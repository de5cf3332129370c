"""Figures 1 and 9: validation perplexity over training, by scheme and depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bathy.clinic.readings import Reading
from bathy.errors import require
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import THREE, Spec, stack

FIGURE_1_RUNS = [*stack(THREE, 6), *stack(("pre_ln", "admin", "post_ln"), 18)]
PLAIN = Spec("admin_6_plain", "admin", 6, ("model.attention_dropout=0", "model.activation_dropout=0"), "iwslt")
FIGURE_9_RUNS = [*stack(THREE, 12), *stack(THREE, 6, "iwslt"), PLAIN]
NOTES = {"plain": " (no inner dropout)", "noisier": " (inner dropout, BPE-dropout)", "cased": " (with case)"}
"""Last word of a run's name to what it means."""
COLUMNS = {
    "early": "ppl after a tenth", "ppl": "ppl at the end", "improvement": "improvement over guessing (nats)",
    "gap": "source gap", "bleu": "BLEU", "updates": "updates",
}  # fmt: skip
"""A run's numbers to what a table calls them."""
HIGHEST = 200.0
"""Upper edge of the figure."""


def measure_1(lab: Lab) -> Measured:
    """6 and 18 layers."""
    return lab.train_all(FIGURE_1_RUNS, bleu=True)


def measure_9(lab: Lab) -> Measured:
    """12 layers, and the small dataset."""
    return lab.train_all(FIGURE_9_RUNS)


def make_table(runs: list[Spec]) -> Any:
    """A function that tabulates these runs' numbers."""

    def table(numbers: Mapping[str, Value]) -> Table:
        names = [name for name in COLUMNS if any(f"{run.name}.{name}" in numbers for run in runs)]
        rows = [[f"`{run.name}`", *(shown(numbers, f"{run.name}.{name}") for name in names)] for run in runs]
        return Table(["run", *(COLUMNS[name] for name in names)], rows)

    return table


def draw(measured: Measured) -> Any:
    """Perplexity against updates, one panel per depth, one line per scheme; what is above a panel runs along its edge."""
    alt: Any = require("altair", "clinic")

    rows = [_point(row) for row in measured.readings if row.quantity == "ppl"]
    lowest = min((row["ppl"] for row in rows), default=1.0)
    depths = sorted({row["depth"] for row in rows}, key=lambda depth: int(depth.split()[0]))
    chart = alt.Chart(alt.Data(values=rows)).mark_line(point=alt.OverlayMarkDef(size=12))
    encoded = chart.encode(
        x=alt.X("step:Q", title="updates"),
        y=alt.Y(
            "ppl:Q", title="validation perplexity", scale=alt.Scale(type="log", domain=[0.8 * lowest, HIGHEST], nice=False)
        ),
        color=alt.Color("scheme:N", title=None),
        detail="seed:N",
    )
    return encoded.properties(width=280, height=240).facet(column=alt.Column("depth:N", title=None, sort=depths))


def _point(row: Reading) -> dict[str, Any]:
    """post_ln_18 as a scheme and a depth; post_ln_18_plain has a note besides."""
    name, _, last = row.model.rpartition("_")
    scheme, _, depth = (name if last in NOTES else row.model).rpartition("_")
    return {
        "step": row.step,
        "ppl": min(row.value, HIGHEST),
        "scheme": scheme + NOTES.get(last, ""),
        "depth": f"{depth} layers",
        "seed": row.seed,
    }


FIGURE_1 = Item(
    "figure-1",
    "Figure 1: validation perplexity at 6 and 18 layers",
    "18-layer Post-LN does not train; Admin does, and ends below Pre-LN; 6-layer Pre-LN is ahead early and behind late.",
    {"tiny": Needs("toy corpus", 0.15, 1.0), "small": Needs("Multi30k", 4.0, 2.0), "paper": Needs("WMT'14 En-De", 290.0, 32.0)},
    measure_1,
    make_table(FIGURE_1_RUNS),
    draw,
)
FIGURE_9 = Item(
    "figure-9",
    "Figure 9: validation perplexity at 12 layers and on the small dataset",
    "12-layer Post-LN does not train; on the small dataset with 6 layers all three end alike. The last row leaves out "
    "attention and ReLU dropout.",
    {
        "tiny": Needs("toy corpus", 0.15, 1.0),
        "small": Needs("Multi30k", 4.0, 2.0),
        "paper": Needs("WMT'14, IWSLT'14", 170.0, 32.0),
    },
    measure_9,
    make_table(FIGURE_9_RUNS),
    draw,
)
