"""Tables 2, 3 and 4: BLEU by depth and dataset, ReZero, and the deep En-Fr models beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from bathy.core.transformer import Transformer, TransformerConfig
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, difference, each_seed, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.recipes import recipe
from bathy.lab.reproduce.spec import THREE, Spec, stack

PUBLISHED_2 = {
    "post_ln": {6: "27.80", 12: "failed", 18: "failed"},
    "pre_ln": {6: "27.27", 12: "28.26", 18: "28.38"},
    "admin": {6: "27.90", 12: "28.58", 18: "29.03"},
}
"""WMT'14 En-De, tokenised BLEU."""
PUBLISHED_3 = {
    "admin": "35.67 ± 0.15",
    "post_ln": "35.64 ± 0.23",
    "pre_ln": "35.50 ± 0.04",
    "rezero": "33.67 ± 0.14",
    "rezero_post_ln": "34.67 ± 0.08",
}
"""IWSLT'14 De-En."""
COMPARATORS = [
    ("T5-Base", "220 M", "512 × 2048", "6L-6L", "41.2"),
    ("T5-Large", "770 M", "1024 × 4096", "12L-12L", "41.5"),
    ("T5-3B", "3 B", "1024 × 16384", "24L-24L", "42.6"),
    ("T5-11B", "11 B", "1024 × 65536", "24L-24L", "43.4"),
    ("Trans.Big-RNMT+", "377 M", "1024 × 8192", "6L-6L", "41.12"),
    ("DynamicConv", "213 M", "1024 × 4096", "7L-7L", "43.2"),
    ("DG-Transformer", "264 M", "1024 × 4096", "8L-8L", "43.27"),
    ("Prime", "252 M", "1024 × 4096", "6L-6L", "43.48"),
]
"""Table 4: published models on WMT'14 En-Fr, with parameters, W^(1), depth and BLEU."""
PUBLISHED_4 = {"post_ln": "failed", "pre_ln": "43.10", "admin": "43.80"}
DEPTHS = (6, 12, 18)
DEEP = [Spec(f"{scheme}_60_12", scheme, (60, 12), (), "enfr") for scheme in THREE]


def measure(depths: Sequence[int], lab: Lab) -> Measured:
    """Three schemes at each depth, translated and scored; Admin and Pre-LN compared by paired bootstrap."""
    found = lab.train_all([spec for layers in depths for spec in stack(THREE, layers)], bleu=True)
    for layers in depths:
        pre_ln, admin = stack(("pre_ln", "admin"), layers)
        found.numbers |= {f"admin_{layers}.p": p for p in [lab.bleu_differs(admin, pre_ln)] if p}
    return found


def europarl_admin(lab: Lab) -> Measured:
    """Europarl's Pre-LN and Admin, and Admin with one thing changed that may have failed it."""
    lr = recipe(lab.scale.configs["ende"]).optim.lr
    changed = {
        "float32": ("train.precision=float32",),
        "half_rate": (f"optim.lr={lr / 2:g}",),
        "half_rate_to_the_end": (f"optim.lr={lr / 2:g}", "train.on_divergence=continue"),
        "quarter_rate": (f"optim.lr={lr / 4:g}",),
    }
    runs = [Spec(f"admin_18_{name}", "admin", 18, changes) for name, changes in changed.items()]
    return lab.train_all([*stack(("pre_ln", "admin"), 18), *runs])


def table_3(lab: Lab) -> Measured:
    """6-layer models on the small dataset."""
    return lab.train_all(stack(tuple(PUBLISHED_3), 6, "iwslt"), bleu=True)


def table_4(lab: Lab) -> Measured:
    """60L-12L models with their sizes; at scales without the paper's datasets the sizes alone."""
    found = lab.train_all(DEEP, bleu=True) if lab.scale.apart else Measured()
    found.numbers |= {f"{spec.name}.parameters": float(parameters(spec)) for spec in DEEP}
    return found


def parameters(spec: Spec) -> int:
    """Parameters of a model of the paper's En-Fr config, vocabulary included; ω is left out, because it folds away."""
    config = recipe("paper_wmt14_enfr", spec.config_changes())
    with torch.device("meta"):
        model = Transformer(TransformerConfig(vocab=config.data.vocab, **config.model.model_dump()))
    return sum(p.numel() for name, p in model.named_parameters() if not name.endswith("skip.omega"))


