"""Events of a story, and sentences about them: active, passive, negative, question."""

from __future__ import annotations

from dataclasses import dataclass

from firth.data.stories.morphology import articles, gerund, participle, past
from firth.data.stories.world import StoryEntity


@dataclass(frozen=True, slots=True)
class Event:
    """Someone did something to something; tail, place and time are phrases or empty."""

    subject: StoryEntity
    verb: str
    object: StoryEntity
    tail: str = ""
    place: str = ""
    time: str = ""
    new: bool = False  # the object has not been mentioned before
    sentence: int = 0

    def rest(self, *parts: str) -> str:
        """Join the named parts, by default all three, each after a space."""
        texts = (getattr(self, part) for part in parts or ("tail", "place", "time"))
        return "".join(f" {text}" for text in texts if text)


def wordings(event: Event) -> list[str]:
    """Return templates for an event, with slots s, o, tail, place and time.

    >>> kite, anna = StoryEntity("kite"), StoryEntity("girl", "f", "Anna")
    >>> wordings(Event(anna, "find", kite, place="in the attic"))[0]
    '{s} found {o} {place}.'
    """
    did, done = past(event.verb), participle(event.verb)
    thing = "{o.a}" if event.new else "{o}"
    tail, place = " {tail}" * bool(event.tail), " {place}" * bool(event.place)
    time = " {time}" * bool(event.time)
    plain = f"{{s}} {did} {thing}{tail}"
    found = [f"{plain}{place}{time}."] * 4
    if event.time:
        found += [f"{{time}}, {plain}{place}.", f"{{time}} {plain}{place}."]
    if event.place.startswith(("in ", "at ", "on ", "under ", "behind ")):
        other = f"{{time}}, {{place}}, {plain}." if event.time else f"{plain}{place}."
        found += [f"{{place}} {plain}{time}.", other]
    return [
        *found,
        f"It was {{s.name}} who {did} {thing}{tail}{place}{time}.",
        f"{thing} [was] {done}{tail}{place} by {{s.o}}{time}.",
        f"{{s.rel}} {did} {thing}{tail}{place}{time}.",
        f"(In the end|So|Soon|And so|Then) {plain}{place}{time}.",
        f"{{s}} ended up {gerund(event.verb)} {thing}{tail}{place}{time}.",
    ]


# ---- sentences outside the story ----


def _sentence(text: str) -> str:
    return articles(text[0].upper() + text[1:])


def subject(event: Event) -> str:
    return event.subject.name or event.subject.definite()


def thing(event: Event) -> str:
    return event.object.indefinite() if event.new else event.object.definite()


def active(event: Event) -> str:
    """Return a sentence like "Anna found a kite in the attic." """
    return _sentence(f"{subject(event)} {past(event.verb)} {thing(event)}{event.rest()}.")


def negative(event: Event) -> str:
    """Return a sentence like "Anna did not find a kite." """
    return _sentence(f"{subject(event)} did not {event.verb} {thing(event)}{event.rest()}.")


def passive(event: Event) -> str:
    """Return a sentence like "A kite was found by Anna in the attic." """
    was = "were" if event.object.gender == "p" else "was"
    verb = f"{was} {participle(event.verb)}{event.rest('tail')}"
    return _sentence(f"{thing(event)} {verb} by {subject(event)}{event.rest('place', 'time')}.")


def question(event: Event) -> str:
    """Return a question like "Did Anna find a kite in the attic?" """
    return _sentence(f"did {subject(event)} {event.verb} {thing(event)}{event.rest()}?")
