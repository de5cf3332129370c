"""The grid: designs drawn by seed, and for each the rates by which bisection brackets the largest that trains."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from bathy.lab.bench.predict.models import Design
from bathy.lab.bench.predict.text import Kind

RATES = tuple(1e-4 * 10 ** (i / 4) for i in range(11))
"""1e-4 to 3.2e-2, each 1.78 times the one before."""
STEPS = 120
WARMUPS = (1, 8, 16, 32)
BETAS2 = (0.98, 0.98, 0.999, 0.95)
OPTIMIZERS = ("Adam", "Adam", "AdamW", "AdamW", "RAdam")
DEEP = (2, 4, 4, 6, 6, 8, 8, 8, 12, 12, 12, 16, 16, 16, 24, 24, 32, 32, 48, 64)
"""Layers to draw from; deep models take their time and are rarer."""
SCHEMES = {
    "post_ln": 6, "pre_ln": 4, "admin": 5, "deepnorm": 3, "rezero": 2, "rezero_post_ln": 2, "fixup": 2, "t_fixup": 2,
    "sub_ln": 2, "layer_scale": 2, "peri_ln": 2, "admin_constant": 2, "layer_norm_scaling": 2, "keel": 2, "looklinear": 2,
    "admin_rescaled": 2,
}  # fmt: skip
"""Designs of each of our schemes."""
OTHERS: dict[str, tuple[tuple[Kind, ...], tuple[str, ...]]] = {
    "torch_post": (("causal", "masked", "translation"), ("", "", "admin")),
    "torch_pre": (("causal", "masked", "translation"), ("", "scaled_init")),
    "gpt2": (("causal",) * 4, ("", "scaled_init")),
    "bert": (("masked",) * 3, ("", "", "admin")),
    "llama": (("causal",) * 4, ("", "scaled_init")),
}
"""Kinds of text and remedies of each family that is not ours."""


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
        return f"{self.design.name} {self.optimizer} lr {self.lr:.2e} warm-up {self.warmup} β2 {self.beta2}"


def designs(seed: int = 0) -> list[Design]:
    """All designs, drawn and shuffled by seed; the deepest come last, because they take half of the time."""
    draw = random.Random(seed)
    kinds: tuple[Kind, ...] = ("causal", "masked", "translation")
    chosen: list[tuple[str, Kind, str]] = []
    for family, count in SCHEMES.items():
        first = draw.randrange(3)
        chosen += [(family, kinds[(first + i) % 3], "") for i in range(count)]
    chosen += [(family, kind, remedy) for family, (of, remedies) in OTHERS.items() for kind in of for remedy in remedies]
    found = [_design(draw, family, kind, remedy, i) for i, (family, kind, remedy) in enumerate(chosen)]
    draw.shuffle(found)
    return sorted(found, key=lambda design: design.depth > 32)


def _design(draw: random.Random, family: str, kind: Kind, remedy: str, seed: int) -> Design:
    depth = draw.choice(DEEP)
    widths = [width for width in (32, 32, 64, 64, 128) if depth * width <= 1024 or width == 32]
    return Design(family, kind, depth, draw.choice(widths), remedy, seed)


def settings(design: Design) -> tuple[int, float, str]:
    """Warm-up, β2 and optimiser of a design's runs, drawn by its name."""
    draw = random.Random(design.name)
    return draw.choice(WARMUPS), draw.choice(BETAS2), draw.choice(OPTIMIZERS)


def run_at(design: Design, rate: int) -> Run:
    """The design's run at one of RATES."""
    warmup, beta2, optimizer = settings(design)
    return Run(design, RATES[rate], warmup, beta2, optimizer)


def next_rate(design: Design, failed: Mapping[int, bool], once_more: bool) -> int | None:
    """The next rate to run, given which have failed: bisection, then `once_more` at a rate by chance; nothing when done."""
    low = max((rate for rate, fail in failed.items() if not fail), default=-1)
    high = min((rate for rate, fail in failed.items() if fail and rate > low), default=len(RATES))
    if high - low > 1:
        return (low + high) // 2
    chance = random.Random(f"{design.name} once more").randrange(len(RATES))
    return chance if once_more and chance not in failed else None
