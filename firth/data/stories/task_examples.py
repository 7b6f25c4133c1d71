"""Labelled examples from a story; the builder knows what is true, so the labels are right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from firth.data.stories import events
from firth.data.stories.agreement import Pair, minimal_pair
from firth.data.stories.entity_tags import Tagged, tag
from firth.data.stories.events import Event
from firth.data.stories.lexicon import COLOURS, HIDING, PLACES, THINGS, WEEKDAYS
from firth.data.stories.morphology import articles, participle, past
from firth.data.stories.pos_tags import pos_tags
from firth.data.stories.reviews import review
from firth.data.stories.story_builder import Question, StoryBuilder
from firth.data.stories.word_lists import phrases
from firth.data.stories.world import StoryEntity, pick

SHORT = 8  # words: sentences with at most as many may occur in other stories


@dataclass(frozen=True)
class Answer:
    """A question about a text, its answer and the answer's offset in the text."""

    question: str
    text: str
    start: int


@dataclass(frozen=True)
class Examples:
    """The labelled examples of one story, by task."""

    sentiment: tuple[tuple[str, str], ...] = ()
    topic: tuple[tuple[str, str], ...] = ()
    entities: tuple[Tagged, ...] = ()
    questions: tuple[Answer, ...] = ()
    entailment: tuple[tuple[str, str, str], ...] = ()
    summary: tuple[tuple[str, str], ...] = ()
    rewrite: tuple[tuple[str, str], ...] = ()
    agreement: tuple[Pair, ...] = ()

    @property
    def pos(self) -> tuple[Tagged, ...]:
        """The sentences of `entities` with part-of-speech tags."""
        tagged = map(pos_tags, self.entities)
        return tuple(sentence for sentence in tagged if sentence)


def examples(t: StoryBuilder) -> Examples:
    """Make the labelled examples of a finished story."""
    questions = _questions(t)
    invented = [_invent(t) for _ in range(2)]
    return Examples(
        sentiment=tuple(_sentiment(t)),
        topic=tuple(_topics(t)),
        entities=tuple(_entities(t)),
        questions=tuple(questions),
        entailment=tuple(_entailment(t, [*t.events[:2], *invented])),
        summary=((" ".join(t.sentences), t.summary),),
        rewrite=tuple(_rewrites(t, [*t.events[:2], *invented])),
        agreement=tuple(minimal_pair(t.rng) for _ in range(2)),
    )


def _sentiment(t: StoryBuilder) -> list[tuple[str, str]]:
    """Write a positive and a negative review, in random order."""
    signs = (True, False) if t.chance(0.5) else (False, True)
    return [(review(t, sign), "positive" if sign else "negative") for sign in signs]


TOPICS = {
    topic: re.compile(rf"\b(?:{words})", re.IGNORECASE)
    for topic, words in {
        "animals": "dog|cat|bats?\\b|bark|meow|animal|hen|cow|sheep|horse|goat|farm|barn|fox|bear|"
        "wolf|rabbit|"
        "squirrel|mouse|mice|donkey|lion|monkey|deer|frog|parrot|mailman|eat|food",
        "cooking": "cook|kitchen|eat|ate|pot|pan|bowl|stir|taste|flour|salt|sugar|butter|eggs|"
        "soup|cake|pie|salad|"
        "pancakes|noodles|burnt|dish|chop|peel",
        "travel": "travel|journey|capital|train|bus|plane|ship|packed|city|country|postcard|tent|"
        "fire|night|museum",
        "weather": "rain|sun|storm|cloud|snow|fog|thunder|wind|flood|river|water|hail|weather|sky",
        "school": "school|teacher|test|quiz|question|asked|answer|class|correct|right|wrong",
        "music": "band|song|music|play|piano|violin|flute|guitar|trumpet|drum|harp|cello|record|"
        "sing|note|string",
        "money": "money|coin|buy|bought|paid|bank|shop|store|cost|market|purse|wallet|sell|sold|"
        "basket",
        "sport": "race|match|won|win|ball|team|train|medal|cup|record|ahead|fast|line|score|"
        "bat\\b|game",
    }.items()
}


