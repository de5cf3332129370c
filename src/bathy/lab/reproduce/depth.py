"""How deep: Admin with two choices of ω, Pre-LN and Post-LN with a thousand layers, each at the same settings."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bathy.clinic.exams.activations import activations
from bathy.clinic.probe import examined
from bathy.clinic.readings import select
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, Value, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.spec import Spec
from bathy.lab.reproduce.variants import draw

ENCODER = 4
"""Layers of the encoder; all others are the decoder's, each of which reads the source. Behind a deep encoder it takes far
longer to listen: with 96 + 4 layers the source gap is 0.00 after 400 updates, with 4 + 96 it is 0.13 after 150."""
COMPARED = ("admin_constant_1", "admin", "pre_ln", "post_ln")
"""With ω = √n (output change O(1)) what tells a token from the others survives to the top from the start; with the paper's
O(log n) most of it is buried under what all tokens share, and learning takes longer."""
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
    return [Spec(f"{s}_{layers}", s, shape, (*SETTINGS, *changes)) for s in COMPARED]


def measure(lab: Lab) -> Measured:
    """Train them all; how far tokens differ at the decoder's top before and after."""
    found = lab.train_all(runs(lab))
    for spec in runs(lab):
        for seed in lab.seed_list:
            run = lab.run(spec, seed)
            last = run.checkpoints()[-1:] if run else []  # none where it blew up before its first
            for when, model in [("start", lab.fresh(spec, seed)), *(("end", model) for _, model in last)]:
                per_seed = found.numbers.setdefault(f"{spec.name}.tokens_{when}", {})
                assert isinstance(per_seed, dict)
                per_seed[str(seed)] = tokens(lab, model)
    return found


def tokens(lab: Lab, model: nn.Module) -> float:
    """Token variance of the decoder's output: 0 where all tokens are alike."""
    with examined(model, lab.batch()) as subject:
        return select(activations(subject), "token_variance", stack="decoder")[-1].value


def table(numbers: Mapping[str, Value]) -> Table:
    """One row a run."""
    names = list(dict.fromkeys(name.partition(".")[0] for name in numbers))
    columns = {"improvement": "nats below unigram entropy", "ppl": "ppl", "gap": "source gap", "updates": "updates"}
    columns |= {"tokens_start": "token variance at the top: start", "tokens_end": "end"}
    rows = [[f"`{run}`", *(shown(numbers, f"{run}.{what}") for what in columns)] for run in names]
    return Table(["scheme and layers", *columns.values()], rows)


DEPTH = Item(
    "depth",
    "A thousand layers",
    "Not in the paper: a thousand layers of Admin, trained in two hours on two cores, beside Pre-LN and Post-LN alike.",
    {"tiny": Needs("toy corpus", 0.2, 2.0), "small": Needs("Multi30k", 5.0, 6.5), "paper": Needs("WMT'14 En-De", 48.0, 32.0)},
    measure,
    table,
    draw,
)
