"""The words of the toy corpus, read from `lexicon.toml`, which explains its columns."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Noun:
    """A noun with all its forms; `kind` decides what it can do and have done to it."""

    kind: str
    gender: str
    singular: str
    genitive: str
    plural: str
    english: str
    english_plural: str

    @property
    def weak(self) -> bool:
        """N-declension: der Student, den Studenten."""
        return self.gender == "m" and not self.genitive.endswith("s")


@dataclass(frozen=True)
class Verb:
    """A verb with its parts; the frame it stands in is a `Frame`'s matter."""

    prefix: str
    infinitive: str
    third: str
    participle: str
    auxiliary: str
    english: str
    past: str
    past_participle: str
    particle: str
    stranded: bool
    """The English particle behaves as a preposition: 'looks for him', not 'looks him for'."""


@dataclass(frozen=True)
class Adjective:
    """An adjective; `stem` takes the endings (teuer, teur-es), the comparatives are empty where unusual."""

    base: str
    stem: str
    english: str
    comparative: str = ""
    english_comparative: str = ""


@dataclass(frozen=True)
class Frame:
    """How a verb is used: its objects' cases and prepositions, and which kinds of noun fill each place."""

    name: str
    verb: Verb
    subject: str
    object: str = ""
    case: str = ""
    preposition: str = ""
    english_preposition: str = ""


GIFTS = ("thing", "reading", "food", "clothing")
THINGS = ("person", "animal", "food", "reading", "thing", "clothing", "vehicle", "building")
LIKE_THINGS = ("thing", "clothing", "vehicle", "opening", "building")
NAMES = {
    "m": "Peter Paul Hugo Bruno Jan Oskar Anton Emil Leo David Simon Tim Karl Otto Erik Martin Stefan Jakob",
    "f": "Anna Maria Lena Clara Sofia Emma Julia Eva Nina Laura Greta Ida Paula Sara Vera Marta Helena Lea",
}
"""First names, spelled alike in both languages; none ends in s, whose genitive would differ."""

NUMERALS = {
    "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six", "sieben": "seven",
    "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve", "zwanzig": "twenty",
}  # fmt: skip
TIMES = {
    "present": {"heute": "today", "jetzt": "now"},
    "past": {"gestern": "yesterday", "letzte Woche": "last week", "heute": "today"},
    "future": {"morgen": "tomorrow", "bald": "soon", "nächste Woche": "next week", "heute": "today"},
}
FREQUENCIES = {"oft": "often", "immer": "always", "manchmal": "sometimes", "selten": "rarely", "nie": "never"}


@cache
def tables() -> dict[str, dict[str, str]]:
    """The tables of lexicon.toml."""
    return tomllib.loads(resources.files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8"))


def entries(table: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """(heading words, German words, English words) of every entry of a table."""
    for heading, lines in tables()[table].items():
        for line in lines.strip().splitlines():
            german, _, english = line.partition(":")
            yield heading.split(), german.split(), english.split()


def past_of(verb: str) -> str:
    """The regular English past: work-ed, smile-d, carr-ied."""
    if verb.endswith("e"):
        return verb + "d"
    return verb[:-1] + "ied" if verb.endswith("y") and verb[-2] not in "aeiou" else verb + "ed"


def verb_of(german: list[str], english: list[str]) -> Verb:
    """A verb from its table entry."""
    prefix, _, infinitive = german[0].rpartition("|")
    base, *past = english
    stranded = "_" in base
    base, _, particle = base.replace("_", "+").partition("+")
    simple, participle = past or [past_of(base)] * 2
    auxiliary = {"h": "haben", "s": "sein"}[german[3]]
    return Verb(prefix, infinitive, german[1], german[2], auxiliary, base, simple, participle, particle, stranded)


def adjective_of(german: list[str], english: list[str]) -> Adjective:
    """An adjective from its table entry."""
    base, _, stem = german[0].partition("/")
    comparative = german[1] if len(german) > 1 else ""
    more = english[1] if len(english) > 1 else f"more {english[0]}"
    return Adjective(base, stem or base, english[0], comparative, more if comparative else "")


def noun_of(kind: str, german: list[str], english: list[str]) -> Noun:
    """A noun from its table entry."""
    singular, gender, genitive, plural = german
    return Noun(kind, gender, singular, genitive, plural, *english)


@cache
def nouns(kind: str) -> list[Noun]:
    """All nouns of a kind."""
    kinds = {"any": THINGS, "gift": GIFTS}.get(kind, (kind,))
    return [noun_of(head[0], de, en) for head, de, en in entries("nouns") if head[0] in kinds]


@cache
def places() -> list[tuple[Noun, str, str]]:
    """Every place with its German and English preposition."""
    return [(noun_of("place", de, en), head[0], head[1]) for head, de, en in entries("places")]


@cache
def adjectives(kind: str) -> list[Adjective]:
    """The adjectives that suit a kind of noun."""
    kind = "thing" if kind in LIKE_THINGS else kind
    return [adjective_of(de, en) for head, de, en in entries("adjectives") if head[0] == kind]


@cache
def frames(name: str) -> list[Frame]:
    """All verbs that can stand in a frame."""
    found = [(head, verb_of(de, en)) for head, de, en in entries("verbs") if head[0] == name]
    result = []
    for head, verb in found:
        name, subject, thing, preposition, case, into = [*head, *[""] * 6][:6]
        case = "dat" if name == "dative" else case
        result.append(Frame(name, verb, subject, thing, case, preposition, into))
    return result
