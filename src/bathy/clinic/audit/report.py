"""The audit of a model: its scheme, site by site, and its deviations. Prints as tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from bathy.clinic.audit.deviation import WHY, Deviation
from bathy.clinic.audit.deviations import NEAR, deviations
from bathy.clinic.audit.reference import DECLARED_NEAR, convention, identify, pairs
from bathy.clinic.audit.signature import Behaviour, SiteSignature, signature
from bathy.clinic.findings import Finding
from bathy.clinic.probe import examined
from bathy.console import table
from bathy.errors import ConfigError, unknown
from bathy.files import origin, write_json
from bathy.pages.shown import Part, Shown
from bathy.sites.batch import Batch

SHOWN = 5
"""Deviations that the clinic's report names."""


@dataclass(frozen=True)
class Audit(Shown):
    """Which scheme a model is, how near it comes to it, and where it deviates."""

    scheme: str
    """The nearest scheme; 'own design' where none is near."""
    distance: float
    """How far it is from that scheme; 0 is equal."""
    initialisation: str
    """How its matrices were drawn, as far as it was recognised."""
    sites: list[SiteSignature]
    deviations: list[Deviation]
    origin: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    width: ClassVar[int] = 200

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        write_json(Path(path), asdict(self))

    def findings(self, model: str) -> tuple[Finding, ...]:
        """The deviations as one finding for the clinic's report; none where there are none."""
        if not self.deviations:
            return ()
        shown = " ".join(
            f"{each.name}: {each.where}: {each.found}, expected {each.expected}." for each in self.deviations[:SHOWN]
        )
        more = len(self.deviations) - SHOWN
        title = (
            f"{len(self.deviations)} deviations from {self.scheme}"
            if len(self.deviations) > 1
            else f"a deviation from {self.scheme}"
        )
        advice = f"{self.deviations[0].advice} `bathy audit` lists all with reasons. What training has changed also deviates."
        return (Finding("audit", "note", title, (), shown + (f" And {more} more." if more > 0 else ""), advice, model),)

    def parts(self) -> list[Part]:
        """The sites under the scheme's name, and the deviations."""
        rows = [
            (site.name, site.kind, site.placement, f"{site.skip:.3g}", f"{site.branch:.3g}", _norms(site), _gains(site))
            for site in self.sites
        ]
        title = f"{self.scheme} (distance {self.distance:.2g}), initialised as {self.initialisation}"
        columns = ["site", "kind", "norm", "shortcut ×", "branch ×", "norms in branch", "deviation / Xavier's"]
        sites = table(title, columns, rows)
        if not self.deviations:
            return [sites, "no deviations found"]
        found = [(each.name, each.where, each.found, each.expected, f"{each.why} {each.advice}") for each in self.deviations]
        return [sites, table("deviations", ["what", "where", "found", "expected", "why, and what to do"], found)]


def _norms(site: SiteSignature) -> str:
    return ", ".join(part for part in ("at its end" * site.normed, f"{site.inner} inside" * bool(site.inner)) if part)


def _gains(site: SiteSignature) -> str:
    return ", ".join(f"{role} {gain.xavier:.2f}" for role, gain in site.gains.items())


def audit(model: nn.Module, batch: Batch, *, without: Iterable[str] = ()) -> Audit:
    """Which scheme the model really is, from its behaviour on the batch, and where it deviates from it or from itself.

    Meant for a model before training: initial sizes are part of a scheme. `without` leaves out deviations by name. The model is
    left as it was.
    """
    off = set(without)
    for name in off - WHY.keys():
        raise ConfigError(unknown("deviation", name, WHY))
    with examined(model, batch, planned=(Behaviour,)) as subject:
        found = signature(subject)
    nearest, far = identify(found)
    declared = all(site.declared for site in found.sites)
    known = nearest is not None and far < (DECLARED_NEAR if declared else NEAR)
    drawn = None if nearest is None else convention(pairs(found, nearest))
    deviant = [each for each in deviations(found, nearest, far) if each.name not in off]
    scheme = nearest.scheme if nearest is not None and known else "own design"
    return Audit(
        scheme,
        far,
        drawn.name if drawn and drawn.known else "its own",
        found.sites,
        deviant,
        origin(model=type(model).__name__),
    )
