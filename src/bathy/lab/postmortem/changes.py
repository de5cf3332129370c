"""The single changes that a post-mortem tries, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bathy.core.schemes import SCHEMES
from bathy.lab.postmortem.failure import Failure
from bathy.train.recovery import MARGIN, Recovery


@dataclass(frozen=True)
class Change:
    """One thing done differently in a replay."""

    cause: str
    """What is to blame if it prevents the failure."""
    advice: str
    settings: Callable[[Any], list[str]] = lambda config: []
    """Changes of the config, section.key=value; empty with no `recovery`: it does not apply to this run."""
    recovery: Callable[[Failure, int], Recovery] | None = None
    """Or what recovery would do from the checkpoint at an update."""
    from_start: bool = False
    """Whether it acts from the beginning of the run only."""


def _skip(failure: Failure, start: int) -> Recovery:
    return Recovery(failure.found, failure.why, start, "batches skipped", skip=failure.onset - start + MARGIN)


def _slower(factor: float) -> Callable[[Failure, int], Recovery]:
    def change(failure: Failure, start: int) -> Recovery:
        return Recovery(failure.found, failure.why, start, "a lower rate", factor=factor, until=2 * failure.found + 1)

    return change


def _admin(config: Any) -> list[str]:
    """Admin for every plain Post-LN stack; for a model that is not ours, the remedy of that name."""
    model = getattr(config, "model", None)
    if model is None:
        return [] if config.train.stabilise else ["train.stabilise=admin"]
    plain = SCHEMES["post_ln"].build
    return [f"model.{stack}_scheme=admin" for stack in model.stacks if model.scheme(stack).build is plain]


def _warmup(config: Any) -> list[str]:
    longer = max(4 * config.optim.warmup, config.train.steps // 4, 100)
    return [f"optim.warmup={min(longer, config.train.steps - 1)}"]


CHANGES: dict[str, Change] = {
    "float32": Change(
        "numbers that do not fit the half-precision format",
        "train in bfloat16 or float32 (train.precision)",
        settings=lambda config: ["train.precision=float32"] if config.train.precision in ("float16", "bfloat16") else [],
    ),
    "batches skipped": Change(
        "a bad batch", "look at the text of these batches; clean or leave out what is wrong", recovery=_skip
    ),
    "lower beta2": Change(
        "a beta2 that is too high: the step size lags behind the gradients",
        "set optim.beta2 to 0.98 or less",
        settings=lambda config: ["optim.beta2=0.98"] if config.optim.beta2 >= 0.995 else [],
    ),
    "half the rate": Change("a learning rate that is too high", "lower optim.lr", recovery=_slower(0.5)),
    "a tenth of the rate": Change("a learning rate that is far too high", "lower optim.lr to a tenth", recovery=_slower(0.1)),
    "clipping": Change(
        "single gradients that are too large",
        "set optim.clip to 1",
        settings=lambda config: [] if config.optim.clip else ["optim.clip=1.0"],
    ),
    "longer warm-up": Change("a warm-up that is too short", "lengthen optim.warmup", settings=_warmup, from_start=True),
    "Admin": Change(
        "a Post-LN stack that is too deep: small updates become large changes of its output",
        "use scheme 'admin' (or bathy.stabilise_ on a model of your own)",
        settings=_admin,
        from_start=True,
    ),
}
"""Name to change, in the order they are run: those that are cheap and specific first."""
