"""The single changes that a post-mortem and a recovery try, as rows of one table, and which of them fit how a run failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bathy.core.schemes import SCHEMES
from bathy.train.evidence import Evidence

DEEP = 6.0
"""Σβ² of a stack at the start above which depth is its problem."""
SLOW_BETA2, STRONG_DECAY = 0.9995, 0.5
"""From where on these settings are unusual enough to come before the others that help."""
SHORT = 0.02
"""Warm-up as a share of the updates below which there is hardly one."""
EARLY = 3
"""A failure within so many warm-ups (or as many hundred updates) belongs to the beginning."""


@dataclass(frozen=True)
class Change:
    """One thing done differently in a replay."""

    cause: str
    """What is to blame if it prevents the failure."""
    advice: str
    settings: Callable[[Any], list[str]] = lambda config: []
    """Changes of the config, section.key=value; empty with neither `factor` nor another name of its own: not for this run."""
    factor: float = 1.0
    """On the rate of every update."""
    from_start: bool = False
    """Whether it acts from the beginning of the run only."""


def _admin(config: Any) -> list[str]:
    """Admin for every plain Post-LN stack; for a model that is not ours, the remedy of that name; none for given weights."""
    if config.train.init_from:
        return []
    model = getattr(config, "model", None)
    if model is None:
        return [] if config.train.stabilise else ["train.stabilise=admin"]
    plain = SCHEMES["post_ln"].build
    return [f"model.{stack}_scheme=admin" for stack in model.stacks if model.scheme(stack).build is plain]


def longer(config: Any) -> int:
    """Updates of the longer warm-up."""
    return min(max(4 * config.optim.warmup, config.train.steps // 4, 40), max(1, config.train.steps - 1))


BATCHES, STEADY = "batches skipped", "rate not raised"
"""Changes that are not settings: they follow from the run's log and its data."""
CHANGES: dict[str, Change] = {
    "float32": Change(
        "numbers that do not fit the half-precision format",
        "train in bfloat16 or float32 (train.precision)",
        settings=lambda config: ["train.precision=float32"] if config.train.precision in ("float16", "bfloat16") else [],
    ),
    BATCHES: Change("a bad batch", "look at the text of these batches; clean or leave out what is wrong"),
    STEADY: Change("a learning rate that was raised suddenly", "keep the rate as it was before, or raise it slowly"),
    "lower beta2": Change(
        "a beta2 that is too high: the step size lags behind the gradients",
        "set optim.beta2 to 0.98 or less",
        settings=lambda config: ["optim.beta2=0.98"] if config.optim.beta2 >= 0.995 else [],
    ),
    "usual epsilon": Change(
        "an epsilon that is too large: the optimiser no longer divides by the gradient's size",
        "set optim.eps to 1e-8",
        settings=lambda config: ["optim.eps=1e-8"] if config.optim.eps > 1e-6 and config.optim.name != "sgd" else [],
    ),
    "no weight decay": Change(
        "a weight decay that is too strong",
        "lower optim.weight_decay to 0.1 or less",
        settings=lambda config: ["optim.weight_decay=0"] if config.optim.weight_decay else [],
    ),
    "half the rate": Change("a learning rate that is too high", "lower optim.lr", factor=0.5),
    "a tenth of the rate": Change("a learning rate that is far too high", "lower optim.lr to a tenth", factor=0.1),
    "clipping": Change(
        "single gradients that are too large",
        "set optim.clip to 1",
        settings=lambda config: [] if config.optim.clip else ["optim.clip=1.0"],
    ),
    "longer warm-up": Change(
        "a warm-up that is too short",
        "lengthen optim.warmup",
        settings=lambda config: [f"optim.warmup={longer(config)}"] if longer(config) > config.optim.warmup else [],
        from_start=True,
    ),
    "Admin": Change(
        "a Post-LN stack that is too deep: small updates become large changes of its output",
        "use scheme 'admin' (or bathy.stabilise_ on a model of your own)",
        settings=_admin,
        from_start=True,
    ),
}
"""Name to change, in the order they are run: those that are cheap and specific first."""


def fitting(config: Any, onset: int, evidence: Evidence) -> dict[str, bool]:
    """Changes, the most specific first, and whether each fits a run whose last good update was `onset`; 0: it never was.

    A lower rate, clipping and a warm-up help against most failures: they come where nothing more specific does.
    """
    optim = config.optim
    early = onset <= EARLY * max(optim.warmup, 100)
    hardly_any = optim.warmup < SHORT * config.train.steps
    return {
        "float32": evidence.overflow,
        BATCHES: bool(evidence.suspects),
        STEADY: evidence.raised is not None,
        "lower beta2": optim.beta2 >= SLOW_BETA2,
        "usual epsilon": True,
        "no weight decay": optim.weight_decay >= STRONG_DECAY,
        "longer warm-up": early and hardly_any,
        "Admin": evidence.depth > DEEP,
        "half the rate": True,
        "a tenth of the rate": True,
        "clipping": True,
    }
