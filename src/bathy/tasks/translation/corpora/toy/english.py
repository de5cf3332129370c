"""The toy corpus's English: agreement, do-support, particles, and where an English clause puts its words."""

from __future__ import annotations

from bathy.tasks.translation.corpora.toy.lexicon import FREQUENCIES, NUMERALS, TIMES, Verb
from bathy.tasks.translation.corpora.toy.syntax import Clause, Phrase, Sentence

PRONOUNS = {
    (1, "sg"): ("I", "me"), (2, "sg"): ("you", "you"), (1, "pl"): ("we", "us"),
    (3, "pl"): ("they", "them"), (3, "m"): ("he", "him"), (3, "f"): ("she", "her"),
}  # fmt: skip
AN_NOT_BY_LETTER = {"honest": "an", "university": "a", "useful": "a", "universities": "a"}
TIME = {german: english for table in TIMES.values() for german, english in table.items()}
MODALS = {
    "können": "can", "können+past": "could", "müssen": "have to", "müssen+past": "had to",
    "wollen": "want to", "wollen+past": "wanted to", "dürfen": "be allowed to", "dürfen+past": "be allowed to",
}  # fmt: skip
QUESTION = {"to_whom": "whom"}


def article(following: str) -> str:
    """a or an, by the sound that follows."""
    return AN_NOT_BY_LETTER.get(following, "an" if following[0] in "aeiou" else "a")


def determined(np: Phrase, following: str) -> list[str]:
    """The words before the adjectives."""
    if np.owner:
        *rest, last = phrase(np.owner)
        return [*rest, last + ("'" if last.endswith("s") and np.owner.number == "pl" else "'s")]
    word = np.determiner
    if word in NUMERALS:
        return [NUMERALS[word]]
    if word == "a":
        return [article(following)] if np.number == "sg" else []
    if word == "this" and np.number == "pl":
        return ["these"]
    return [] if word == "some" else [word]


def phrase(np: Phrase, case: str = "nom") -> list[str]:
    """The words of a noun phrase; the case matters to pronouns only."""
    if np.kind == "pair":
        return [*phrase(np.parts[0], case), "and", *phrase(np.parts[1], case)]
    if np.kind == "name":
        return [np.name]
    if np.kind == "pronoun":
        forms = PRONOUNS[np.person, np.gender if np.person == 3 and np.number == "sg" else np.number]
        return [forms[case != "nom"]]
    assert np.noun
    words = " and ".join(adjective.english for adjective in np.adjectives).split()
    words.append(np.noun.english if np.number == "sg" else np.noun.english_plural)
    words = determined(np, words[0]) + words
    if np.wearing:
        words += ["with", *phrase(np.wearing)]
    if np.relative:
        words += relative(np, np.relative.clause)
    return words


def relative(head: Phrase, clause: Clause) -> list[str]:
    """who sees the dog; whom the man helps; that the man waits for."""
    assert head.noun
    human = head.noun.kind == "person"
    pronoun = ("who" if clause.gap == "subject" else "whom") if human else "that"
    return [pronoun, *statement(clause)]


