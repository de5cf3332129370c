"""The grid: designs drawn by seed, each at the same plain rates; whole families are held out from the start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bathy.lab.bench.predict.models import Design
from bathy.lab.bench.predict.text import Kind

RATES = tuple(10 ** (i / 2 - 4) for i in range(6))
"""1e-4 to 3.2e-2, half a decade apart."""
STEPS, LONG = 480, 1_000
"""Updates at most of a run of the grid, and all of a run of its larger part."""
STAGE = 120
"""Updates after which a run ends if its outcome is decided; else it goes on for as many."""
WARMUPS = (1, 1, 10, 40)
BETAS2 = (0.95, 0.98, 0.98, 0.999)
OPTIMIZERS = ("Adam", "Adam", "Adam", "AdamW", "AdamW", "AdamW", "NAdam", "RAdam")
DEPTHS = (2, 2, 4, 4, 6, 6, 6, 8, 8, 8, 12, 12, 12, 16, 16, 24, 32, 48, 64)
"""Layers to draw from; deep models take their time and are rarer."""
DEEP = 16
"""Layers from which the lowest rate is run, too: shallower models are too slow there to decide anything."""
SCHEMES = {
    "post_ln": 5, "pre_ln": 3, "admin": 4, "deepnorm": 2, "rezero": 2, "rezero_post_ln": 2, "fixup": 2, "t_fixup": 2,
    "sub_ln": 2, "layer_scale": 2, "peri_ln": 2, "admin_constant": 2, "layer_norm_scaling": 2, "keel": 2, "looklinear": 2,
    "admin_rescaled": 2,
}  # fmt: skip
"""Designs of each of our schemes."""
OTHERS: dict[str, tuple[tuple[Kind, ...], tuple[str, ...]]] = {
    "torch_post": (("causal", "masked", "translation"), ("", "admin")),
    "torch_pre": (("causal", "translation"), ("", "scaled_init")),
    "gpt2": (("causal", "causal"), ("", "scaled_init")),
    "bert": (("masked", "masked"), ("", "admin")),
    "llama": (("causal", "causal"), ("", "scaled_init")),
}
"""Kinds of text and remedies of each family that is not ours."""
LARGER: tuple[tuple[str, Kind, int], ...] = (
    ("post_ln", "multi30k", 12), ("admin", "multi30k", 12), ("gpt2", "causal", 6), ("torch_post", "causal", 6),
    ("pre_ln", "multi30k", 6), ("torch_post", "multi30k", 6),
)  # fmt: skip
"""Family, text and layers of the larger part: width 256 and 1,000 updates, Multi30k and Python source."""
LARGER_RATES = (RATES[2], RATES[3], RATES[4])


def held_out(seed: int = 0) -> set[str]:
    """Families that nothing is chosen on: five of our schemes, one of torch's two and one of Hugging Face's three."""
    draw = random.Random(f"held out {seed}")
    parts = ((sorted(SCHEMES), 5), (["torch_post", "torch_pre"], 1), (["bert", "gpt2", "llama"], 1))
    return {family for families, count in parts for family in draw.sample(families, count)}


@dataclass(frozen=True)
class Run:
    """One run: a design, and how it is optimised; the rate is constant after a linear warm-up."""

    design: Design
    lr: float
    warmup: int
    beta2: float
    optimizer: str
    steps: int = STEPS

    @property
    def key(self) -> str:
        """What names the run in a file."""
        return f"{self.design.name} {self.optimizer} lr {self.lr:.2e} warm-up {self.warmup} β2 {self.beta2} {self.steps}"


def designs(seed: int = 0) -> list[Design]:
    """All designs, drawn and shuffled by seed; those deeper than 12 layers, which take most of the time, come last."""
    draw = random.Random(seed)
    kinds: tuple[Kind, ...] = ("causal", "masked", "translation")
    chosen: list[tuple[str, Kind, str]] = []
    for family, count in SCHEMES.items():
        first = draw.randrange(3)
        chosen += [(family, kinds[(first + i) % 3], "") for i in range(count)]
    chosen += [(family, kind, remedy) for family, (of, remedies) in OTHERS.items() for kind in of for remedy in remedies]
    found = [_design(draw, family, kind, remedy, i) for i, (family, kind, remedy) in enumerate(chosen)]
    draw.shuffle(found)
    return sorted(found, key=lambda design: max(12, design.depth))


def _design(draw: random.Random, family: str, kind: Kind, remedy: str, seed: int) -> Design:
    depth = draw.choice(DEPTHS)
    widths = [width for width in (32, 32, 64, 128) if depth * width <= 512 or width == 32]
    return Design(family, kind, depth, draw.choice(widths), remedy, seed)


def runs_of(design: Design) -> Iterator[Run]:
    """The design's runs at all rates; warm-up, β2 and optimiser are drawn by its name."""
    draw = random.Random(design.name)
    warmup, beta2, optimizer = draw.choice(WARMUPS), draw.choice(BETAS2), draw.choice(OPTIMIZERS)
    beta2 = min(beta2, 0.98) if optimizer == "RAdam" else beta2  # with 0.999 its own warm-up outlasts the run
    for rate in RATES[design.depth < DEEP :]:
        yield Run(design, rate, warmup, beta2, optimizer)


def small(seed: int = 0) -> Iterator[Run]:
    """The runs of the grid, design by design."""
    for design in designs(seed):
        yield from runs_of(design)


def larger() -> Iterator[Run]:
    """The runs of the larger part."""
    for rate in LARGER_RATES:
        for number, (family, kind, depth) in enumerate(LARGER):
            yield Run(Design(family, kind, depth, 256, "", 100 + number), rate, 100, 0.98, "Adam", LONG)
