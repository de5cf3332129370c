"""From replays to a cause: which change prevents the failure, and which of several explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bathy.lab.postmortem.changes import CHANGES
from bathy.lab.postmortem.failure import Failure
from bathy.lab.postmortem.replay import Replay

STANDS_OUT = 6.0
"""Deviations by which a batch's own loss must exceed those before it to be a bad batch."""
DEEP = 6.0
"""Σβ² of a stack at the start above which depth is its problem."""
EARLY = 3
"""A failure within so many warm-ups (or as many hundred updates) belongs to the beginning."""


@dataclass(frozen=True)
class Verdict:
    """What a post-mortem concludes."""

    cause: str
    """A name of CHANGES whose cause it is; '' where none was found."""
    text: str
    advice: str
    prevents: list[str]
    """Every change that prevented the failure."""


def judge(failure: Failure, replays: Mapping[str, Replay], spike: tuple[int, float], depth: float, warmup: int) -> Verdict:
    """The cause. `spike` is the batch whose own loss stands out most and by how much, `depth` the largest Σβ² at the start."""
    control = replays.get("control")
    if control and not control.failed:
        text = "the unchanged replay did not fail: the failure does not repeat, so no change can be blamed"
        return Verdict("", text, "train with train.recent_every set and the same number of ranks, and look again", [])
    prevents = [name for name, one in replays.items() if name != "control" and not one.failed]
    cause = _cause(failure, prevents, spike, depth, warmup)
    if not cause:
        return Verdict(
            "", "no single change of those tried prevents the failure", "look at the report of `bathy clinic`", prevents
        )
    where = f" (update {spike[0]}: its own loss stands out by {spike[1]:.0f} deviations)" if cause == "batches skipped" else ""
    return Verdict(cause, CHANGES[cause].cause + where, CHANGES[cause].advice, prevents)


def _cause(failure: Failure, prevents: list[str], spike: tuple[int, float], depth: float, warmup: int) -> str:
    """The most specific change that prevents the failure and fits how it looks."""
    early = failure.onset <= EARLY * max(warmup, 100)
    fits = {
        "float32": True,
        "batches skipped": spike[1] > STANDS_OUT,
        "lower beta2": True,
        "Admin": depth > DEEP,
        "longer warm-up": early,
        "half the rate": True,
        "a tenth of the rate": True,
        "clipping": True,
    }
    return next((name for name, fit in fits.items() if fit and name in prevents), "")
