"""The built-in corpus: correct by construction, split without overlap, the same for everyone."""

import json
from itertools import islice
from pathlib import Path

import pytest

from bathy.tasks.translation.corpora.toy import english, german, pairs, write_toy
from bathy.tasks.translation.corpora.toy.grammar import Grammar, spoken
from bathy.tasks.translation.corpora.toy.lexicon import adjectives, entries, frames, nouns, places
from bathy.tasks.translation.corpora.toy.syntax import Clause, Phrase, Place, Relative, Sentence


def the(word: str, *described: str, determiner: str = "the", number: str = "sg", **more: object) -> Phrase:
    noun = next(n for kind in ("any", "opening") for n in nouns(kind) if n.singular == word)
    chosen = tuple(a for name in described for a in adjectives(noun.kind) if a.base == name)
    return Phrase("common", noun.gender, number, 3, noun, determiner=determiner, adjectives=chosen, **more)  # type: ignore[arg-type]


def frame(name: str, infinitive: str, subject: str = "person", index: int = 0) -> "object":
    return [f for f in frames(name) if f.verb.prefix + f.verb.infinitive == infinitive and f.subject == subject][index]


def clause(kind: str, verb: str, subject: Phrase, **more: object) -> Clause:
    return Clause(frame(kind, verb), subject, **more)  # type: ignore[arg-type]


ME, YOU, HE = Phrase("pronoun", person=1), Phrase("pronoun", person=2), Phrase("pronoun")
ANNA = Phrase("name", "f", name="Anna")
MARKET = next(
    Place(Phrase("common", n.gender, noun=n, determiner="the"), p, e) for n, p, e in places() if n.singular == "Markt"
)
DOG = the("Hund", "klein")
GOLDEN = [
    (
        Sentence("statement", clause("transitive", "füttern", ME, object=DOG)),
        "Ich füttere den kleinen Hund.",
        "I feed the small dog.",
    ),
    (Sentence("statement", clause("transitive", "anrufen", YOU, object=HE)), "Du rufst ihn an.", "You call him."),
    (
        Sentence("statement", clause("transitive", "abholen", ANNA, object=HE, tense="past")),
        "Anna hat ihn abgeholt.",
        "Anna picked him up.",
    ),
    (
        Sentence("statement", clause("transitive", "suchen", ANNA, object=HE, negated=True)),
        "Anna sucht ihn nicht.",
        "Anna does not look for him.",
    ),
    (
        Sentence("statement", clause("transitive", "essen", HE, object=the("Apfel", "süß", determiner="a"), negated=True)),
        "Er isst keinen süßen Apfel.",
        "He does not eat a sweet apple.",
    ),
    (
        Sentence("statement", clause("dative", "helfen", HE, object=the("Student", number="pl"), tense="müssen+past")),
        "Er musste den Studenten helfen.",
        "He had to help the students.",
    ),
    (
        Sentence(
            "statement",
            clause("ditransitive", "geben", ANNA, object=the("Buch", determiner="my"), recipient=the("Nachbar", "alt")),
            front="recipient",
        ),
        "Dem alten Nachbarn gibt Anna mein Buch.",
        "Anna gives the old neighbour my book.",
    ),
    (
        Sentence("question", clause("motion", "gehen", the("Kind", number="pl"), place=MARKET, direction=True)),
        "Gehen die Kinder auf den Markt?",
        "Do the children go to the market?",
    ),
    (
        Sentence(
            "after",
            clause("intransitive", "lachen", HE),
            joiner=("weil", "because"),
            second=clause("transitive", "zumachen", ANNA, object=the("Tür")),
        ),
        "Er lacht, weil Anna die Tür zumacht.",
        "He laughs because Anna closes the door.",
    ),
    (
        Sentence(
            "before",
            clause("intransitive", "lachen", HE, tense="past"),
            joiner=("obwohl", "although"),
            second=clause("intransitive", "aufstehen", ME, tense="past"),
        ),
        "Obwohl ich aufgestanden bin, hat er gelacht.",
        "Although I got up, he laughed.",
    ),
    (
        Sentence(
            "infinitive",
            clause("infinitival", "versuchen", ANNA),
            second=clause("transitive", "abschließen", ANNA, object=the("Schrank", determiner="this")),
        ),
        "Anna versucht, diesen Schrank abzuschließen.",
        "Anna tries to lock this cupboard.",
    ),
    (
        Sentence(
            "statement",
            clause(
                "intransitive",
                "schlafen",
                the("Mann", relative=Relative(clause("dative", "zuhören", ANNA, object=HE, gap="object"))),
                tense="future",
            ),
        ),
        "Der Mann, dem Anna zuhört, wird schlafen.",
        "The man whom Anna listens to will sleep.",
    ),
    (
        Sentence(
            "statement",
            clause(
                "transitive",
                "sehen",
                the("Katze", owner=the("Lehrer", "jung"), determiner="of"),
                object=the("Mann", number="pl", determiner="drei"),
                passive=True,
                tense="past",
            ),
        ),
        "Die Katze des jungen Lehrers wurde von drei Männern gesehen.",
        "The young teacher's cat was seen by three men.",
    ),
    (
        Sentence("asking", clause("transitive", "kaufen", HE, gap="object", tense="past"), joiner=("what", "what")),
        "Was hat er gekauft?",
        "What did he buy?",
    ),
]