def tabulated_2(depths: Sequence[int], numbers: Mapping[str, Value]) -> Table:
    """A row per depth and scheme, with its distance from Pre-LN of the same seeds; p is that of paired bootstrap."""
    rows = [
        [
            f"{layers}L",
            f"`{scheme}`",
            *(shown(numbers, f"{scheme}_{layers}.{what}", 4) for what in ("bleu", "chrf", "loss")),
            *(difference(numbers, f"{scheme}_{layers}.{what}", f"pre_ln_{layers}.{what}") for what in ("bleu", "loss")),
            each_seed(numbers, f"{scheme}_{layers}.p"),
            published[layers],
        ]
        for layers in depths
        for scheme, published in PUBLISHED_2.items()
    ]
    against = ["BLEU against Pre-LN (95 %)", "loss against Pre-LN (95 %)", "p of BLEU, each seed"]
    return Table(["depth", "scheme", "BLEU", "chrF", "validation loss", *against, "paper: BLEU (WMT'14 En-De)"], rows)


def tabulated_europarl_admin(numbers: Mapping[str, Value]) -> Table:
    """A row per run; a run that was stopped ends early."""
    rows = [
        [f"`{run}`", what, *(shown(numbers, f"{run}.{name}") for name in ("loss", "improvement", "gap", "updates"))]
        for run, what in {
            "pre_ln_18": "the recipe",
            "admin_18": "the recipe",
            "admin_18_float32": "float32 instead of bfloat16",
            "admin_18_half_rate": "half the learning rate",
            "admin_18_half_rate_to_the_end": "half the learning rate, not stopped",
            "admin_18_quarter_rate": "a quarter of it",
        }.items()
    ]
    return Table(["run", "trained with", "validation loss", "improvement over guessing (nats)", "source gap", "updates"], rows)


def tabulated_3(numbers: Mapping[str, Value]) -> Table:
    """A row per scheme."""
    rows = [
        [f"`{scheme}`", *(shown(numbers, f"{scheme}_6.{what}", 4) for what in ("bleu", "chrf", "loss")), said]
        for scheme, said in PUBLISHED_3.items()
    ]
    return Table(["6L-6L", "BLEU", "chrF", "validation loss", "paper: BLEU (IWSLT'14 De-En)"], rows)


def tabulated_4(numbers: Mapping[str, Value]) -> Table:
    """Ours after the published comparators."""
    rows = [[name, size, inner, depth, "", bleu] for name, size, inner, depth, bleu in COMPARATORS]
    for scheme, said in PUBLISHED_4.items():
        size, bleu = shown(numbers, f"{scheme}_60_12.parameters"), shown(numbers, f"{scheme}_60_12.bleu", 4)
        rows.append([f"`{scheme}`", size, "512 × 2048", "60L-12L", bleu, said])
    return Table(["model", "parameters", "W^(1)", "depth", "BLEU", "published"], rows)


TABLE_2 = Item(
    "table-2",
    "Table 2: BLEU by depth",
    "Admin is best at every depth and gains most from it; deep Post-LN fails. On IWSLT'14 (6 layers) all are alike: table-3.",
    {"tiny": Needs("toy corpus", 0.4, 1.0), "small": Needs("Multi30k", 7.0, 2.0), "paper": Needs("WMT'14 En-De", 430.0, 32.0)},
    partial(measure, DEPTHS),
    partial(tabulated_2, DEPTHS),
)
EUROPARL = Item(
    "europarl",
    "Table 2's deepest row again: Europarl, width 128",
    "Not in the paper: 18L-18L on 200,000 pairs of Europarl German→English, at twice the small scale's width, in bfloat16.",
    {"medium": Needs("Europarl", 1.0, 3.0)},
    partial(measure, (18,)),
    partial(tabulated_2, (18,)),
)
EUROPARL_ADMIN = Item(
    "europarl-admin",
    "Europarl: what fails Admin's encoder?",
    "Not in the paper: the 18-layer Admin model of Europarl, stopped because it ignores its source, with one thing changed.",
    {"medium": Needs("Europarl", 2.5, 3.0)},
    europarl_admin,
    tabulated_europarl_admin,
)
TABLE_3 = Item(
    "table-3",
    "Table 3: ReZero",
    "On a 6-layer model ReZero costs up to two BLEU, and a layer norm gives back half of it.",
    {"tiny": Needs("toy corpus", 0.15, 1.0), "small": Needs("Multi30k", 2.5, 1.5), "paper": Needs("IWSLT'14 De-En", 20.0, 8.0)},
    table_3,
    tabulated_3,
)
TABLE_4 = Item(
    "table-4",
    "Table 4: 60L-12L on WMT'14 En-Fr",
    "A deep and narrow Admin model beats published models of its size and larger.",
    {"small": Needs("nothing trained: sizes only", 0.01, 1.0), "paper": Needs("WMT'14 En-Fr", 180.0, 32.0)},
    table_4,
    tabulated_4,
)
