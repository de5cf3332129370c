"""How deep: Admin with two choices of ω, Pre-LN and Post-LN with a thousand layers, each at the same settings."""

from __future__ import annotations

from collections.abc import Mapping

from bathy.lab.reproduce.curves import draw
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import Spec

ENCODER = 4
"""Layers of the encoder; all others are the decoder's, each of which reads the source. Behind a deep encoder it takes far
longer to listen: with 96 + 4 layers the source gap is 0.00 after 400 updates, with 4 + 96 it is 0.13 after 150."""
SCHEMES = ("admin_constant_1", "admin", "pre_ln", "post_ln")
"""With ω = √n, the change O(1), a token's own part survives to the top; with the paper's O(log n) it is buried under what
all tokens share: after 996 decoder layers the variance among a sentence's tokens is 0.74 against 0.014 at the start."""
SETTINGS = (
    "model.ffn=64", "model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0", "optim.lr=5e-4",
)  # fmt: skip


def runs(lab: Lab) -> list[Spec]:
    """The schemes at the scale's greatest depth."""
    layers, steps, warmup, tokens = lab.scale.demonstration
    rhythm = max(1, steps // 6)
    changes = (
        f"train.tokens={tokens}", f"train.steps={steps}", f"optim.warmup={warmup}", f"train.valid_every={rhythm}",
        f"train.save_every={rhythm}", "train.keep_last=1", "train.log_every=10",
    )  # fmt: skip
    shape = (ENCODER, layers - ENCODER)
    return [Spec(f"{s}_{layers}", s, shape, (*SETTINGS, *changes)) for s in SCHEMES]


def measure(lab: Lab) -> Measured:
    """Train them all."""
    return lab.trained(runs(lab))


def table(numbers: Mapping[str, Value]) -> Table:
    """One row a run."""
    names = list(dict.fromkeys(name.partition(".")[0] for name in numbers))
    rows = [[f"`{run}`", *(shown(numbers, f"{run}.{what}") for what in ("learnt", "ppl", "gap", "updates"))] for run in names]
    return Table(["layers in all", "nats below unigram entropy", "ppl", "source gap", "updates"], rows)


DEPTH = Item(
    "depth",
    "A thousand layers",
    "Not in the paper: the deepest Admin model that two cores train in two hours, beside Pre-LN and Post-LN of the same shape.",
    {"tiny": Needs("toy corpus", 0.2, 2.0), "small": Needs("Multi30k", 6.0, 6.0), "paper": Needs("WMT'14 En-De", 48.0, 32.0)},
    measure,
    table,
    draw,
)
