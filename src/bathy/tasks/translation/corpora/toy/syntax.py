"""What a toy sentence says, before it is German or English: phrases and clauses as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from bathy.tasks.translation.corpora.toy.lexicon import Adjective, Frame, Noun


@dataclass(frozen=True)
class Phrase:
    """A noun phrase. `kind`: common, name, pronoun or pair."""

    kind: str
    gender: str = "m"
    number: str = "sg"
    person: int = 3
    noun: Noun | None = None
    name: str = ""
    determiner: str = ""
    """the, a, this, every, my, your, his, her, our, some (no article), of (before a genitive), or a German numeral."""
    adjectives: tuple[Adjective, ...] = ()
    owner: Phrase | None = None
    """Whose: a name before the noun or a genitive after it (Annas Hund, der Hund des Lehrers)."""
    wearing: Phrase | None = None
    """What the person has on: der Mann mit dem roten Hut."""
    relative: Relative | None = None
    parts: tuple[Phrase, ...] = ()


@dataclass(frozen=True)
class Place:
    """A place with its prepositions: auf dem Markt, auf den Markt; at the market, to the market."""

    phrase: Phrase
    preposition: str
    english: str


@dataclass(frozen=True)
class Clause:
    """One clause. A gap is the role that is asked for, or that a relative pronoun stands in."""

    frame: Frame
    subject: Phrase
    tense: str = "present"
    """present, past, future, or a modal (können …) with an optional `+past`."""
    negated: bool = False
    passive: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    place: Place | None = None
    direction: bool = False
    """The place is where one goes, not where one is."""
    time: str = ""
    frequency: str = ""
    predicate: Adjective | None = None
    compared: Phrase | None = None
    """With a predicate adjective: than whom."""
    gap: str = ""
    """subject, object or recipient: not spoken here."""


@dataclass(frozen=True)
class Relative:
    """A relative clause; the clause's gap says in which role."""

    clause: Clause


@dataclass(frozen=True)
class Sentence:
    """One or two clauses under a construction."""

    construction: str
    main: Clause
    front: str = ""
    """What stands before the German verb instead of the subject: time, object or recipient."""
    joiner: tuple[str, str] = ("", "")
    second: Clause | None = None

    @property
    def structure(self) -> str:
        """The sentence's pattern without its words; whole patterns are held out for `test_structure`."""
        clause = self.second or self.main
        relative = next((p.relative.clause.gap for p in phrases(self) if p.relative), "none")
        mood = ("not " if clause.negated else "") + ("passive" if clause.passive else clause.frame.name)
        tense = clause.tense if clause.tense in ("present", "past", "future") else "modal"
        return f"{self.construction} {self.joiner[1]} {self.front} | {mood} {tense} | relative {relative}"


def phrases(sentence: Sentence) -> list[Phrase]:
    """All phrases that fill a role in the sentence's clauses."""
    clauses = [sentence.main] + ([sentence.second] if sentence.second else [])
    roles = [(c.subject, c.object, c.recipient, c.place.phrase if c.place else None) for c in clauses]
    return [phrase for role in roles for phrase in role if phrase]
