"""The toy corpus's German: declension, conjugation, and where a German clause puts its words."""

from __future__ import annotations

from bathy.tasks.translation.corpora.toy.lexicon import Noun, Verb
from bathy.tasks.translation.corpora.toy.syntax import Clause, Phrase, Place, Sentence

# Columns of all tables: masculine, feminine, neuter, plural.
COLUMN = {"m": 0, "f": 1, "n": 2}
THE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}
"""Endings of dieser and jeder; and, but for the genitive, of an adjective with nothing before it."""
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"}
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
EIN_BARE = {("nom", 0), ("nom", 2), ("acc", 2)}
"""Where ein, kein and mein have no ending, and the adjective shows the gender instead."""
RELATIVE = {**THE, "dat": "dem der dem denen"}
EIN_WORDS = {"a": "ein", "no": "kein", "my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser"}
DER_WORDS = {"this": "dies", "every": "jed"}
PRONOUNS = {
    (1, "sg"): ("ich", "mich", "mir"), (2, "sg"): ("du", "dich", "dir"), (1, "pl"): ("wir", "uns", "uns"),
    (3, "pl"): ("sie", "sie", "ihnen"), (3, "m"): ("er", "ihn", "ihm"), (3, "f"): ("sie", "sie", "ihr"),
}  # fmt: skip
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "von dem": "vom"}
HELPERS = {
    "sein": "bin bist ist sind", "haben": "habe hast hat haben", "werden": "werde wirst wird werden",
    "war": "war warst war waren", "wurden": "wurde wurdest wurde wurden",
    "können": "kann kannst kann können", "müssen": "muss musst muss müssen", "wollen": "will willst will wollen",
    "dürfen": "darf darfst darf dürfen", "können+past": "konnte konntest konnte konnten",
    "müssen+past": "musste musstest musste mussten", "wollen+past": "wollte wolltest wollte wollten",
    "dürfen+past": "durfte durftest durfte durften",
}  # fmt: skip
SECOND_PERSON = {"hält": "hältst", "hat": "hast"}
QUESTION = {"who": "wer", "what": "was", "whom": "wen", "to_whom": "wem", "why": "warum", "when": "wann", "where": "wo"}


def column(phrase: Phrase) -> int:
    """The phrase's column in the tables."""
    return 3 if phrase.number == "pl" else COLUMN[phrase.gender]


def noun(word: Noun, number: str, case: str) -> str:
    """The noun's form: n-declension in the singular, -n in the dative plural."""
    if number == "pl":
        return word.plural + ("n" if case == "dat" and word.plural[-1] not in "ns" else "")
    if case == "gen" or (word.weak and case in ("acc", "dat")):
        return word.genitive
    return word.singular


def determined(phrase: Phrase, case: str) -> tuple[list[str], str]:
    """The words before the adjectives, and the adjectives' ending."""
    col = column(phrase)
    strong, mixed, weak = (table[case].split()[col] for table in (STRONG, MIXED, WEAK))
    if phrase.owner and phrase.owner.kind == "name":
        return [phrase.owner.name + "s"], strong
    word = phrase.determiner
    if word in ("the", "of"):
        return [THE[case].split()[col]], weak
    if word in DER_WORDS:
        return [DER_WORDS[word] + strong], weak
    if word in EIN_WORDS:
        if word == "a" and col == 3:
            return [], strong
        return [EIN_WORDS[word] + ("" if (case, col) in EIN_BARE else strong)], mixed
    return ([] if word == "some" else [word]), strong


def phrase(np: Phrase, case: str) -> list[str]:
    """The words of a noun phrase in a case."""
    if np.kind == "pair":
        return [*phrase(np.parts[0], case), "und", *phrase(np.parts[1], case)]
    if np.kind == "name":
        return [np.name]
    if np.kind == "pronoun":
        forms = PRONOUNS[np.person, np.gender if np.person == 3 and np.number == "sg" else np.number]
        return [forms[["nom", "acc", "dat"].index(case)]]
    assert np.noun
    words, ending = determined(np, case)
    words += " und ".join(adjective.stem + ending for adjective in np.adjectives).split()
    words.append(noun(np.noun, np.number, case))
    if np.owner and np.owner.kind == "common":
        words += phrase(np.owner, "gen")
    if np.wearing:
        words += ["mit", *phrase(np.wearing, "dat")]
    if np.relative:
        words += [",", *relative(np.relative.clause, column(np)), ","]
    return words


def prepositional(preposition: str, np: Phrase, case: str) -> list[str]:
    """Preposition and phrase, contracted where German contracts (im Garten), though not before a relative clause."""
    words = [preposition, *phrase(np, case)]
    short = CONTRACTIONS.get(" ".join(words[:2])) if np.determiner in ("the", "of") and not np.relative else None
    return [short, *words[2:]] if short else words


def relative(clause: Clause, col: int) -> list[str]:
    """A relative clause, its pronoun in the gap's case and the head's gender and number."""
    frame = clause.frame
    case = {"subject": "nom", "object": frame.case or "acc", "recipient": "dat"}[clause.gap]
    pronoun = RELATIVE[case].split()[col]
    opening = [frame.preposition, pronoun] if clause.gap == "object" and frame.preposition else [pronoun]
    return opening + subordinate(clause)


def finite(verb: Verb, np: Phrase) -> str:
    """The present-tense form that agrees with the subject."""
    if np.number == "pl":
        return verb.infinitive
    if np.person == 1:
        stem = verb.infinitive
        if stem.endswith("eln"):
            return stem[:-3] + "le"
        return stem[:-1] + "e" if stem.endswith("ern") else stem[:-2] + "e"
    if np.person == 2:
        bare = verb.third[:-1]
        return SECOND_PERSON.get(verb.third) or (verb.third if bare[-1] in "sßzx" else bare + "st")
    return verb.third


