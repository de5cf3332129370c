"""Which runs fail of what: the injection of every case follows from its cause and its seed. Fixed before the runs.

Byte-level language models of 2 to 16 layers, width 32, 160 updates of 256 tokens (with a beta2 that is too high 560). Each case
has a healthy twin: the same run without the cause, which must train to count as healthy. Each run and each twin is also made
with recovery. Seeds from 1 were used for development; seeds from 201 are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from bathy.lab.bench.postmortem.injected import Injection

DEVELOPMENT, JUDGED = 1, 201
"""First seed of either set."""
PER_CAUSE = 7
"""Runs of each cause."""
NAMED, FALSE = 0.9, 0
"""Wanted: share of the failing runs whose cause is named, and healthy runs with a cause, or touched by recovery, at most."""
TRAINED = 0.2
"""Nats below guessing at which a twin must end to count as healthy."""
AS_WELL = 0.15
"""Nats above its twin's last loss within which a recovered run ends as well."""
BASE = [
    "task.kind=language", "task.sample=0", "model.width=32", "model.ffn=64", "model.heads=2", "model.context=32",
    "model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0", "train.tokens=256", "train.log_every=1",
    "train.valid_every=0", "train.save_every=0", "train.on_divergence=continue", "train.recent_every=20",
    "train.recent_keep=40", "train.divergence_window=20", "train.recoveries=4", "optim.schedule=constant",
]  # fmt: skip
Stage = tuple[int, list[str]]
"""Update until which a part of the run trains (0: its end), and settings of this part alone."""


@dataclass(frozen=True)
class Case:
    """One run: its settings, what is injected, and its parts where someone changes the rate by hand."""

    settings: list[str]
    injection: Injection = field(default_factory=Injection)
    stages: list[Stage] = field(default_factory=lambda: [(0, [])])


def _sizes(layers: int, scheme: str, steps: int = 160) -> list[str]:
    return [f"model.decoder_layers={layers}", f"model.decoder_scheme={scheme}", f"train.steps={steps}"]


def _adam(draw: Random, low: float, high: float, warmup: int = 20) -> list[str]:
    return [f"optim.name={draw.choice(['adam', 'adamw'])}", f"optim.lr={draw.uniform(low, high):.4g}", f"optim.warmup={warmup}"]


def rate_spike(draw: Random) -> tuple[Case, Case]:
    """The rate times 60 to 200 by hand, for a few updates or for good."""
    lr, at = draw.uniform(2e-3, 6e-3), draw.randint(60, 100)
    settings = [*_sizes(draw.choice([2, 3, 4]), draw.choice(["pre_ln", "post_ln"])), "optim.name=adam", "optim.warmup=20"]
    raised = [f"optim.lr={lr * draw.uniform(60, 200):.4g}"]
    parts: list[Stage] = (
        [(at, []), (at + draw.randint(4, 8), raised), (0, [])] if draw.random() < 0.6 else [(at, []), (0, raised)]
    )
    settings.append(f"optim.lr={lr:.4g}")
    return Case(settings, stages=parts), Case(settings)


def corrupt_batch(draw: Random) -> tuple[Case, Case]:
    """One batch of garbage whose tokens were counted wrongly, under gradient descent."""
    settings = [*_sizes(draw.choice([2, 3]), "pre_ln"), "optim.name=sgd", f"optim.lr={draw.uniform(0.03, 0.05):.3g}"]
    settings += ["optim.beta1=0.9", "optim.warmup=20"]
    bad = Injection(corrupt=(draw.randint(60, 110), 1), loud=10 ** draw.uniform(2.5, 4))
    return Case(settings, bad), Case(settings)


def float16_overflow(draw: Random) -> tuple[Case, Case]:
    """Features that do not fit float16."""
    settings = [*_sizes(draw.choice([2, 3, 4]), draw.choice(["pre_ln", "post_ln"])), *_adam(draw, 2e-3, 6e-3)]
    settings.append("train.precision=float16")
    return Case(settings, Injection(half_scale=draw.uniform(1.8e4, 6e4))), Case(settings, Injection(half_scale=16.0))


def slow_beta2(draw: Random) -> tuple[Case, Case]:
    """Gradients that grow a thousandfold late in the run, with beta2 = 0.9999."""
    settings = [*_sizes(4, "post_ln", 560), *_adam(draw, 7e-3, 9e-3)]
    late = Injection(quiet=(draw.randint(430, 460), 10 ** draw.uniform(-3.5, -2.5)))
    return Case([*settings, "optim.beta2=0.9999"], late), Case(settings, late)


def too_deep(draw: Random) -> tuple[Case, Case]:
    """Post-LN of 12 to 16 layers; its twin is Admin."""
    layers, rest = draw.choice([12, 14, 16]), _adam(draw, 2e-3, 4e-3)
    return Case([*_sizes(layers, "post_ln"), *rest]), Case([*_sizes(layers, "admin"), *rest])


def no_warmup(draw: Random) -> tuple[Case, Case]:
    """A high rate from the first update; its twin warms up over half of the updates, after which all of 8 trials trained."""
    lr = f"optim.lr={draw.uniform(1.5e-2, 1.75e-2):.4g}"
    settings = [*_sizes(4, "post_ln"), f"optim.name={draw.choice(['adam', 'adamw'])}", lr]
    return Case([*settings, "optim.warmup=0"]), Case([*settings, "optim.warmup=80"])


@dataclass(frozen=True)
class Cause:
    """How a cause is injected, and the names of changes that name it."""

    make: Callable[[Random], tuple[Case, Case]]
    names: tuple[str, ...]


CAUSES: dict[str, Cause] = {
    "rate spike": Cause(rate_spike, ("rate not raised", "half the rate", "a tenth of the rate")),
    "corrupt batch": Cause(corrupt_batch, ("batches skipped",)),
    "float16 overflow": Cause(float16_overflow, ("float32",)),
    "beta2 = 0.9999": Cause(slow_beta2, ("lower beta2",)),
    "too-deep Post-LN": Cause(too_deep, ("Admin",)),
    "no warm-up": Cause(no_warmup, ("longer warm-up",)),
}


def case(cause: str, seed: int) -> tuple[Case, Case]:
    """The failing run and its healthy twin."""
    failing, healthy = CAUSES[cause].make(Random(f"{cause} {seed}"))
    own = [*BASE, f"train.seed={seed}"]
    return (
        Case([*own, *failing.settings], failing.injection, failing.stages),
        Case([*own, *healthy.settings], healthy.injection, healthy.stages),
    )