def _topics(t: StoryBuilder) -> list[tuple[str, str]]:
    """Select the two passages with the most words of the story's topic."""
    if not t.topic:
        return []
    hits = [len(TOPICS[t.topic].findall(sentence)) for sentence in t.sentences]
    half = len(hits) // 2
    found: list[tuple[str, str]] = []
    for low, high in ((1, half), (half, len(hits))):
        size = 2 if t.chance(0.5) else 3
        starts = range(low, max(low + 1, high - size + 1))
        best = max((sum(hits[i : i + size]), -i) for i in starts)
        if best[0] >= 2:
            found.append((" ".join(t.sentences[-best[1] : size - best[1]]), t.topic))
    return found


def _entities(t: StoryBuilder) -> list[Tagged]:
    """Tag the first sentence and three of the others that no other story contains."""
    people, pets = [p.name for p in t.people], [p.name for p in t.pets]
    first, *rest = t.sentences
    long = [sentence for sentence in rest if len(sentence.split()) > SHORT]
    tagged = [tag(sentence, people, pets) for sentence in (first, *t.sample(long, 3))]
    return [sentence for sentence in tagged if sentence]


def _questions(t: StoryBuilder) -> list[Answer]:
    """Return the plot's questions and those about events, with the offsets of the answers."""
    questions = list(t.questions)
    for event in t.events:
        who, thing = event.subject.name, event.object.definite()
        question = f"Who {past(event.verb)} {thing}{event.rest('tail')}?"
        questions.append(Question(question, who, event.sentence))
        if event.place.startswith(("in ", "on ", "at ", "under ", "behind ")):
            question = f"Where did {who} {event.verb} {thing}?"
            questions.append(Question(question, event.place, event.sentence))
    starts = [0]
    for sentence in t.sentences:
        starts.append(starts[-1] + len(sentence) + 1)
    text = " ".join(t.sentences)
    found = []
    for q in questions:
        pattern = re.compile(rf"\b{re.escape(q.answer)}\b", re.IGNORECASE)
        start, end = starts[q.sentence : q.sentence + 2]
        if match := pattern.search(text, start, end) or pattern.search(text):
            found.append(Answer(q.text, match[0], match.start()))
    return found


# verb: where people do that to things
_DEEDS = {
    "buy": tuple(f"at the {p}" for p in ("market", "harbour", "railway station", "museum")),
    "find": HIDING,
    "hide": HIDING[:12],
    "leave": HIDING,
    "lose": tuple(f"at the {p}" for p in PLACES[:20]),
    "paint": ("in the garden", "in the kitchen", "in the yard"),
    "clean": ("in the kitchen", "behind the house"),
    "draw": tuple(f"at the {p}" for p in PLACES[:18]),
    "sell": ("at the market", "at the harbour", "at a stall"),
    "carry": tuple(f"to the {p}" for p in PLACES[:20]),
    "drop": ("on the stairs", "on the floor", "in the street"),
    "bring": tuple(f"to the {p}" for p in PLACES[:20]),
    "repair": ("in the garage", "in the workshop"),
    "show": ("to a friend", "to the teacher", "to the neighbours", "to a reporter"),
    "steal": tuple(f"from the {p}" for p in ("museum", "castle", "theatre", "church", "library")),
    "break": ("in the kitchen", "at school", "at the party"),
    "borrow": ("from a neighbour", "from the school"),
    "win": ("at the fair", "in a contest"),
    "send": ("to a cousin", "to the newspaper", "to the mayor"),
    "photograph": tuple(f"at the {p}" for p in PLACES[:18]),
}
_TIMES = ("yesterday", "last week", *(f"on {day}" for day in WEEKDAYS))
_TIMES += ("in the morning", "in the evening", "")
_REWRITES = phrases("""active passive; passive active; active question; question statement;
    active negative; negative statement""")


