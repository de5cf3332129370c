"""Random sentences of the toy grammar, each in both languages, and their split into train, valid and test.

A sentence is drawn as a meaning (`syntax`) and spoken twice (`german`, `english`), so a pair is a translation by
construction. Which split a sentence belongs to is decided by a hash of its words, and whole structures are held out by
a hash of their pattern: splits are disjoint at any size, without remembering what was written.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import replace

from bathy.tasks.translation.corpora.toy import english, german
from bathy.tasks.translation.corpora.toy.lexicon import (
    FREQUENCIES,
    NAMES,
    NUMERALS,
    THINGS,
    TIMES,
    Frame,
    Verb,
    adjectives,
    frames,
    nouns,
    places,
)  # fmt: skip
from bathy.tasks.translation.corpora.toy.syntax import Clause, Phrase, Place, Relative, Sentence

BE = Verb("", "sein", "ist", "gewesen", "sein", "be", "was", "been", "", False)
CONJUNCTIONS = [
    ("weil", "because"),
    ("obwohl", "although"),
    ("wenn", "when"),
    ("bevor", "before"),
    ("während", "while"),
]
TENSES = ["present"] * 5 + ["past"] * 4 + ["future"] * 2
TENSES += ["können", "müssen", "wollen", "dürfen", "können+past", "müssen+past", "wollen+past", "dürfen+past"]
HELD_OUT = 12
"""One structure in so many is kept for `test_structure`."""


def clear(head: Phrase, other: Phrase) -> bool:
    """Whether case, number or sense tell who acts; 'die Frau, die das Kind sieht' has two translations."""

    def sort(np: Phrase) -> str:
        return np.noun.kind if np.noun else "person"

    def marked(np: Phrase) -> bool:
        if np.kind == "pronoun":
            return np.person != 3 or (np.gender == "m" and np.number == "sg")
        return np.kind == "common" and np.gender == "m" and np.number == "sg" and np.owner is None

    return marked(head) or marked(other) or head.number != other.number or sort(head) != sort(other)


class Grammar:
    """Draws sentences; everything follows from the seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def phrase(self, kind: str, depth: int = 0, plain: bool = False) -> Phrase:
        """A phrase of a kind; `plain` without clauses and owners, deeper ones simpler."""
        if kind == "person" and not plain and self.chance(0.3):
            return self.person()
        noun = self.random.choice(nouns(kind))
        number = "pl" if self.chance(0.25) else "sg"
        word = self.random.choices(
            ["the", "a", "this", "every", "my", "your", "his", "her", "our", "number"], [30, 20, 6, 4, 4, 3, 4, 4, 3, 4]
        )[0]
        if word == "number":
            number, word = "pl", self.random.choice(list(NUMERALS))
        number = "sg" if word == "every" else number
        word = "some" if word == "a" and number == "pl" else word
        count = self.random.choices([0, 1, 2], [55, 38, 7])[0]
        described = tuple(self.random.sample(adjectives(noun.kind), count))
        result = Phrase("common", noun.gender, number, 3, noun, determiner=word, adjectives=described)
        return result if plain or depth > 0 else self.extended(result)

    def person(self) -> Phrase:
        """A name, a pronoun, or two names."""
        draw = self.random.random()
        gender = self.random.choice("mf")
        if draw < 0.45:
            return Phrase("name", gender, name=self.random.choice(NAMES[gender].split()))
        if draw < 0.55:
            first, second = (self.random.choice(NAMES[g].split()) for g in "fm")
            return Phrase("pair", number="pl", parts=(Phrase("name", "f", name=first), Phrase("name", "m", name=second)))
        person, number = self.random.choice([(1, "sg"), (2, "sg"), (3, "sg"), (3, "sg"), (1, "pl"), (3, "pl")])
        return Phrase("pronoun", gender, number, person)

    def extended(self, np: Phrase) -> Phrase:
        """The phrase with an owner, something worn, or a relative clause, now and then."""
        draw = self.random.random()
        assert np.noun
        if draw < 0.06 and np.determiner == "the" and np.noun.kind != "person":
            owner = self.phrase("person", plain=True)
            if owner.determiner in ("the", "this", "my", "his", "her"):
                return replace(np, owner=owner, determiner="of")
        if draw < 0.10 and np.determiner == "the":
            gender = self.random.choice("mf")
            return replace(np, owner=Phrase("name", name=self.random.choice(NAMES[gender].split())))
        if draw < 0.13 and np.noun.kind == "person" and np.number == "sg":
            worn = self.phrase("clothing", plain=True)
            return replace(np, wearing=replace(worn, determiner="a", number="sg"))
        if draw < 0.30 and np.determiner in ("the", "a", "every", "this", "some"):
            return replace(np, relative=self.relative(np))
        return np

    def relative(self, np: Phrase) -> Relative | None:
        """A relative clause about a phrase, in a role that its kind of noun can fill."""
        assert np.noun
        kind = np.noun.kind
        able = [f for f in self.all_frames(("intransitive", "transitive", "dative", "motion")) if f.subject == kind]
        acted = [f for f in self.all_frames(("transitive", "prepositional", "dative")) if f.object in (kind, "any")]
        subject = bool(able) and self.chance(0.5)
        options = able if subject else acted
        if not options or kind not in THINGS:
            return None
        clause = self.clause(self.random.choice(options), depth=1)
        other = clause.object if subject else clause.subject
        if other and not clause.frame.preposition and clause.frame.name == "transitive" and not clear(np, other):
            return None
        if subject:
            return Relative(replace(clause, subject=np, gap="subject"))
        return Relative(replace(clause, object=np, gap="object"))

    def all_frames(self, names: tuple[str, ...]) -> list[Frame]:
        return [frame for name in names for frame in frames(name)]

    def frame(self) -> Frame:
        """A frame that a plain clause can use."""
        kinds = ["intransitive", "transitive", "dative", "ditransitive", "prepositional", "motion", "predicate"]
        name = self.random.choices(kinds, [14, 40, 10, 9, 11, 9, 11])[0]
        if name == "predicate":
            return Frame("predicate", BE, self.random.choice(["person", "animal", "thing", "food", "reading"]))
        return self.random.choice(frames(name))

    def clause(self, frame: Frame | None = None, depth: int = 0, tense: str = "", negatable: bool = True) -> Clause:
        """A clause with its phrases, tense, negation and adverbs, in combinations that both languages say alike."""
        frame = frame or self.frame()
        tense = tense or self.random.choice(TENSES)
        lively = frame.subject in ("person", "animal") and frame.name != "predicate"
        tense = tense if lively or tense in ("present", "past", "future") else "present"
        clause = Clause(frame, self.phrase(frame.subject, depth), tense)
        if frame.object and frame.name != "motion":
            clause = replace(clause, object=self.object(frame.object, clause.subject, depth))
        if frame.name == "ditransitive":
            clause = replace(clause, recipient=self.object("person", clause.subject, 1))
        if frame.name == "predicate":
            clause = self.predicated(clause)
        return self.adorned(self.placed(clause, depth), negatable and self.chance(0.15))

    def object(self, kind: str, subject: Phrase, depth: int) -> Phrase:
        """A phrase that is not the subject again, nor a pronoun whose translation would be a guess (sie: her, them)."""
        while True:
            np = self.phrase(kind, depth)
            ambiguous = np.kind == "pronoun" and (np.person != 3 or np.gender == "f" or np.number == "pl")
            same_person = np.kind == subject.kind == "pronoun" and np.person == subject.person
            twice = np.noun is not None and subject.noun == np.noun
            if not (same_person or twice or (ambiguous and (np.person == 3 or subject.kind == "pronoun"))):
                return np

    def predicated(self, clause: Clause) -> Clause:
        """The dog is tired; the dog is bigger than the cat."""
        kind = clause.subject.noun.kind if clause.subject.noun else "person"
        adjective = self.random.choice(adjectives(kind))
        rival = self.phrase(kind, plain=True) if adjective.comparative and self.chance(0.35) else None
        same = rival is not None and clause.subject.noun == rival.noun
        return replace(clause, predicate=adjective, compared=None if same else rival)

    def placed(self, clause: Clause, depth: int) -> Clause:
        """The clause with a place: where one goes, or sometimes where it happens."""
        motion = clause.frame.name == "motion"
        if not motion and (depth or clause.frame.name not in ("intransitive", "transitive") or not self.chance(0.2)):
            return clause
        noun, preposition, into = self.random.choice(places())
        described = tuple(self.random.sample(adjectives("place"), int(self.chance(0.3))))
        word = self.random.choice(["the", "the", "the", "a", "this"])
        np = Phrase("common", noun.gender, "sg", 3, noun, determiner=word, adjectives=described)
        return replace(clause, place=Place(np, preposition, into), direction=motion)

    def adorned(self, clause: Clause, negated: bool) -> Clause:
        """Passive, negation, and adverbs of time and frequency."""
        times = TIMES.get(clause.tense)
        roles = (clause.subject, clause.object, clause.recipient)
        quantified = any(np and np.determiner in ("every", *NUMERALS) for np in roles)
        if negated and not quantified:
            clause = replace(clause, negated=True)
        elif times and self.chance(0.15) and clause.tense == "present":
            clause = replace(clause, frequency=self.random.choice(list(FREQUENCIES)))
        if times and self.chance(0.15) and not clause.frequency:
            clause = replace(clause, time=self.random.choice(list(times)))
        return clause

    def passive(self) -> Clause:
        """The dog is fed by the boy: patient as subject, agent as object."""
        frame = self.random.choice([f for f in frames("transitive") if f.verb.infinitive != "kennen"])
        active = self.clause(frame, tense=self.random.choice(["present", "past"]))
        assert active.object
        agent = active.subject if active.subject.kind != "pronoun" else self.phrase(frame.subject, plain=True)
        patient = active.object if active.object.kind != "pronoun" else self.phrase("person", plain=True)
        return replace(active, subject=patient, object=agent, passive=True, place=None)

    def sentence(self) -> Sentence:
        """A sentence of a random construction."""
        makers = [self.statement, self.passive_statement, self.question, self.asking, self.joined, self.complement]
        makers += [self.purpose, self.coordinate]
        return self.random.choices(makers, [38, 6, 9, 9, 16, 9, 7, 6])[0]()

    def statement(self) -> Sentence:
        """A plain statement, sometimes with the time or a clearly marked object in front."""
        clause = self.clause()
        fronts = [""] * 3
        fronts += ["time"] * 3 if clause.time else []
        np = clause.object
        visible = np and np.kind == "common" and np.gender == "m" and np.number == "sg" and not clause.frame.preposition
        if visible and not clause.negated and clause.recipient is None and clause.subject.kind != "pronoun":
            fronts += ["object"] if not np or not np.owner else []
        if clause.recipient and clause.recipient.kind == "common" and not clause.negated:
            fronts += ["recipient"]
        return Sentence("statement", clause, self.random.choice(fronts))

    def passive_statement(self) -> Sentence:
        return Sentence("statement", self.passive())

    def question(self) -> Sentence:
        return Sentence("question", self.clause(negatable=False))

    def asking(self) -> Sentence:
        """A question for the subject, an object, the recipient, the reason, the time or the place."""
        clause = self.clause(negatable=False)
        thing = clause.object.noun.kind if clause.object and clause.object.noun else "person"
        options = [("why", "")] * 2
        options += [("when", "")] * 2 if not clause.time and not clause.frequency else []
        options += [("who", "subject")] if clause.frame.subject == "person" and not clause.compared else []
        if clause.object and not clause.frame.preposition and clause.frame.name != "dative":
            options += [("whom", "object")] if thing == "person" else [("what", "object")] if thing != "animal" else []
        options += [("to_whom", "object")] if clause.frame.name == "dative" and thing == "person" else []
        options += [("where", "place")] if clause.place and not clause.direction else []
        word, gap = self.random.choice(options)
        subject = Phrase("pronoun", "m") if gap == "subject" else clause.subject
        return Sentence("asking", replace(clause, gap=gap, subject=subject), joiner=(word, word))

    def joined(self) -> Sentence:
        """A main and a subordinate clause, in either order."""
        joiner = self.random.choice(CONJUNCTIONS)
        tense = "present" if joiner[0] == "wenn" else self.random.choice(["present", "past"])
        main = self.clause(tense=tense, depth=1, negatable=joiner[0] in ("weil", "obwohl"))
        free = joiner[0] in ("weil", "obwohl")
        second = self.clause(tense="" if free else tense, depth=1, negatable=free)
        order = self.random.choice(["before", "after"])
        main = replace(main, time="") if order == "before" else main
        return Sentence(order, main, joiner=joiner, second=second)

    def complement(self) -> Sentence:
        """She believes that …; he asks whether …"""
        name, joiner = self.random.choice([("clausal", ("dass", "that"))] * 3 + [("whether", ("ob", "whether"))])
        main = self.thinker(name)
        return Sentence("complement", main, joiner=joiner, second=self.clause())

    def thinker(self, frame: str) -> Clause:
        """A short main clause with a person and a verb that takes a clause."""
        tense = self.random.choice(["present", "present", "past"])
        return Clause(self.random.choice(frames(frame)), self.phrase("person", depth=1), tense)

    def purpose(self) -> Sentence:
        """He tries to …; she goes to the market in order to …"""
        if self.chance(0.5):
            main, joiner = self.thinker("infinitival"), ("", "")
        else:
            goer = self.random.choice([f for f in frames("motion") if f.subject == "person"])
            main, joiner = self.clause(goer, depth=1, negatable=False), ("um", "in order")
        doing = self.random.choice([f for f in self.all_frames(("transitive", "dative")) if f.subject == "person"])
        second = Clause(doing, main.subject, object=self.object(doing.object, main.subject, 1))
        return Sentence("infinitive", main, joiner=joiner, second=second)

    def coordinate(self) -> Sentence:
        """Two main clauses with und or aber."""
        joiner = self.random.choice([("und", "and"), ("aber", "but")])
        tense = self.random.choice(["present", "past", "future"])
        first, second = self.clause(tense=tense, depth=1), self.clause(tense=tense, depth=1)
        return Sentence("coordinate", first, joiner=joiner, second=second)


def spoken(words: list[str]) -> str:
    """Words and commas as a line: one comma where two meet, none before a full stop, a capital at the start."""
    text = re.sub(r"[ ,]*,", ",", " ".join(words))
    text = re.sub(r"[ ,]*([.?])$", r"\1", text)
    return text[0].upper() + text[1:]


def hashed(text: str, parts: int) -> int:
    """A stable number below `parts`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % parts


def split_of(sentence: Sentence, source: str) -> str:
    """The split that a sentence belongs to, by its structure and its words."""
    if hashed(sentence.structure, HELD_OUT) == 0:
        return "test_structure"
    return {0: "valid", 1: "test"}.get(hashed(source, 40), "train")


def pair(grammar: Grammar) -> tuple[str, str, str, str]:
    """(split, structure, German, English) of the next sentence."""
    sentence = grammar.sentence()
    source, target = spoken(german.words(sentence)), spoken(english.words(sentence))
    return split_of(sentence, source), sentence.structure, source, target