@pytest.mark.parametrize(("sentence", "source", "target"), GOLDEN, ids=[row[1] for row in GOLDEN])
def test_a_meaning_is_spoken_as_a_person_would(sentence: Sentence, source: str, target: str) -> None:
    assert (spoken(german.words(sentence)), spoken(english.words(sentence))) == (source, target)


def test_the_same_seed_gives_the_same_sentences_on_any_number_of_cores() -> None:
    assert list(islice(pairs(3, workers=1), 2500)) == list(islice(pairs(3, workers=2), 2500))


def test_splits_share_no_sentence_and_held_out_structures_occur_nowhere_else() -> None:
    rows = list(islice(pairs(5), 6000))
    by_split = {name: {row[2] for row in rows if row[0] == name} for name in ("train", "valid", "test")}
    assert all(not by_split[a] & by_split[b] for a in by_split for b in by_split if a != b)
    held_out = {row[1] for row in rows if row[0] == "test_structure"}
    assert held_out and not held_out & {row[1] for row in rows if row[0] != "test_structure"}


def test_it_uses_thousands_of_word_forms_and_every_word_of_the_lexicon_can_be_drawn() -> None:
    rows = list(islice(pairs(1), 20_000))
    forms = {
        word for row in rows for word in "".join(c if c.isalpha() or c in "-' " else " " for c in row[2] + " " + row[3]).split()
    }
    assert len(forms) > 3000
    assert not [noun[0] for _, noun, _ in entries("nouns") if noun[0] not in forms and noun[3] not in forms]


def test_writing_gives_the_sizes_asked_for_and_says_what_made_them(tmp_path: Path) -> None:
    write_toy(tmp_path, size=3000, held_out=20, seed=2)
    written = json.loads((tmp_path / "corpus.json").read_text())
    assert {name: row["lines"] for name, row in written["splits"].items()} == {
        "train": 3000, "valid": 20, "test": 20, "test_structure": 20,
    }  # fmt: skip
    assert len((tmp_path / "train.en").read_text().splitlines()) == 3000
    assert not list(tmp_path.glob(".*.tmp"))


def test_no_sentence_has_stray_marks() -> None:
    grammar = Grammar("marks")
    for _ in range(3000):
        sentence = grammar.sentence()
        for line in (spoken(german.words(sentence)), spoken(english.words(sentence))):
            assert line[0].isupper() and line[-1] in ".?" and "  " not in line and ",," not in line and " ," not in line
