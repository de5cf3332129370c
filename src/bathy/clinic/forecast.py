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
    def limit(self) -> str:
        """Up to which rate it trains, in words."""
        if self.largest_rate is None:
            return ""
        low, high = (f"{rate:.2g}" for rate in self.interval)
        if self.open_above:
            return f"trains up to {self.largest_rate:.2g} at least"
        if self.open_below:
            return f"trains at no rate from {self.largest_rate:.2g} on"
        return f"trains up to {self.largest_rate:.2g} ({low} to {high})"


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
        verb = "will fail" if self.failure > 0.9 else "will train" if self.failure < 0.1 else "may fail"
        sentence = f"at {self.lr:.2g} it {verb} (p = {self.failure:.2f})"
        others = [("it", self.as_is), *((f"with {name} it", outlook) for name, outlook in self.remedies.items())]
        sentence += "".join(f"; {who} {outlook.limit}" for who, outlook in others if outlook.limit)
        rows = [
            (
                outlook.remedy or "as it is",
                f"{outlook.failure:.2f}",
                outlook.limit or "–",
                f"{10 ** outlook.features.get('tokens', 0.0):.1e}",
                f"{10 ** outlook.features.get('amplification', 0.0):.3g}",
                outlook.steps,
                f"{outlook.forwards:.0f}",
            )
            for _, outlook in others
        ]
        columns = ["model", "p(fails)", "learning rate", "token variance", "Σβ²", "training steps", "forward passes"]
        title = f"{self.optimizer}, lr {self.lr:.2g}, warm-up {self.warmup}: {self.look}"
        notes = [f"{name}: {reason}" for name, reason in self.refused.items()]
        return [sentence, table(title, columns, rows), *notes]