def helper(name: str, np: Phrase) -> str:
    """A form of sein, haben, werden or a modal that agrees with the subject."""
    return HELPERS[name].split()[3 if np.number == "pl" else np.person - 1]


def verbs(clause: Clause) -> tuple[str, list[str], str]:
    """(finite verb, words of the verb that stand at the end, separable prefix left over by a finite main verb)."""
    verb, subject, tense = clause.frame.verb, clause.subject, clause.tense
    if clause.passive:
        return helper("werden" if tense == "present" else "wurden", subject), [verb.participle], ""
    if verb.infinitive == "sein" and tense in ("present", "past"):
        return helper("sein" if tense == "present" else "war", subject), [], ""
    if tense == "present":
        return finite(verb, subject), [], verb.prefix
    if tense == "past":
        return helper(verb.auxiliary, subject), [verb.participle], ""
    return helper("werden" if tense == "future" else tense, subject), [verb.prefix + verb.infinitive], ""


def where(place: Place, direction: bool) -> list[str]:
    """im Garten; in den Garten."""
    return prepositional(place.preposition, place.phrase, "acc" if direction else "dat")


def negative(np: Phrase) -> Phrase | None:
    """The phrase with kein, where German negates the object rather than the verb."""
    if np.kind == "common" and np.determiner in ("a", "some") and not np.owner:
        return Phrase(**{**vars(np), "determiner": "no"})
    return None


def middle(clause: Clause, without: str = "") -> list[str]:
    """The words between the finite verb and the end: pronouns, adverbs, recipient, object, nicht, the rest."""
    frame = clause.frame
    skip = {clause.gap, without}
    recipient = clause.recipient if "recipient" not in skip else None
    plain = clause.object if "object" not in skip and not frame.preposition and not clause.passive else None
    kein = negative(plain) if plain and clause.negated else None
    early: list[str] = []
    late: list[str] = []
    for np, case in ((recipient, "dat"), (kein or plain, frame.case or "acc")):
        if np:
            (early if np.kind == "pronoun" else late).extend(phrase(np, case))
    adverbs = [word for word in (clause.time if without != "time" else "", clause.frequency) if word]
    words = [*early, *adverbs, *late]
    if clause.passive and clause.object and "object" not in skip:
        words += prepositional("von", clause.object, "dat")
    if clause.negated and not kein:
        words.append("nicht")
    if clause.object and frame.preposition and "object" not in skip:
        words += prepositional(frame.preposition, clause.object, frame.case)
    if clause.predicate:
        words += [clause.predicate.comparative, "als"] if clause.compared else [clause.predicate.base]
    if clause.compared:
        words += phrase(clause.compared, "nom")
    return words + (where(clause.place, clause.direction) if clause.place and "place" not in skip else [])


def subordinate(clause: Clause) -> list[str]:
    """Subject first, all verbs at the end, the prefix joined again: (dass) der Zug ankommt."""
    verb, end, prefix = verbs(clause)
    opening = [] if clause.gap == "subject" else phrase(clause.subject, "nom")
    return [*opening, *middle(clause), *end, prefix + verb]


def infinitive(clause: Clause) -> list[str]:
    """The clause as a zu-infinitive without its subject: die Tür abzuschließen."""
    verb = clause.frame.verb
    last = [f"{verb.prefix}zu{verb.infinitive}"] if verb.prefix else ["zu", verb.infinitive]
    return [*middle(clause), *last]


def main_clause(clause: Clause, front: list[str] | None = None, moved: str = "") -> list[str]:
    """Verb second: the front (or the subject), the finite verb, the rest, what belongs to the verb at the end.

    An empty front asks: the verb comes first. `moved` is the role that stands in the front.
    """
    verb, end, prefix = verbs(clause)
    subject = [] if clause.gap == "subject" else phrase(clause.subject, "nom")
    tail = [*end, prefix] if prefix else end
    if front is None:
        return [*subject, verb, *middle(clause), *tail]
    return [*front, verb, *subject, *middle(clause, moved), *tail]


def fronted(sentence: Sentence) -> list[str] | None:
    """The words that stand before the verb instead of the subject."""
    clause = sentence.main
    if sentence.front == "time":
        return [clause.time]
    if sentence.front == "object" and clause.object:
        return phrase(clause.object, clause.frame.case or "acc")
    if sentence.front == "recipient" and clause.recipient:
        return phrase(clause.recipient, "dat")
    return None


def words(sentence: Sentence) -> list[str]:
    """The whole sentence as words and commas."""
    main, second, joiner = sentence.main, sentence.second, sentence.joiner[0]
    match sentence.construction:
        case "question":
            return [*main_clause(main, []), "?"]
        case "asking":
            return [*main_clause(main, [QUESTION[sentence.joiner[1]]]), "?"]
        case "before" if second:
            front = [joiner, *subordinate(second), ","]
            return [*main_clause(main, front), "."]
        case "infinitive" if second:
            return [*main_clause(main), ",", *([joiner] if joiner else []), *infinitive(second), "."]
        case "coordinate" if second:
            comma = [] if joiner == "und" else [","]
            return [*main_clause(main), *comma, joiner, *main_clause(second), "."]
        case _ if second:
            return [*main_clause(main), ",", joiner, *subordinate(second), "."]
    return [*main_clause(main, fronted(sentence), sentence.front), "."]
