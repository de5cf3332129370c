"""From replays to a cause: which change prevents the failure, and which of several explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bathy.lab.postmortem.changes import BATCHES, CHANGES, STEADY
from bathy.lab.postmortem.failure import Failure
from bathy.lab.postmortem.rates import Raise
from bathy.lab.postmortem.replay import Replay

DEEP = 6.0
"""Σβ² of a stack at the start above which depth is its problem."""
SLOW_BETA2, STRONG_DECAY = 0.9995, 0.5
"""From where on these settings are unusual enough to come before the others that help."""
SHORT = 0.02
"""Warm-up as a share of the updates below which there is hardly one."""
EARLY = 3
"""A failure within so many warm-ups (or as many hundred updates) belongs to the beginning."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a run besides its replays."""

    suspects: list[int]
    """Updates whose batches stand out by their own loss."""
    raised: Raise | None
    """A sudden raise of the rate."""
    depth: float
    """The largest Σβ² of a stack at the start."""


@dataclass(frozen=True)
class Verdict:
    """What a post-mortem concludes."""

    cause: str
    """A name of CHANGES whose cause it is; '' where none was found."""
    text: str
    advice: str
    prevents: list[str]
    """Every change that prevented the failure."""


def judge(config: Any, failure: Failure, replays: Mapping[str, Replay], evidence: Evidence, left: list[str]) -> Verdict:
    """The cause; `left` are changes for which there was no time."""
    control = replays.get("control")
    if control is None:
        return Verdict("", "nothing was replayed yet", "run it again with more --minutes", [])
    if not control.failed:
        text = "the unchanged replay did not fail: the failure does not repeat, so no change can be blamed"
        return Verdict("", text, "train with train.recent_every set and the same number of ranks, and look again", [])
    prevents = [name for name, one in replays.items() if name != "control" and not one.failed]
    fits = ranked(config, failure, evidence)
    order = [*(name for name, fit in fits.items() if fit), *LAST]
    cause = next((name for name in order if name in prevents), "")
    if not cause and left:
        return Verdict("", "no change tried so far prevents the failure", f"run it again: {', '.join(left)} are left", prevents)
    if not cause:
        return Verdict("", "no single change of those tried prevents the failure", "look at the report of `bathy clinic`", [])
    return Verdict(cause, CHANGES[cause].cause + _where(cause, evidence), CHANGES[cause].advice, prevents)


def ranked(config: Any, failure: Failure, evidence: Evidence) -> dict[str, bool]:
    """Changes, the most specific first, and whether each fits how the run looks.

    A lower rate, clipping and a warm-up help against most failures: they are blamed only where nothing more specific is.
    """
    optim = config.optim
    early = failure.onset <= EARLY * max(optim.warmup, 100)
    hardly_any = optim.warmup < SHORT * config.train.steps
    return {
        "float32": failure.kind == "overflow",
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


LAST = ("float32", "lower beta2", "no weight decay", "longer warm-up", "Admin")
"""What is blamed last, where it did not fit well but nothing else helps."""


def _where(cause: str, evidence: Evidence) -> str:
    if cause == BATCHES:
        first, last = evidence.suspects[0], evidence.suspects[-1]
        place = f"update {first}" if first == last else f"updates {first} to {last}"
        return f" ({place}: its own loss stands out before anything is learned from it)"
    return f" ({evidence.raised})" if cause == STEADY else ""
