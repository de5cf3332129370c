"""The rules: each looks at the rows of one model and gives a finding with its evidence, or nothing.

They see no scheme, no class and no number of layers. docs/findings.md has the reasoning behind every rule and threshold.
To add one: write a function here, and add its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bathy.clinic.findings import Finding
from bathy.clinic.readings import Reading
from bathy.clinic.rules.collapse import attention_logits, collapse, dead_encoder, source_ignored
from bathy.clinic.rules.parts import healthy, norm_signs, norm_zero, outside_update, silent, unwatched
from bathy.clinic.rules.precision import not_finite, overflow, underflow
from bathy.clinic.rules.rows import at_first, at_last, relative_updates
from bathy.clinic.rules.stability import amplification, learning_rate, rise, spike, step, vanishing
from bathy.errors import ConfigError, unknown
from bathy.sites.site import Moment

Look = Callable[[Sequence[Reading]], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A row of the table."""

    look: Look
    reads: tuple[Moment, ...] = ()
    """Moments of a site that it reads: where one cannot be watched, the rule is weaker."""
    live: bool = False
    """Whether a monitor applies it to every sample."""


RULES: dict[str, Rule] = {
    "not_finite": Rule(not_finite, ("branch", "sum"), live=True),
    "overflow": Rule(overflow, ("branch", "sum"), live=True),
    "underflow": Rule(underflow, ("branch",)),
    "amplification": Rule(amplification, ("branch", "sum"), live=True),
    "dead_encoder": Rule(dead_encoder, ("output",)),
    "collapse": Rule(collapse, ("output",), live=True),
    "source_ignored": Rule(source_ignored, ("output",), live=True),
    "step": Rule(step, ("output",)),
    "learning_rate": Rule(learning_rate, ("branch", "sum"), live=True),
    "spike": Rule(spike, live=True),
    "rise": Rule(rise, live=True),
    "attention_logits": Rule(attention_logits, ("input",)),
    "norm_signs": Rule(norm_signs),
    "norm_zero": Rule(norm_zero),
    "outside_update": Rule(outside_update, live=True),
    "silent": Rule(silent, ("branch", "sum")),
    "vanishing": Rule(vanishing, ("output",)),
    "unwatched": Rule(unwatched),
}
"""Name of a rule, which is that of its finding, to the rule; in the order in which they are applied."""


def chosen(without: Iterable[str] = (), live: bool = False) -> dict[str, Rule]:
    """The rules that are left when some are switched off; an unknown name is an error."""
    off = set(without)
    for name in off - RULES.keys():
        raise ConfigError(unknown("rule", name, RULES))
    return {name: rule for name, rule in RULES.items() if name not in off and (rule.live or not live)}


def weakened(moments: Iterable[Moment]) -> list[str]:
    """Names of the rules that read one of these moments."""
    missing = set(moments)
    return [name for name, rule in RULES.items() if missing & set(rule.reads)]


__all__ = ["RULES", "Rule", "at_first", "at_last", "chosen", "healthy", "relative_updates", "weakened"]
