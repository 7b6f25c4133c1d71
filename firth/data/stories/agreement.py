"""Minimal pairs: two sentences that differ in one word, one of them English.

After BLiMP (Warstadt et al., 2020): subject and verb, also with a clause or a phrase between them,
determiner and noun, reflexive and antecedent.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from firth.data.stories.knowledge import ANIMALS
from firth.data.stories.lexicon import BOYS, COLOURS, GIRLS, JOBS, PLACES, THINGS
from firth.data.stories.morphology import articles, plural, third
from firth.data.stories.world import pick


class Pair(NamedTuple):
    """A sentence, the same with one word wrong, and what that tests."""

    good: str
    bad: str
    field: str
    term: str
    uid: str


_PEOPLE = (
    *JOBS,
    "boy",
    "girl",
    "child",
    "woman",
    "man",
    "boy",
    "girl",
    "child",
    "neighbour",
    "friend",
)
_ANIMALS = tuple(animal for animal in ANIMALS if animal not in ("sheep",))
_THINGS = tuple(thing for thing in THINGS if not thing.startswith("pair"))
_VERBS = (
    "sing",
    "laugh",
    "work",
    "dance",
    "sleep",
    "wait",
    "read",
    "run",
    "play",
    "swim",
    "eat",
    "smile",
)
_STATES = (
    "tired",
    "happy",
    "hungry",
    "old",
    "young",
    "clever",
    "afraid",
    "proud",
    "busy",
    "quiet",
    "late",
)
_LIKES = ("like", "love", "know", "see", "hear", "watch", "follow", "need")
_ADVERBS = (
    "every day",
    "in the evening",
    "very well",
    "on Sundays",
    "with great pleasure",
    "all day long",
    "at the market",
    "in the garden",
    "when it rains",
    "before lunch",
)
_NEAR = ("near", "behind", "next to", "in front of", "with")
_DONE = (
    "hurt",
    "saw",
    "washed",
    "helped",
    "dressed",
    "blamed",
    "taught",
    "enjoyed",
    "warned",
    "praised",
)
_CAUSES = (
    "in the mirror",
    "after the race",
    "in the kitchen",
    "yesterday",
    "at school",
    "on the way home",
    "in the water",
    "before breakfast",
    "without help",
    "again",
)


def _noun(rng: Random) -> str:
    return pick(rng, _PEOPLE) if rng.random() < 0.7 else pick(rng, _ANIMALS)


def _number(rng: Random) -> Callable[[str], str]:
    return plural if rng.random() < 0.5 else str


def _verb(number: Callable[[str], str], rng: Random) -> tuple[str, str, str]:
    """The right form, the wrong form and what follows: "sings", "sing", "every day"."""
    many = number is plural
    kind = rng.random()
    if kind < 0.5:
        verb = pick(rng, _VERBS)
        forms, rest = (verb, third(verb)), pick(rng, _ADVERBS)
    elif kind < 0.75:
        forms, rest = ("are", "is"), pick(rng, _STATES)
    else:
        forms, rest = ("were", "was"), pick(rng, _STATES)
    right, wrong = forms if many else forms[::-1]
    return right, wrong, rest


def _subject_verb(rng: Random) -> Pair:
    number = _number(rng)
    right, wrong, rest = _verb(number, rng)
    subject = f"The {number(_noun(rng))}"
    return _pair(
        subject, right, wrong, rest, "morphology", "subject_verb_agreement", "regular_subject_verb"
    )


def _across_phrase(rng: Random) -> Pair:
    number = _number(rng)
    other = str if number is plural else plural
    right, wrong, rest = _verb(number, rng)
    subject = f"The {number(_noun(rng))} {pick(rng, _NEAR)} the {other(_noun(rng))}"
    return _pair(
        subject,
        right,
        wrong,
        rest,
        "morphology",
        "subject_verb_agreement",
        "distractor_prepositional_phrase",
    )


def _across_clause(rng: Random) -> Pair:
    number = _number(rng)
    other = str if number is plural else plural
    right, wrong, rest = _verb(number, rng)
    likes = pick(rng, _LIKES)
    likes = likes if number is plural else third(likes)
    subject = f"The {number(_noun(rng))} that {likes} the {other(_noun(rng))}"
    return _pair(
        subject,
        right,
        wrong,
        rest,
        "morphology",
        "subject_verb_agreement",
        "distractor_relative_clause",
    )


def _determiner(rng: Random) -> Pair:
    number = _number(rng)
    name = pick(rng, GIRLS + BOYS)
    right, wrong = pick(rng, (("these", "this"), ("those", "that")))
    if number is str:
        right, wrong = wrong, right
    colour = f"{pick(rng, COLOURS)} " if rng.random() < 0.5 else ""
    verb = pick(rng, ("bought", "found", "liked", "sold", "carried", "painted", "lost", "wanted"))
    rest = f"{colour}{number(pick(rng, _THINGS))}{pick(rng, ('', f' at the {pick(rng, PLACES)}'))}"
    return _pair(
        f"{name} {verb}",
        right,
        wrong,
        rest,
        "morphology",
        "determiner_noun_agreement",
        "determiner_noun_with_adjective" if colour else "determiner_noun",
    )


def _gender(rng: Random) -> Pair:
    right, wrong = "herself", "himself"
    names, nouns = GIRLS, ("girl", "woman", "mother", "sister", "grandmother", "aunt")
    if rng.random() < 0.5:
        right, wrong = wrong, right
        names, nouns = BOYS, ("boy", "man", "father", "brother", "grandfather", "uncle")
    subject = pick(rng, names) if rng.random() < 0.6 else f"The {pick(rng, nouns)}"
    if rng.random() < 0.3:
        subject += (
            f" who {pick(rng, ('knew', 'saw', 'liked'))} the {_noun(rng)}" if " " in subject else ""
        )
    return _pair(
        f"{subject} {pick(rng, _DONE)}",
        right,
        wrong,
        pick(rng, _CAUSES),
        "morphology",
        "anaphor_agreement",
        "anaphor_gender_agreement",
    )


def _reflexive_number(rng: Random) -> Pair:
    if rng.random() < 0.5:
        right, wrong, subject = (
            "themselves",
            pick(rng, ("herself", "himself")),
            f"The {plural(_noun(rng))}",
        )
    else:
        girl = rng.random() < 0.5
        right, wrong = ("herself" if girl else "himself"), "themselves"
        subject = pick(rng, GIRLS if girl else BOYS)
    return _pair(
        f"{subject} {pick(rng, _DONE)}",
        right,
        wrong,
        pick(rng, _CAUSES),
        "morphology",
        "anaphor_agreement",
        "anaphor_number_agreement",
    )


def _pair(start: str, right: str, wrong: str, rest: str, field: str, term: str, uid: str) -> Pair:
    good, bad = (articles(f"{start} {word} {rest}.") for word in (right, wrong))
    return Pair(good, bad, field, term, uid)


_PARADIGMS = (
    _subject_verb,
    _across_phrase,
    _across_clause,
    _determiner,
    _gender,
    _reflexive_number,
)


def minimal_pair(rng: Random) -> Pair:
    """Draw a minimal pair of any of the paradigms.

    >>> pair = minimal_pair(Random(3))
    >>> pair.good, pair.bad.split()[5]
    ('The baker with the pilots runs at the market.', 'run')
    """
    return pick(rng, _PARADIGMS)(rng)
