"""Minimal pairs: two sentences that differ in one word, one of them English.

After BLiMP (Warstadt et al., 2020): subject and verb, also with a clause or a phrase between them,
determiner and noun, reflexive and antecedent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from firth.data.stories.knowledge import ANIMALS
from firth.data.stories.lexicon import BOYS, COLOURS, GIRLS, JOBS, PLACES, THINGS
from firth.data.stories.morphology import articles, plural, third
from firth.data.stories.word_lists import phrases, words
from firth.data.stories.world import pick


class Pair(NamedTuple):
    """A sentence, the same with one word wrong, and the paradigm they belong to."""

    good: str
    bad: str
    field: str
    term: str
    uid: str


class Names(NamedTuple):
    """Names that a pair may use."""

    girls: Sequence[str]
    boys: Sequence[str]


ALL_NAMES = Names(GIRLS, BOYS)
_PEOPLE = (*JOBS, *words("boy girl child woman man boy girl child neighbour friend"))
_ANIMALS = tuple(animal for animal in ANIMALS if animal != "sheep")
_THINGS = tuple(thing for thing in THINGS if not thing.startswith("pair"))
_VERBS = words("sing laugh work dance sleep wait read run play swim eat smile")
_STATES = words("tired happy hungry old young clever afraid proud busy quiet late")
_LIKES = words("like love know see hear watch follow need")
_ADVERBS = phrases("""every day; in the evening; very well; on Sundays; with great pleasure;
    all day long; at the market; in the garden; when it rains; before lunch""")
_NEAR = phrases("near; behind; next to; in front of; with")
_ACTIONS = words("hurt saw washed helped dressed blamed taught enjoyed warned praised")
_GOT = words("bought found liked sold carried painted lost wanted")
_WHERE = phrases("""in the mirror; after the race; in the kitchen; yesterday; at school;
    on the way home; in the water; before breakfast; without help; again""")
_WOMEN = words("girl woman mother sister grandmother aunt")
_MEN = words("boy man father brother grandfather uncle")


def _noun(rng: Random) -> str:
    return pick(rng, _PEOPLE) if rng.random() < 0.7 else pick(rng, _ANIMALS)


def _number(rng: Random) -> Callable[[str], str]:
    return plural if rng.random() < 0.5 else str


def _verb(number: Callable[[str], str], rng: Random) -> tuple[str, str, str]:
    """Draw the right form, the wrong form and what follows: "sings", "sing", "every day"."""
    kind = rng.random()
    if kind < 0.5:
        verb = pick(rng, _VERBS)
        forms, rest = (verb, third(verb)), pick(rng, _ADVERBS)
    else:
        forms = ("are", "is") if kind < 0.75 else ("were", "was")
        rest = pick(rng, _STATES)
    right, wrong = forms if number is plural else forms[::-1]
    return right, wrong, rest


def _subject_verb(rng: Random, names: Names) -> Pair:
    number = _number(rng)
    verb = _verb(number, rng)
    return _pair(f"The {number(_noun(rng))}", *verb, "subject_verb: regular_subject_verb")


def _across_phrase(rng: Random, names: Names) -> Pair:
    number = _number(rng)
    other = str if number is plural else plural
    verb = _verb(number, rng)
    subject = f"The {number(_noun(rng))} {pick(rng, _NEAR)} the {other(_noun(rng))}"
    return _pair(subject, *verb, "subject_verb: distractor_prepositional_phrase")


def _across_clause(rng: Random, names: Names) -> Pair:
    number = _number(rng)
    other = str if number is plural else plural
    verb = _verb(number, rng)
    likes = pick(rng, _LIKES)
    likes = likes if number is plural else third(likes)
    subject = f"The {number(_noun(rng))} that {likes} the {other(_noun(rng))}"
    return _pair(subject, *verb, "subject_verb: distractor_relative_clause")


def _determiner(rng: Random, names: Names) -> Pair:
    number = _number(rng)
    name = pick(rng, (*names.girls, *names.boys))
    right, wrong = pick(rng, (("these", "this"), ("those", "that")))
    if number is str:
        right, wrong = wrong, right
    colour = f"{pick(rng, COLOURS)} " if rng.random() < 0.5 else ""
    verb = pick(rng, _GOT)
    rest = f"{colour}{number(pick(rng, _THINGS))}{pick(rng, ('', f' at the {pick(rng, PLACES)}'))}"
    uid = "determiner_noun_with_adjective" if colour else "determiner_noun"
    return _pair(f"{name} {verb}", right, wrong, rest, f"determiner_noun: {uid}")


def _gender(rng: Random, names: Names) -> Pair:
    female = rng.random() >= 0.5
    right, wrong = ("herself", "himself") if female else ("himself", "herself")
    called, nouns = (names.girls, _WOMEN) if female else (names.boys, _MEN)
    subject = pick(rng, called) if rng.random() < 0.6 else f"The {pick(rng, nouns)}"
    if rng.random() < 0.3 and " " in subject:
        subject += f" who {pick(rng, ('knew', 'saw', 'liked'))} the {_noun(rng)}"
    return _reflexive(rng, subject, right, wrong, "gender")


def _reflexive_number(rng: Random, names: Names) -> Pair:
    if rng.random() < 0.5:
        wrong = pick(rng, ("herself", "himself"))
        return _reflexive(rng, f"The {plural(_noun(rng))}", "themselves", wrong, "number")
    female = rng.random() < 0.5
    right, called = ("herself", names.girls) if female else ("himself", names.boys)
    return _reflexive(rng, pick(rng, called), right, "themselves", "number")


def _reflexive(rng: Random, subject: str, right: str, wrong: str, kind: str) -> Pair:
    start = f"{subject} {pick(rng, _ACTIONS)}"
    return _pair(start, right, wrong, pick(rng, _WHERE), f"anaphor: anaphor_{kind}_agreement")


def _pair(start: str, right: str, wrong: str, rest: str, paradigm: str) -> Pair:
    good, bad = (articles(f"{start} {word} {rest}.") for word in (right, wrong))
    term, uid = paradigm.split(": ")
    return Pair(good, bad, "morphology", f"{term}_agreement", uid)


_PARADIGMS = (
    _subject_verb,
    _across_phrase,
    _across_clause,
    _determiner,
    _gender,
    _reflexive_number,
)


def minimal_pair(rng: Random, names: Names = ALL_NAMES) -> Pair:
    """Draw a minimal pair of any of the paradigms, about people with one of the names.

    >>> pair = minimal_pair(Random(3))
    >>> pair.good, pair.bad.split()[5]
    ('The baker with the pilots runs at the market.', 'run')
    """
    return pick(rng, _PARADIGMS)(rng, names)
