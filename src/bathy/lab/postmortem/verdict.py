"""From replays to a cause: which change prevents the failure, and which of several explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bathy.lab.postmortem.failure import Failure
from bathy.lab.postmortem.replay import Replay
from bathy.train.changes import BATCHES, CHANGES, STEADY, fitting
from bathy.train.evidence import Evidence


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
    fits = fitting(config, failure.onset, evidence)
    order = [*(name for name, fit in fits.items() if fit), *LAST]
    cause = next((name for name in order if name in prevents), "")
    if not cause and left:
        return Verdict("", "no change tried so far prevents the failure", f"run it again: {', '.join(left)} are left", prevents)
    if not cause:
        return Verdict("", "no single change of those tried prevents the failure", "look at the report of `bathy clinic`", [])
    return Verdict(cause, CHANGES[cause].cause + _where(cause, evidence), CHANGES[cause].advice, prevents)


LAST = ("float32", "lower beta2", "no weight decay", "longer warm-up", "Admin")
"""What is blamed last, where it did not fit well but nothing else helps."""


def _where(cause: str, evidence: Evidence) -> str:
    if cause == BATCHES:
        first, last = evidence.suspects[0], evidence.suspects[-1]
        place = f"update {first}" if first == last else f"updates {first} to {last}"
        return f" ({place}: its own loss stands out before anything is learned from it)"
    return f" ({evidence.raised})" if cause == STEADY else ""
