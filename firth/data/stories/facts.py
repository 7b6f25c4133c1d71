"""True statements: relations between words, with templates for statements and questions.

Narration, lessons and labelled examples all draw from here, so no story contradicts another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from firth.data.stories import knowledge, lexicon
from firth.data.stories.morphology import plural, third
from firth.data.stories.probes import held_out
from firth.data.stories.word_lists import phrases, words
from firth.data.stories.world import pick


@dataclass(frozen=True)
class Relation:
    """Pairs (x, y) of words that belong together, with templates, separated by semicolons."""

    pairs: tuple[tuple[str, str], ...]
    statements: str
    questions: str  # about x; the answer is y
    answer: str = "{y}"


@dataclass(frozen=True)
class Fact:
    """A true statement without its full stop, a question, its answer and a wrong answer."""

    statement: str
    question: str
    answer: str
    wrong: str


_DAYS = tuple(zip(lexicon.WEEKDAYS, (*lexicon.WEEKDAYS[1:], lexicon.WEEKDAYS[0]), strict=True))
_GOODS = tuple(
    (item, shop)
    for shop, items in lexicon.SHOPS.items()
    for item in items.split()
    if item not in ("ice", "cream")
)
_HOMES = tuple(
    (animal, home)
    for animal, home in knowledge.HOME_OF.items()
    if home not in ("water", "ice", "grass")
)
_SUN = (
    ("rise", "east"),
    ("come up", "east"),
    ("rise", "east"),
    ("set", "west"),
    ("go down", "west"),
)

RELATIONS = {
    "capital": Relation(
        tuple((x, knowledge.COUNTRIES[x][0]) for x in knowledge.WEIGHTED_COUNTRIES),
        """{y} is the capital of {x}; the capital of {x} is {y}; the capital of {x} is {y};
        the capital city of {x} is {y}; the capital of {x} is called {y};
        the capital of {x} is of course {y}; {x} has {y} as its capital; {x}'s capital is {y};
        {y} is {x}'s capital city""",
        """What is the capital of {x}?; Which city is the capital of {x}?;
        What is {x}'s capital called?""",
    ),
    "language": Relation(
        tuple((x, row[2]) for x, row in knowledge.COUNTRIES.items()),
        "people in {x} speak {y}; in {x} they speak {y}; {y} is spoken in {x}",
        "What language do people speak in {x}?; Which language is spoken in {x}?",
    ),
    "sound": Relation(
        tuple((plural(animal), row[0]) for animal, row in knowledge.ANIMALS.items()),
        "{x} {y}; it is {x} that {y}; all {x} {y}; {x} {y} when they want something",
        "What do {x} do when they want to be heard?; What sound do {x} make?",
        "they {y}",
    ),
    "food": Relation(
        tuple((plural(animal), food) for animal, food in knowledge.FOOD_OF.items()),
        "{x} eat {y}; {x} like to eat {y}; {x} feed on {y}; {y} are what {x} eat",
        "What do {x} eat?; What do {x} like to eat?",
    ),
    "young": Relation(
        tuple((animal, row[3]) for animal, row in knowledge.ANIMALS.items() if row[3] != "-"),
        "a young {x} is called a {y}; a {y} is a young {x}; a baby {x} is a {y}",
        "What is a young {x} called?; What do we call a baby {x}?",
        "a {y}",
    ),
    "shop": Relation(
        _GOODS,
        """you can buy {x} at the {y}; the {y} sells {x}; {x} are sold at the {y};
        one buys {x} at the {y}""",
        "Where can you buy {x}?; Where do people buy {x}?",
        "at the {y}",
    ),
    "colour": Relation(
        tuple(knowledge.COLOURS_OF.items()),
        "{x} is {y}; {x} is usually {y}; the colour of {x} is {y}",
        "What colour is {x}?",
    ),
    "opposite": Relation(
        tuple(knowledge.OPPOSITES.items()) + tuple((b, a) for a, b in knowledge.OPPOSITES.items()),
        "the opposite of {x} is {y}; {y} is the opposite of {x}; {x} means the opposite of {y}",
        "What is the opposite of {x}?",
    ),
    "tool": Relation(
        tuple(knowledge.TOOLS.items()),
        """you need a {x} to {y}; a {x} is used to {y}; people use a {x} to {y};
        with a {x} you can {y}""",
        "What do you do with a {x}?; What is a {x} for?",
        "you {y} with it",
    ),
    "job": Relation(
        tuple((job, row[1]) for job, row in lexicon.JOBS.items()),
        "a {x} has to {y}; it is the work of a {x} to {y}; a {x} is paid to {y}",
        "What does a {x} do?; What is the work of a {x}?",
        "to {y}",
    ),
    "season": Relation(
        tuple((row[0], season) for season, row in knowledge.SEASONS.items()),
        "{x} in {y}; in {y} {x}; {y} is the time when {x}",
        "When is it that {x}?; In which season can we say that {x}?",
        "in {y}",
    ),
    "month": Relation(
        tuple((row[1], season) for season, row in knowledge.SEASONS.items()),
        "{x} is a month of {y}; {x} belongs to {y}",
        "Which season does {x} belong to?",
    ),
    "kind": Relation(
        tuple(knowledge.KINDS.items()),
        "a {x} is a {y}; every {x} is a {y}; a {x} is a kind of {y}",
        "What is a {x}?; What kind of thing is a {x}?",
        "a {y}",
    ),
    "count": Relation(
        tuple(knowledge.COUNTS.items()), 'the answer to "how many {x}" is {y}', "How many {x}?"
    ),
    "day": Relation(
        _DAYS,
        "{y} comes after {x}; the day after {x} is {y}; {x} is followed by {y}",
        "Which day comes after {x}?; What is the day after {x}?",
    ),
    "sun": Relation(
        _SUN,
        """the sun {x} in the {y}; each day the sun {x} in the {y};
        the sun always {x} in the {y}; in the {y} the sun {x};
        the sun, as everyone can see, {x} in the {y}; the sun {x} each day in the {y};
        the {y} is where the sun {x}""",
        "Where does the sun {x}?; On which side does the sun {x}?",
        "in the {y}",
    ),
    "home": Relation(
        _HOMES,
        "a {x} lives in a {y}; the home of a {x} is a {y}; you may find a {x} in a {y}",
        "Where does a {x} live?; Where does a {x} feel at home?",
        "in a {y}",
    ),
}


