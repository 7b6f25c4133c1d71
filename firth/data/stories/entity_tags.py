"""Named entities in IOB2 tags: people and pets PER, places LOC, groups ORG, the rest MISC."""

from __future__ import annotations

import re
from collections.abc import Iterable

from firth.data.stories import lexicon
from firth.data.stories.knowledge import COUNTRIES

Tagged = list[tuple[str, str]]

_TOKEN = re.compile(r"o'clock|\w+(?:-\w+)*|'s\b|[^\w\s]")
NATIONS = {word for row in COUNTRIES.values() for word in row[1:3]}  # adjectives, languages
_CAPITALS = {row[0] for row in COUNTRIES.values()}
_LOCATIONS = lexicon.TOWNS + lexicon.RIVERS + lexicon.LAKES + lexicon.STREETS
_NAMES: dict[tuple[str, ...], str] = {
    tuple(name.split()): tag
    for tag, names in (
        ("LOC", (*_LOCATIONS, *COUNTRIES, *_CAPITALS)),
        ("ORG", (*lexicon.SCHOOLS, *lexicon.TEAMS, *lexicon.COMPANIES, *lexicon.BANDS)),
        ("MISC", (*lexicon.BOOKS, *lexicon.FESTIVALS, *NATIONS)),
    )
    for name in names
}
_LONGEST = max(map(len, _NAMES))
_PEOPLE = frozenset(lexicon.GIRLS + lexicon.BOYS)
_SURNAMES = frozenset(lexicon.SURNAMES)
_AMBIGUOUS = _PEOPLE & {name[0] for name in _NAMES if len(name) == 1}  # Jordan
_COUNTRY_CONTEXT = re.compile(r"\b(capital|speak|spoken|spoke|language|in|to|see|from)\b")


def tokenize(sentence: str) -> list[str]:
    """Split a sentence into words and punctuation marks.

    >>> tokenize('"Anna\\'s kite," he said.')
    ['"', 'Anna', "'s", 'kite', ',', '"', 'he', 'said', '.']
    """
    return _TOKEN.findall(sentence)


def tag(sentence: str, people: Iterable[str], pets: Iterable[str]) -> Tagged | None:
    """Tag the tokens of a sentence; `people` and `pets` are the names in the story.

    Return None for a sentence with an ambiguous name (Jordan).

    >>> tag("Anna Hill lives in New York.", ["Anna"], [])[:3]
    [('Anna', 'B-PER'), ('Hill', 'I-PER'), ('lives', 'O')]
    """
    tokens = tokenize(sentence)
    cast = set(people)
    if any(t in _AMBIGUOUS and t in cast for t in tokens) and _COUNTRY_CONTEXT.search(sentence):
        return None
    named = (cast | set(pets) | _PEOPLE) - (_AMBIGUOUS - cast)
    tags = []
    i = 0
    while i < len(tokens):
        length, label = _name_at(tokens, i, named)
        tags += [f"B-{label}", *[f"I-{label}"] * (length - 1)] if label else ["O"]
        i += length
    return list(zip(tokens, tags, strict=True))


def _name_at(tokens: list[str], i: int, named: set[str]) -> tuple[int, str]:
    """Return the number of tokens of the name at i and its label."""
    if not tokens[i][0].isupper():
        return 1, ""
    for length in range(_LONGEST, 1, -1):
        if label := _NAMES.get(tuple(tokens[i : i + length])):
            return length, label
    if tokens[i] in named:
        return (2 if i + 1 < len(tokens) and tokens[i + 1] in _SURNAMES else 1), "PER"
    return 1, _NAMES.get((tokens[i],), "")
