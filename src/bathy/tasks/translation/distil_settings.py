"""The section [distil]."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from bathy.settings import Settings


class DistilConfig(Settings, section="distil"):
    """How a teacher's translations become a student's training text."""

    changeable: ClassVar[bool] = True

    teacher: tuple[str, ...] = ()
    """Run, checkpoint or model folders; several translate as an ensemble."""
    raw: str = ""
    """Folder of raw text whose training sources are translated, as `bathy corpus` lays it out."""
    beam: PositiveInt = Field(default=5, le=10_000)
    """Hypotheses the teacher keeps for each sentence."""
    choose: Literal["best", "similar"] = "best"
    """best: the teacher's best; similar: of its n best the one most like the reference by chrF (Kim and Rush, 2016)."""
    n_best: PositiveInt = 5
    """Translations among which `similar` chooses; at most the beam."""
    max_ratio: NonNegativeFloat = 3.0
    """Drop pairs where one side has so many times the other's words, and one more; 0: no limit."""
    drop_worst: float = Field(default=0.0, ge=0, lt=1)
    """Drop this share of the pairs, those whose translations the teacher scores worst."""
    keep_original: bool = False
    """Train on the original pairs as well as on the teacher's."""
    shard: PositiveInt = 2000
    """Lines translated between two saves."""
    batch: PositiveInt = 64
    """Sentences translated at a time."""
    workers: NonNegativeInt = 0
    """Processes that translate; 0 uses all cores. It does not change the result."""