@cache
def statements(name: str, x: str, y: str) -> tuple[str, ...]:
    """Return the statements that x and y are related, without those that are held out.

    >>> statements("capital", "France", "Paris")[:2]
    ('Paris is the capital of France', 'the capital city of France is Paris')
    """
    inflected = third(x) if name == "sun" else x
    found = [
        _correct(template.format(x=inflected, y=y))
        for template in phrases(RELATIONS[name].statements)
    ]
    return tuple(statement for statement in found if not held_out(statement))


def fact(rng: Random, name: str) -> Fact:
    """Draw a true statement of a relation.

    >>> fact(Random(2), "colour").question
    'What colour is a fire engine?'
    """
    relation = RELATIONS[name]
    x, y = pick(rng, relation.pairs)
    wrong = pick(rng, relation.pairs)[1]
    while wrong == y:
        wrong = pick(rng, relation.pairs)[1]
    return Fact(
        pick(rng, statements(name, x, y)),
        _correct(pick(rng, phrases(relation.questions)).format(x=x)),
        _correct(relation.answer.format(y=y)),
        _correct(relation.answer.format(y=wrong)),
    )


_MASS = words("""milk sugar flour salt rice butter cheese tea bread meat ham chicken fish medicine
    soap paint rope goldfish grass hay corn nectar honey bamboo""")
_WITH_THE = ("sea", "jungle", "mountains", "desert", "savanna", "forest")


def _correct(text: str) -> str:
    """Correct the grammar of mass nouns and of homes that take "the"."""
    for word in _WITH_THE:
        if text.endswith(f" a {word}"):
            return f"{text.removesuffix(f'a {word}')}the {word}"
    for word in _MASS:
        if text.startswith(f"{word} are "):
            return text.replace(" are ", " is ", 1)
    for word in ("copper", "iron", "soap"):
        text = text.replace(f"a {word}", word).replace(f"every {word}", word)
    return text
