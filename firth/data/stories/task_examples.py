"""Labelled examples from a story: the teller knows what is true, so the labels are right."""

from __future__ import annotations

import re
from dataclasses import dataclass

from firth.data.stories import events
from firth.data.stories.agreement import Pair, minimal_pair
from firth.data.stories.entity_tags import Tagged, tag
from firth.data.stories.events import Event
from firth.data.stories.lexicon import COLOURS, HIDING, PLACES, THINGS, WEEKDAYS
from firth.data.stories.morphology import articles, participle, past
from firth.data.stories.reviews import review
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.world import StoryEntity, pick


@dataclass(frozen=True)
class Answer:
    """A question about a text, and where in it the answer stands."""

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


def examples(t: StoryBuilder) -> Examples:
    """All labelled examples of a story that has been told."""
    text = " ".join(t.sentences)
    questions = _questions(t)
    invented = [_invent(t) for _ in range(2)]
    return Examples(
        sentiment=tuple(_sentiment(t)),
        topic=tuple(_topics(t)),
        entities=tuple(_entities(t)),
        questions=tuple(questions),
        entailment=tuple(_entailment(t, [*t.events[:2], *invented])),
        summary=((text, t.summary),),
        rewrite=tuple(_rewrites(t, [*t.events[:2], *invented])),
        agreement=tuple(minimal_pair(t.rng) for _ in range(2)),
    )


def _sentiment(t: StoryBuilder) -> list[tuple[str, str]]:
    """A good and a bad review, in either order."""
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
    """The two passages of a story that have most to do with what it is about."""
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
    people, pets = [p.name for p in t.people], [p.name for p in t.pets]
    tagged = [tag(t.sentences[0], people, pets)]
    rest = range(1, len(t.sentences))
    tagged += [tag(t.sentences[i], people, pets) for i in t.sample(rest, 3)]
    return [sentence for sentence in tagged if sentence]


def _questions(t: StoryBuilder) -> list[Answer]:
    """Questions that plots have noted, and one or two about events, with the answers' places."""
    asked = [(q.text, q.answer, q.sentence) for q in t.questions]
    for event in t.events:
        verb, done = past(event.verb), event.object.definite()
        asked.append(
            (f"Who {verb} {done}{event.rest('tail')}?", event.subject.name, event.sentence)
        )
        if event.place.startswith(("in ", "on ", "at ", "under ", "behind ")):
            asked.append(
                (
                    f"Where did {event.subject.name} {event.verb} {done}?",
                    event.place,
                    event.sentence,
                )
            )
    starts = [0]
    for sentence in t.sentences:
        starts.append(starts[-1] + len(sentence) + 1)
    text = " ".join(t.sentences)
    found = []
    for question, answer, told in asked:
        pattern = re.compile(rf"\b{re.escape(answer)}\b", re.IGNORECASE)
        place = pattern.search(text, starts[told], starts[told + 1]) or pattern.search(text)
        if place:
            found.append(Answer(question, place[0], place.start()))
    return found


# what people do to things: (verb, where)
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
_TIMES = (
    "yesterday",
    "last week",
    *(f"on {day}" for day in WEEKDAYS),
    "in the morning",
    "in the evening",
    "",
)


def _invent(t: StoryBuilder) -> Event:
    """Something else that people of the story may have done."""
    who: StoryEntity = pick(t.rng, t.people) if t.people and t.chance(0.7) else t.cast.person()
    noun = t.pick(tuple(THINGS))
    thing = StoryEntity(noun, adjective=t.cast.adjective(noun))
    verb = t.pick(tuple(_DEEDS))
    return Event(
        who, verb, thing, place=t.pick(_DEEDS[verb]), time=t.pick(_TIMES), new=t.chance(0.5)
    )


def _named(found: list[Event]) -> list[Event]:
    """Events told of people by name, with no pronoun in them."""
    return [
        e
        for e in found
        if e.subject.name
        and not re.search(r"\b(her|his|she|he)\b", e.rest("tail", "place", "time"))
    ]


