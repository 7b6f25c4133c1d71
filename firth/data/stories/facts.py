"""What is true in the small world: relations between words, and the ways to say and to ask them.

A relation is a table of pairs (x, y) with frames for statements and questions. Narration, lessons
and labelled examples all draw from here, so a fact is the same wherever it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from firth.data.stories.knowledge import (
    ANIMALS,
    COLOURS_OF,
    COUNTRIES,
    COUNTS,
    FOOD_OF,
    HOME_OF,
    KINDS,
    OPPOSITES,
    SEASONS,
    TOOLS,
    WEIGHTED_COUNTRIES,
)
from firth.data.stories.lexicon import JOBS, SHOPS, WEEKDAYS
from firth.data.stories.morphology import plural, third
from firth.data.stories.world import pick


@dataclass(frozen=True)
class Relation:
    """Pairs of words that belong together, with frames for telling and asking."""

    topic: str
    pairs: tuple[tuple[str, str], ...]
    statements: tuple[str, ...]  # {x} and {y} are filled in
    questions: tuple[str, ...]  # {x} is filled in; the answer is y
    answer: str = "{y}"  # how y is said on its own


@dataclass(frozen=True)
class Fact:
    """One true thing: a statement without its full stop, a question, its answer, a wrong answer."""

    topic: str
    statement: str
    restated: str  # the same in other words, where there are any
    question: str
    answer: str
    wrong: str
    false: str  # the statement with the wrong answer


_DAYS = tuple(zip(WEEKDAYS, (*WEEKDAYS[1:], WEEKDAYS[0]), strict=True))
_BUYABLE = tuple(
    (item, shop)
    for shop, items in SHOPS.items()
    for item in items.split()
    if item not in ("ice", "cream")
)

RELATIONS = {
    "capital": Relation(
        "travel",
        tuple((x, COUNTRIES[x][0]) for x in WEIGHTED_COUNTRIES),
        (
            "{y} is the capital of {x}",
            "the capital of {x} is {y}",
            "the capital of {x} is {y}",
            "the capital city of {x} is {y}",
            "the capital of {x} is called {y}",
            "the capital of {x} is of course {y}",
            "{x} has {y} as its capital",
            "{x}'s capital is {y}",
            "{y} is {x}'s capital city",
        ),
        (
            "What is the capital of {x}?",
            "Which city is the capital of {x}?",
            "What is {x}'s capital called?",
        ),
    ),
    "language": Relation(
        "travel",
        tuple((x, row[2]) for x, row in COUNTRIES.items()),
        ("people in {x} speak {y}", "in {x} they speak {y}", "{y} is spoken in {x}"),
        ("What language do people speak in {x}?", "Which language is spoken in {x}?"),
    ),
    "sound": Relation(
        "animals",
        tuple((plural(animal), row[0]) for animal, row in ANIMALS.items()),
        ("{x} {y}", "it is {x} that {y}", "all {x} {y}", "{x} {y} when they want something"),
        ("What do {x} do when they want to be heard?", "What sound do {x} make?"),
        "they {y}",
    ),
    "food": Relation(
        "animals",
        tuple((plural(animal), food) for animal, food in FOOD_OF.items()),
        ("{x} eat {y}", "{x} like to eat {y}", "{x} feed on {y}", "{y} are what {x} eat"),
        ("What do {x} eat?", "What do {x} like to eat?"),
    ),
    "young": Relation(
        "animals",
        tuple((animal, row[3]) for animal, row in ANIMALS.items() if row[3] != "-"),
        ("a young {x} is called a {y}", "a {y} is a young {x}", "a baby {x} is a {y}"),
        ("What is a young {x} called?", "What do we call a baby {x}?"),
        "a {y}",
    ),
    "shop": Relation(
        "money",
        _BUYABLE,
        (
            "you can buy {x} at the {y}",
            "the {y} sells {x}",
            "{x} are sold at the {y}",
            "one buys {x} at the {y}",
        ),
        ("Where can you buy {x}?", "Where do people buy {x}?"),
        "at the {y}",
    ),
    "colour": Relation(
        "school",
        tuple(COLOURS_OF.items()),
        ("{x} is {y}", "{x} is usually {y}", "the colour of {x} is {y}"),
        ("What colour is {x}?",),
    ),
    "opposite": Relation(
        "school",
        tuple(OPPOSITES.items()) + tuple((b, a) for a, b in OPPOSITES.items()),
        (
            "the opposite of {x} is {y}",
            "{y} is the opposite of {x}",
            "{x} means the opposite of {y}",
        ),
        ("What is the opposite of {x}?",),
    ),
    "tool": Relation(
        "school",
        tuple(TOOLS.items()),
        (
            "you need a {x} to {y}",
            "a {x} is used to {y}",
            "people use a {x} to {y}",
            "with a {x} you can {y}",
        ),
        ("What do you do with a {x}?", "What is a {x} for?"),
        "you {y} with it",
    ),
    "job": Relation(
        "school",
        tuple((job, row[1]) for job, row in JOBS.items()),
        ("a {x} has to {y}", "it is the work of a {x} to {y}", "a {x} is paid to {y}"),
        ("What does a {x} do?", "What is the work of a {x}?"),
        "to {y}",
    ),
    "season": Relation(
        "weather",
        tuple((row[0], season) for season, row in SEASONS.items()),
        ("{x} in {y}", "in {y} {x}", "{y} is the time when {x}"),
        ("When is it that {x}?", "In which season can we say that {x}?"),
        "in {y}",
    ),
    "month": Relation(
        "weather",
        tuple((row[1], season) for season, row in SEASONS.items()),
        ("{x} is a month of {y}", "{x} belongs to {y}"),
        ("Which season does {x} belong to?",),
    ),
    "kind": Relation(
        "school",
        tuple(KINDS.items()),
        ("a {x} is a {y}", "every {x} is a {y}", "a {x} is a kind of {y}"),
        ("What is a {x}?", "What kind of thing is a {x}?"),
        "a {y}",
    ),
    "count": Relation(
        "school",
        tuple(COUNTS.items()),
        ('the answer to "how many {x}" is {y}',),
        ("How many {x}?",),
    ),
    "day": Relation(
        "school",
        _DAYS,
        ("{y} comes after {x}", "the day after {x} is {y}", "{x} is followed by {y}"),
        ("Which day comes after {x}?", "What is the day after {x}?"),
    ),
    "sun": Relation(
        "weather",
        (
            ("rise", "east"),
            ("come up", "east"),
            ("rise", "east"),
            ("set", "west"),
            ("go down", "west"),
        ),
        (
            "the sun {x} in the {y}",
            "each day the sun {x} in the {y}",
            "the sun always {x} in the {y}",
            "in the {y} the sun {x}",
            "the sun, as everyone can see, {x} in the {y}",
            "the sun {x} each day in the {y}",
            "the {y} is where the sun {x}",
        ),
        ("Where does the sun {x}?", "On which side does the sun {x}?"),
        "in the {y}",
    ),
    "home": Relation(
        "animals",
        tuple(
            (animal, home)
            for animal, home in HOME_OF.items()
            if home not in ("water", "ice", "grass")
        ),
        ("a {x} lives in a {y}", "the home of a {x} is a {y}", "you may find a {x} in a {y}"),
        ("Where does a {x} live?", "Where does a {x} feel at home?"),
        "in a {y}",
    ),
}


def fact(rng: Random, relation: str) -> Fact:
    """Draw one true thing of a relation.

    >>> fact(Random(2), "colour").question
    'What colour is a fire engine?'
    """
    table = RELATIONS[relation]
    x, y = pick(rng, table.pairs)
    wrong = pick(rng, table.pairs)[1]
    while wrong == y:
        wrong = pick(rng, table.pairs)[1]
    frames = [frame for frame in table.statements if (x, frame) not in HELD_OUT]
    frame, again = rng.sample(frames, 2) if len(frames) > 1 else frames * 2
    said = third(x) if relation == "sun" else x
    return Fact(
        table.topic,
        _mend(frame.format(x=said, y=y)),
        _mend(again.format(x=said, y=y)),
        _mend(pick(rng, table.questions).format(x=x)),
        _mend(table.answer.format(y=y)),
        _mend(table.answer.format(y=wrong)),
        _mend(frame.format(x=said, y=wrong)),
    )


# Statements that are kept for tests: all that surrounds them is told.
HELD_OUT = {
    ("France", "the capital of {x} is {y}"),
    ("rise", "the sun {x} in the {y}"),
    ("rise", "each day the sun {x} in the {y}"),
}

_MASS = (
    "milk",
    "sugar",
    "flour",
    "salt",
    "rice",
    "butter",
    "cheese",
    "tea",
    "bread",
    "meat",
    "ham",
    "chicken",
    "fish",
    "medicine",
    "soap",
    "paint",
    "rope",
    "goldfish",
    "grass",
    "hay",
    "corn",
    "nectar",
    "honey",
    "bamboo",
)
_THE = ("sea", "jungle", "mountains", "desert", "savanna", "forest")


def _mend(text: str) -> str:
    """Put right what a frame cannot know: mass nouns, and homes there is only one of."""
    for word in _THE:
        if text.endswith(f" a {word}"):
            return f"{text.removesuffix(f'a {word}')}the {word}"
    for word in _MASS:
        if text.startswith(f"{word} are "):
            return text.replace(" are ", " is ", 1)
    for word in ("copper", "iron", "soap"):
        text = text.replace(f"a {word}", word).replace(f"every {word}", word)
    return text