def _invent(t: StoryBuilder) -> Event:
    """Draw another event with people of the story."""
    who = pick(t.rng, t.people) if t.people and t.chance(0.7) else t.cast.person()
    noun = t.pick(tuple(THINGS))
    thing = StoryEntity(noun, adjective=t.cast.adjective(noun))
    verb = t.pick(tuple(_DEEDS))
    return Event(
        who, verb, thing, place=t.pick(_DEEDS[verb]), time=t.pick(_TIMES), new=t.chance(0.5)
    )


def _named(found: list[Event]) -> list[Event]:
    """Select the events of people with a name, without a pronoun."""
    pronoun = re.compile(r"\b(her|his|she|he)\b")
    return [e for e in found if e.subject.name and not pronoun.search(e.rest())]


_FORMS = {
    "active": events.active,
    "statement": events.active,
    "passive": events.passive,
    "question": events.question,
    "negative": events.negative,
}


def _rewrites(t: StoryBuilder, found: list[Event]) -> list[tuple[str, str]]:
    rows = []
    for event in _named(found):
        source, kind = t.pick(_REWRITES).split()
        rows.append((f"{kind}: {_FORMS[source](event)}", _FORMS[kind](event)))
    return rows


def _entailment(t: StoryBuilder, found: list[Event]) -> list[tuple[str, str, str]]:
    return [_judge(t, event) for event in _named(found)]


def _judge(t: StoryBuilder, event: Event) -> tuple[str, str, str]:
    """Write a premise about an event, and a hypothesis with its label."""
    label = t.pick(("entailment", "contradiction", "neutral"))
    who, verb, thing = event.subject.name, past(event.verb), event.object
    the_thing = events.thing(event)
    if t.chance(0.25):
        options: dict[str, tuple[str, ...]] = {
            "entailment": (
                f"It is not true that {_inside(events.active(event))}",
                f"{who} never {verb} {the_thing}{event.rest()}.",
            ),
            "contradiction": (events.active(event), events.passive(event)),
            "neutral": (
                f"{who} {verb} a {_other(t, tuple(THINGS), thing.noun)}{event.rest()}.",
                f"{who} did not want to {event.verb} {the_thing}.",
            ),
        }
        return events.negative(event), articles(t.pick(options[label])), label
    first, second = events.active(event), events.passive(event)
    if not t.chance(0.7):
        first, second = second, first
    bare = replace(event, object=StoryEntity(thing.noun))
    colour = _other(t, COLOURS, thing.adjective)
    rest = event.rest("tail", "place")
    he = "she" if event.subject.gender == "f" else "he"
    options = {
        "entailment": (
            second,
            events.active(bare),
            events.passive(bare),
            f"Somebody {verb} a {thing.noun}{rest}.",
            f"It is not true that nobody {verb} {the_thing}{rest}.",
        ),
        "contradiction": (
            events.negative(event),
            f"Nobody {verb} {the_thing}{rest}{event.rest('time')}.",
            events.negative(event if event.new else bare),
            f"The {thing.noun} was {colour} when {who} {verb} it."
            if thing.adjective in COLOURS
            else f"{the_thing} was {participle(event.verb)} by nobody.",
        ),
        "neutral": (
            f"{who} {verb} the {thing.noun} because {t.pick(_REASONS).format(he=he)}.",
            f"{who} liked the {thing.noun} very much.",
            f"{who} {verb} {the_thing} for the first time.",
            f"Nobody saw that {who} {verb} the {thing.noun}.",
            f"{who} did not like the {thing.noun}.",
            f"Everybody knew that {who} {verb} the {thing.noun}.",
        ),
    }
    hypothesis = t.pick(options[label])
    return first, articles(hypothesis[0].upper() + hypothesis[1:]), label


_REASONS = phrases("""{he} was bored; {he} had promised it; it was raining; {he} was in a hurry;
    a friend had asked for it""")


def _inside(sentence: str) -> str:
    """Lower the first letter of a sentence, unless it is a name's."""
    return sentence[0].lower() + sentence[1:] if sentence.split()[0] in ("A", "The") else sentence


def _other(t: StoryBuilder, options: Sequence[str], value: str) -> str:
    while (other := t.pick(options)) == value:
        pass
    return other