def _rewrites(t: StoryBuilder, found: list[Event]) -> list[tuple[str, str]]:
    rows = []
    for event in _named(found):
        forms = {
            "active": events.active(event),
            "passive": events.passive(event),
            "question": events.question(event),
            "negative": events.negative(event),
        }
        forms["statement"] = forms["active"]
        source, kind = t.pick(
            (
                "active passive",
                "passive active",
                "active question",
                "question statement",
                "active negative",
                "negative statement",
            )
        ).split()
        rows.append((f"{kind}: {forms[source]}", forms[kind]))
    return rows


def _entailment(t: StoryBuilder, found: list[Event]) -> list[tuple[str, str, str]]:
    rows = [_judge(t, event) for event in _named(found)]
    if t.facts:
        fact = pick(t.rng, t.facts)
        same = t.chance(0.5) and fact.restated != fact.statement
        other, label = (fact.restated, "entailment") if same else (fact.false, "contradiction")
        if t.chance(0.6):
            rows.append((_sentence(fact.statement), _sentence(other), label))
    return rows


def _sentence(text: str) -> str:
    return articles(f"{text[0].upper()}{text[1:]}.")


def _judge(t: StoryBuilder, event: Event) -> tuple[str, str, str]:
    """A premise from an event, and a sentence that follows, conflicts, or does neither."""
    label = t.pick(("entailment", "contradiction", "neutral"))
    who, verb, thing = event.subject.name, past(event.verb), event.object
    if t.chance(0.25):
        premise = events.negative(event)
        said = {
            "entailment": (
                f"It is not true that {_inner(events.active(event))}",
                f"{who} never {verb} {events.thing(event)}{event.rest('tail', 'place', 'time')}.",
            ),
            "contradiction": (events.active(event), events.passive(event)),
            "neutral": (
                f"{who} {verb} a {_other_thing(t, thing)}{event.rest('tail', 'place', 'time')}.",
                f"{who} did not want to {event.verb} {events.thing(event)}.",
            ),
        }[label]
        return premise, articles(t.pick(said)), label
    premise = events.active(event) if t.chance(0.7) else events.passive(event)
    bare = Event(
        event.subject,
        event.verb,
        StoryEntity(thing.noun),
        event.tail,
        event.place,
        event.time,
        event.new,
    )
    other = Event(
        event.subject,
        event.verb,
        StoryEntity(thing.noun, adjective=_other_colour(t, thing)),
        event.tail,
        event.place,
        event.time,
    )
    rest = event.rest("tail", "place")
    options = {
        "entailment": (
            events.passive(event) if premise == events.active(event) else events.active(event),
            events.active(bare),
            events.passive(bare),
            f"Somebody {verb} a {thing.noun}{rest}.",
            f"It is not true that nobody {verb} {events.thing(event)}{rest}.",
        ),
        "contradiction": (
            events.negative(event),
            f"Nobody {verb} {events.thing(event)}{rest}{event.rest('time')}.",
            events.negative(bare) if not event.new else events.negative(event),
            f"The {thing.noun} was {other.object.adjective} when {who} {verb} it."
            if thing.adjective in COLOURS
            else f"{events.thing(event)} was {participle(event.verb)} by nobody.",
        ),
        "neutral": (
            f"{who} {verb} the {thing.noun} because {_reason(t, event.subject)}.",
            f"{who} liked the {thing.noun} very much.",
            f"{who} {verb} {events.thing(event)} for the first time.",
            f"Nobody saw that {who} {verb} the {thing.noun}.",
            f"{who} did not like the {thing.noun}.",
            f"Everybody knew that {who} {verb} the {thing.noun}.",
        ),
    }
    said_ = t.pick(options[label])
    return premise, articles(said_[0].upper() + said_[1:]), label


def _inner(sentence: str) -> str:
    return (
        sentence if sentence.split()[0] not in ("A", "The") else sentence[0].lower() + sentence[1:]
    )


def _reason(t: StoryBuilder, who: StoryEntity) -> str:
    he = "she" if who.gender == "f" else "he"
    return t.pick(
        (
            f"{he} was bored",
            f"{he} had promised it",
            "it was raining",
            f"{he} was in a hurry",
            "a friend had asked for it",
        )
    )


def _other_thing(t: StoryBuilder, thing: StoryEntity) -> str:
    while (noun := t.pick(tuple(THINGS))) == thing.noun:
        pass
    return noun


def _other_colour(t: StoryBuilder, thing: StoryEntity) -> str:
    while (colour := t.pick(COLOURS)) == thing.adjective:
        pass
    return colour