def third(base: str) -> str:
    """The -s form."""
    if base.endswith(("s", "sh", "ch", "x", "z", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2] not in "aeiou" else base + "s"


def singular(np: Phrase) -> bool:
    """Whether the verb takes -s."""
    return np.number == "sg" and np.person == 3


def be(np: Phrase, past: bool) -> str:
    """am, are, is; was, were."""
    if np.number == "pl" or np.person == 2:
        return "were" if past else "are"
    return "was" if past else ("am" if np.person == 1 else "is")


def auxiliary(clause: Clause) -> tuple[str, str]:
    """(first auxiliary, rest of the verb group); no auxiliary for a plain present or past."""
    verb, tense, np = clause.frame.verb, clause.tense, clause.subject
    past = tense.endswith("past")
    if clause.passive:
        return be(np, past), verb.past_participle
    if tense == "future":
        return "will", verb.english
    if tense.startswith("dürfen"):
        return be(np, past), f"allowed to {verb.english}"
    if tense.startswith("können"):
        return MODALS[tense], verb.english
    if verb.english == "be" and tense in ("present", "past"):
        return be(np, past), ""
    return "", ""


def modal_base(clause: Clause) -> tuple[str, str]:
    """(the verb that carries the tense, what follows it): has to | sleep, wants to | sleep, sleeps."""
    if clause.tense.startswith(("müssen", "wollen")):
        return MODALS[clause.tense.partition("+")[0]].split()[0], f"to {clause.frame.verb.english}"
    return clause.frame.verb.english, ""


def inflected(clause: Clause) -> str:
    """The finite form without auxiliary: sleeps, slept, has to sleep."""
    base, rest = modal_base(clause)
    if clause.tense.endswith("past"):
        finite = {"have": "had", "want": "wanted"}[base] if rest else clause.frame.verb.past
    elif singular(clause.subject):
        finite = "has" if base == "have" else third(base)
    else:
        finite = base
    return f"{finite} {rest}".strip()


def do(clause: Clause) -> tuple[str, str]:
    """Do-support: (does, see), (did, want to see)."""
    base, rest = modal_base(clause)
    form = "did" if clause.tense.endswith("past") else ("does" if singular(clause.subject) else "do")
    return form, f"{base} {rest}".strip()


def verb_group(clause: Clause) -> list[str]:
    """Auxiliary, not, frequency, verb: 'does not often sleep', 'is always tired', 'cannot sleep'."""
    first, rest = auxiliary(clause)
    often = [FREQUENCIES[clause.frequency]] if clause.frequency else []
    if clause.negated:
        first, rest = (first, rest) if first else do(clause)
        return ["cannot", rest] if first == "can" else [first, "not", *([rest] if rest else [])]
    if not first:
        return [*often, inflected(clause)]
    return [first, *often, *([rest] if rest else [])]


def with_particle(verb: Verb, np: Phrase | None) -> list[str]:
    """Object and particle in their order: 'picks up the child', 'picks him up', 'looks for him'."""
    particle = [verb.particle] if verb.particle else []
    spoken = phrase(np, "acc") if np else []
    return spoken + particle if np and np.kind == "pronoun" and not verb.stranded else particle + spoken


def complements(clause: Clause) -> list[str]:
    """What follows the verb: objects, prepositional object, predicate, place, time."""
    frame = clause.frame
    np = clause.object if clause.gap != "object" else None
    words: list[str] = []
    if clause.recipient and clause.gap != "recipient":
        words += phrase(clause.recipient, "acc")
    if clause.passive:
        words += [*with_particle(frame.verb, None), "by", *phrase(np, "acc")] if np else []
    elif frame.preposition:
        words += [*with_particle(frame.verb, None), frame.english_preposition, *(phrase(np, "acc") if np else [])]
    else:
        words += with_particle(frame.verb, np)
    if clause.gap == "recipient" and frame.name == "ditransitive":
        words.append("to")
    if clause.predicate:
        words += [clause.predicate.english_comparative, "than"] if clause.compared else [clause.predicate.english]
    if clause.compared:
        words += phrase(clause.compared)
    if clause.place and clause.gap != "place":
        words += ["to" if clause.direction else clause.place.english, *phrase(clause.place.phrase)]
    return words


def statement(clause: Clause, time_first: bool = False) -> list[str]:
    """Subject, verb, complements, time."""
    time = [TIME[clause.time]] if clause.time else []
    subject = [] if clause.gap == "subject" else phrase(clause.subject)
    words = [*subject, *verb_group(clause), *complements(clause)]
    return [*time, *words] if time_first else [*words, *time]


def question(clause: Clause, opening: list[str]) -> list[str]:
    """Auxiliary (or do) before the subject; a question for the subject keeps the statement's order."""
    if clause.gap == "subject":
        return [*opening, *statement(clause)]
    first, rest = auxiliary(clause)
    first, rest = (first, rest) if first else do(clause)
    often = [FREQUENCIES[clause.frequency]] if clause.frequency else []
    time = [TIME[clause.time]] if clause.time else []
    return [*opening, first, *phrase(clause.subject), *often, *([rest] if rest else []), *complements(clause), *time]


def infinitive(clause: Clause) -> list[str]:
    """to lock the door."""
    return ["to", clause.frame.verb.english, *complements(clause)]


def words(sentence: Sentence) -> list[str]:
    """The whole sentence as words and commas."""
    main, second, joiner = sentence.main, sentence.second, sentence.joiner[1]
    match sentence.construction:
        case "question":
            return [*question(main, []), "?"]
        case "asking":
            return [*question(main, [QUESTION.get(joiner, joiner)]), "?"]
        case "before" if second:
            return [joiner, *statement(second), ",", *statement(main), "."]
        case "infinitive" if second:
            return [*statement(main), *([joiner] if joiner else []), *infinitive(second), "."]
        case "coordinate" if second:
            comma = [] if joiner == "and" else [","]
            return [*statement(main), *comma, joiner, *statement(second), "."]
        case _ if second:
            return [*statement(main), joiner, *statement(second), "."]
    return [*statement(main, time_first=sentence.front == "time"), "."]
