"""What a claim is, and how numbers become a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bathy.lab.claims import predicate
from bathy.lab.claims.predicate import Checked, Numbers

Answer = Literal["reproduced", "not reproduced", "not decidable"]


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that numbers can bear out or contradict."""

    id: str
    item: str
    """The `bathy reproduce` item whose numbers judge it."""
    place: str
    """Where the paper says it."""
    says: str
    """What it says, in our words."""
    reading: str
    """What is measured, and what the numbers in the predicates are."""
    predicates: tuple[str, ...]
    """All of them must hold."""
    seeds: int = 1
    """Seeds that the verdict should rest on; with fewer it says so."""

    @property
    def needs(self) -> list[str]:
        """Names of the numbers that its predicates use."""
        return list(dict.fromkeys(name for text in self.predicates for name in predicate.names(text)))


@dataclass(frozen=True)
class Verdict:
    """A claim held against numbers."""

    claim: Claim
    answer: Answer
    checks: tuple[Checked, ...]
    seeds: int
    """Seeds that the numbers come from."""

    @property
    def why(self) -> str:
        """The figures that decide: of what fails or is open, else of everything."""
        short = f" ({self.seeds} of {self.claim.seeds} seeds)" if 0 < self.seeds < self.claim.seeds else ""
        return "; ".join(check.why for check in self.deciding) + short

    @property
    def deciding(self) -> list[Checked]:
        """The checks that make the answer what it is; all of them where one seed is why it is open."""
        wanted = {"reproduced": ("yes",), "not reproduced": ("no",), "not decidable": ("missing", "spread")}[self.answer]
        return [check for check in self.checks if check.holds in wanted] or list(self.checks)

    def row(self) -> dict[str, Any]:
        """The verdict as plain data."""
        claim = self.claim
        checks = [{"predicate": check.predicate, "holds": check.holds, "numbers": check.values} for check in self.checks]
        described = {"id": claim.id, "place": claim.place, "claim": claim.says, "reading": claim.reading}
        return described | {"verdict": self.answer, "why": self.why, "seeds": self.seeds, "checks": checks}


def judge(claim: Claim, numbers: Numbers) -> Verdict:
    """Reproduced if every predicate holds, not if one decidedly fails.

    Not decidable where a number is missing, where the interval of a margin over seeds covers 0, or where a claim that asks for
    several seeds has one, which has no interval.
    """
    checks = tuple(predicate.check(text, numbers) for text in claim.predicates)
    answers, seeds = {check.holds for check in checks}, _seeds(checks, numbers)
    answer: Answer = "reproduced" if answers == {"yes"} else "not reproduced" if "no" in answers else "not decidable"
    return Verdict(claim, "not decidable" if seeds == 1 < claim.seeds else answer, checks, seeds)


def _seeds(checks: tuple[Checked, ...], numbers: Numbers) -> int:
    """The fewest seeds behind any check: those that all of its numbers have."""
    used = [(check, name, value) for check in checks if check.margins for name, value in check.values.items()]
    return min(
        (len(check.margins) if isinstance(value, dict) else _means(name, numbers) for check, name, value in used), default=0
    )


def _means(name: str, numbers: Numbers) -> int:
    """Seeds over which a scalar is a mean: numbers["seeds.part"] for names that contain `part`, else numbers["seeds"]."""
    special = [value for key, value in numbers.items() if key.startswith("seeds.") and key.removeprefix("seeds.") in name]
    found = special[0] if special else numbers.get("seeds", 1.0)
    return int(found) if isinstance(found, float) else 1
