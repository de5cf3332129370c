"""What a forecast says: will it train at this rate, up to which rate, and what a remedy changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bathy.clinic.odds import Features
from bathy.clinic.readings import Reading
from bathy.clinic.rules.stability import moved_first
from bathy.console import table
from bathy.files import write_json
from bathy.pages.shown import Part, Shown


@dataclass(frozen=True)
class Outlook:
    """One model as it is, or after a remedy."""

    remedy: str
    """Empty for the model as it is."""
    failure: float
    """Probability that training at the given rate fails."""
    largest_rate: float | None = None
    """The rate at which failing is as likely as not; nothing where it was not asked for."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Rates at which the probability of failing is 0.1 and 0.9, as far as they were looked for."""
    open_above: bool = False
    """Whether the largest rate is at least this: no rate that fails was found."""
    open_below: bool = False
    """Whether the largest rate is below this: no rate that trains was found."""
    features: Features = field(default_factory=dict)
    """What the probability rests on."""
    tried: dict[float, float] = field(default_factory=dict)
    """Probability of failing at each rate that was rehearsed."""
    steps: int = 0
    """Training steps that it cost."""
    forwards: float = 0.0
    """Forward passes that it cost; a training step counts as three."""
    readings: list[Reading] = field(default_factory=list, repr=False)
    """Rows of the rehearsal at the given rate; `step` counts its updates."""

    @property
    def said(self) -> str:
        """The limit; where it was not asked for, what the given rate does."""
        return self.limit or f"it {_said(self.failure)} (p = {self.failure:.2f})"

    @property
    def limit(self) -> str:
        """Up to which rate it trains, in words."""
        if self.largest_rate is None:
            return ""
        rate, low, high = (short(rate) for rate in (self.largest_rate, *self.interval))
        if self.open_above:
            return f"up to {rate} at least it trains"
        if self.open_below:
            return f"at {rate} and above it fails, below was not tried"
        return f"up to {rate} ({low} to {high}) it trains"


def _said(failure: float) -> str:
    """What a probability of failing means in words."""
    return "will fail" if failure > 0.9 else "will train" if failure < 0.1 else "may fail"


def short(rate: float) -> str:
    """A rate as people write it: 3e-4, 1.5e-3."""
    digits, power = f"{rate:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


@dataclass(frozen=True)
class Forecast(Shown):
    """Whether a model will train at a rate, with the same for each remedy. Prints as a sentence and a table."""

    lr: float
    warmup: int
    optimizer: str
    look: str
    as_is: Outlook
    remedies: dict[str, Outlook] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Remedies that the model cannot be given, and why."""
    origin: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def failure(self) -> float:
        """Probability that training the model as it is fails."""
        return self.as_is.failure

    @property
    def largest_rate(self) -> float | None:
        """The largest learning rate that trains the model as it is."""
        return self.as_is.largest_rate

    @property
    def best(self) -> str:
        """The remedy with the lowest probability of failing, empty for none."""
        rows = {"": self.as_is, **self.remedies}
        return min(rows, key=lambda name: (round(rows[name].failure, 2), -(rows[name].largest_rate or 0.0)))

    @property
    def moved_first(self) -> str:
        """What left its usual range first in the rehearsal of the model as it is; empty where nothing did."""
        first = moved_first(self.as_is.readings)
        return "" if first is None else str(first)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        write_json(Path(path), asdict(self))

    width: ClassVar[int] = 160

    def parts(self) -> list[Part]:
        """The sentence, the table, and remedies that were refused."""
        sentence = f"at {short(self.lr)} it {_said(self.failure)} (p = {self.failure:.2f})"
        others = [("", self.as_is), *((f"with {name} ", outlook) for name, outlook in self.remedies.items())]
        sentence += "".join(f"; {who}{outlook.said}" for who, outlook in others if outlook.said and (outlook.limit or who))
        rows = [
            (
                outlook.remedy or "as it is",
                f"{outlook.failure:.2f}",
                outlook.limit or "–",
                f"{10 ** outlook.features.get('tokens', 0.0):.1e}",
                f"{10 ** outlook.features.get('amplification', 0.0):.3g}",
                f"{10 ** outlook.features.get('gradient', 0.0):.3g}",
                outlook.steps,
                f"{outlook.forwards:.0f}",
            )
            for _, outlook in others
        ]
        read = ["token variance / input", "Σβ²", "gradient jumps by"]
        columns = ["model", "p(fails)", "learning rate", *read, "training steps", "forward passes"]
        title = f"{self.optimizer}, lr {short(self.lr)}, warm-up {self.warmup}: {self.look}"
        notes = [f"{name}: {reason}" for name, reason in self.refused.items()]
        return [sentence, table(title, columns, rows), *notes]
