"""A story under construction: its sentences, people and things, and the facts that are true in it.

A pronoun refers to the last person or thing of its gender that was mentioned in this sentence or
the one before; otherwise a name or a description is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from firth.data.stories import knowledge, lexicon
from firth.data.stories.events import Event, wordings
from firth.data.stories.facts import Fact, fact
from firth.data.stories.grammar import Choice, Node, Rule, Slot, parse, parse_script, tidy
from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import JOBS
from firth.data.stories.morphology import articles
from firth.data.stories.phrases import CLAUSES, GESTURES, PASSERS_BY, RULES
from firth.data.stories.word_lists import phrases
from firth.data.stories.world import PRONOUNS, Cast, Person, StoryEntity

T = TypeVar("T")

_PLURAL_FORM = {"was": "were", "is": "are", "has": "have", "does": "do", "goes": "go"}
_MAX_DETAILS = 6  # in one story
_MIN_BITS = 10.0  # of random choice in a sentence; with fewer, other stories may repeat it
_SPEAKER = re.compile(r'" ([^".,:;]+)(?=\.(?: "|$))')  # "…," said Anna.
_CASES = {"": 0, "o": 1, "s": 2, "self": 3}
_LISTS = vars(lexicon) | vars(knowledge)


def _options(text: str) -> Sequence[str]:
    """Return phrases separated by semicolons, or a list of `lexicon` or `knowledge` by name."""
    return tuple(_LISTS[text]) if text.isupper() else phrases(text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the story; the sentence of that number contains the answer."""

    text: str
    answer: str
    sentence: int


class StoryBuilder:
    """Build a story, sentence by sentence."""

    def __init__(self, rng: Random, scenes: Mapping[str, Callable[[StoryBuilder], None]]) -> None:
        self.rng = rng
        self.scenes = scenes
        self.cast = Cast(rng)
        self.roles: dict[str, Any] = {}  # values of the slots of templates
        self.sentences: list[str] = []
        self.events: list[Event] = []
        self.questions: list[Question] = []
        self.summary = ""
        self.topic = ""
        self.people: list[Person] = []
        self.pets: list[StoryEntity] = []
        self.latest: dict[str, StoryEntity | None] = {}
        self.subject_gender = "n"
        self.bits = 0.0
        self.speaker: StoryEntity | None = None
        self.details: set[str] = set()
        self.roles["z"] = StoryEntity(self.pick(tuple(JOBS)), adjective=self.pick(PASSERS_BY))
        self.roles["k"] = self.cast.thing()
        self.roles["town_"] = self.cast.town

    # ---- random choice ----

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def sample(self, options: Sequence[Any], count: int) -> list[Any]:
        return self.rng.sample(options, count)

    # ---- people and things ----

    def meet(self, role: str, age: str = "", like: str = "") -> Person:
        """Bind a new person to a role; `like` names the role of someone they are a friend of."""
        person = self.cast.friend(self.roles[like], age) if like else self.cast.person(age)
        self.roles[role] = person
        self.people.append(person)
        if role == "a":
            self.roles["wears"] = person.wears
        return person

    def start(self, topic: str = "", hero: str = "", friend: str = "") -> tuple[Person, Person]:
        """Draw the hero and a friend of given ages as the roles a and b."""
        self.topic = topic
        return self.meet("a", hero), self.meet("b", friend, like="a")

    def own(self, role: str, species: str = "") -> StoryEntity:
        pet = self.cast.pet(species)
        self.roles[role] = pet
        self.pets.append(pet)
        return pet

    def thing(self, role: str, nouns: Sequence[str] = ()) -> StoryEntity:
        thing = self.roles[role] = self.cast.thing(nouns)
        return thing

    def bind(self, **roles: Any) -> None:
        self.roles.update(roles)

    # ---- sentences ----

    def render(self, template: str) -> str:
        """Render a sentence without adding it to the story; its mentions count."""
        return articles(tidy(self.words(template)))

    def words(self, template: str) -> str:
        """Render a part of a sentence."""
        out: list[str] = []
        self._expand(parse(template), out)
        return "".join(out)

    def _expand(self, nodes: tuple[Node, ...], out: list[str]) -> None:
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
            elif isinstance(node, Choice):
                self.bits += node.bits
                self._expand(node.options[int(self.rng.random() * len(node.options))], out)
            elif isinstance(node, Slot):
                out.append(self._slot(node.role, node.form))
            elif isinstance(node, Rule):
                self._expand(self._rule(node.name), out)
            else:
                out.append(self._agree(node.verb))

    def say(self, template: str, **roles: Any) -> None:
        """Add a sentence; one that many stories would share gets a detail."""
        self.bits = 0.0
        self.roles.update(roles)
        text = self.render(template)
        if self.bits < _MIN_BITS and text.count(" ") >= 8 and self.sentences:
            text = self._elaborate(text)
        self.sentences.append(text)

    def _elaborate(self, text: str) -> str:
        """Add a detail to a sentence: a passer-by, clothes, what the hero thinks of."""
        spot = _SPEAKER.search(text) if '"' in text else None
        if spot:
            return self._gesture(text, spot)
        if '"' in text or text[-1] != "." or len(self.details) >= _MAX_DETAILS:
            return text
        hero, thought = isinstance(self.roles["a"], Person), self.roles["k"].named
        fit = [
            detail
            for detail in CLAUSES
            if detail not in self.details
            and (hero or ("{a" not in detail and "{town_" not in detail))
            and ("{k" not in detail or ("again" in detail) == thought)
        ]
        if not fit:
            return text
        detail = self.pick(fit)
        self.details.add(detail)
        return articles(text[:-1] + self.words(detail.replace("{z}", self._passer_by())) + ".")

    def _gesture(self, text: str, spot: re.Match[str]) -> str:
        """Add a gesture of the speaker."""
        who = self.speaker
        fit = [detail for detail in GESTURES if detail not in self.details]
        if not isinstance(who, Person) or not fit:
            return text
        detail = self.pick(fit)
        he = PRONOUNS[who.gender][0]
        if not re.search(rf"\b(?:{who.name}|{he}|the {who.noun})\b", spot[1]):
            return text
        self.roles.update(their=PRONOUNS[who.gender][2], wears=who.wears)
        self.details.add(detail)
        end = spot.end(1)
        words = self.words(detail.replace("{z.o}", self._passer_by()))
        return articles(text[:end] + words + text[end:])

    def _passer_by(self) -> str:
        return "{z.the}" if self.roles["z"].named else "{z.a}"

    def one_of(self, *templates: str, **roles: Any) -> None:
        self.say(self.pick(templates), **roles)

    def run_script(self, script: str) -> None:
        """Run the steps of a script (see `grammar`)."""
        for step in parse_script(script):
            text = step.options[0]
            if step.kind == "scene":
                self.scenes[text](self)
            elif step.kind in ("let", "thing"):
                role, _, options = text.partition(" = ")
                draw = self.pick if step.kind == "let" else self.cast.thing
                self.roles[role] = draw(_options(options))
            elif step.kind == "event":
                head, *parts = text.split("; ")
                parts_of: dict[str, Any] = dict(part.split("=") for part in parts if "=" in part)
                self.happen(*head.split(), new="new" in parts, **parts_of)
            elif step.kind == "ask":
                question, _, answer = text.rpartition("? ")
                self.ask(f"{question}?", answer)
            elif step.kind == "summary":
                self.sum_up(*step.options)
            elif step.probability == 1 or self.chance(step.probability):
                self.say(text if len(step.options) == 1 else self.pick(step.options))

    def _fill(self, template: str) -> str:
        """Fill the slots of an answer; nobody is mentioned."""
        return "".join(
            self._fixed(self.roles[node.role], node.form) if isinstance(node, Slot) else str(node)
            for node in parse(template)
        )

    def happen(
        self,
        subject: str,
        verb: str,
        object: str,
        *,
        tail: str = "",
        place: str = "",
        time: str = "",
        new: bool = False,
    ) -> None:
        """Add a sentence about an event, and note that it is true.

        A `new` object has not been mentioned before: "a kite" and not "the kite".
        """
        done, thing = self.roles[subject], self.roles[object]
        tail, place, time = (self.words(part) for part in (tail, place, time))
        event = Event(done, verb, thing, tail, place, time, new, sentence=len(self.sentences))
        self.events.append(event)
        self.say(self.pick(wordings(event)), s=done, o=thing, tail=tail, place=place, time=time)

    def full(self, template: str) -> str:
        """Render a sentence that stands alone, as if nobody had been mentioned."""
        latest, self.latest = self.latest, {}
        entities = [e for e in self.roles.values() if isinstance(e, StoryEntity)]
        mentions = [(e.mentioned, e.pronouns) for e in entities]
        for entity in entities:
            entity.mentioned = -9
        text = self.render(template)
        for entity, (mentioned, pronouns) in zip(entities, mentions, strict=True):
            entity.mentioned, entity.pronouns = mentioned, pronouns
        self.latest = latest
        return text

    def ask(self, template: str, answer: str) -> None:
        """Note a question whose answer is in the story so far."""
        sentence = len(self.sentences) - 1
        self.questions.append(Question(self.full(template), self._fill(answer), sentence))

    def sum_up(self, *templates: str) -> None:
        self.summary = self.full(self.pick(templates))

    def fact(self, relation: str) -> Fact:
        """Draw a fact and bind its parts to {fact}, {question}, {answer}, {wrong}."""
        drawn = fact(self.rng, relation)
        self.roles.update(
            fact=drawn.statement, question=drawn.question, answer=drawn.answer, wrong=drawn.wrong
        )
        return drawn

    # ---- slots ----

    def _rule(self, name: str) -> tuple[Node, ...]:
        if name in RULES:
            return parse(RULES[name])
        options = self.roles[name]
        return parse(options[int(self.rng.random() * len(options))])

    def _agree(self, verb: str) -> str:
        if self.subject_gender != "p":
            return verb
        return _PLURAL_FORM.get(verb) or verb.removesuffix("s")

    def _slot(self, role: str, form: str) -> str:
        value = self.roles[role]
        if type(value) is str:
            self.bits += 3.5
            return value
        if form in _CASES:
            return self._refer(value, form)
        if form in ("it", "them", "their"):
            if form == "it":
                self._mention(value)
            return PRONOUNS[value.gender][("it", "them", "their").index(form)]
        self._mention(value)
        value.pronouns = 0
        self.bits += 6.0
        self.subject_gender = value.gender
        self.speaker = value
        return self._fixed(value, form)

    def _fixed(self, value: Any, form: str) -> str:
        if isinstance(value, str):
            return value
        if form == "a":
            return value.indefinite()
        if form == "the":
            return value.definite()
        if form == "full":
            return f"{value.name} {value.surname}"
        if form == "rel":
            return self._relative(value)
        return str(getattr(value, form))

    def _relative(self, person: Person) -> str:
        """Return the name with a relative clause that is true."""
        options = [f"who had always liked {person.likes}", f"who was {person.trait}"]
        if person.job:
            options.append(f"who worked as a {person.job}")
        if person.years:
            options.append(f"who was {NUMBERS[person.years]} years old")
        if person.pet:
            options.append(f"whose {person.pet.noun} was called {person.pet.name}")
        return f"{person.name}, {self.pick(options)},"

    def _mention(self, entity: StoryEntity) -> None:
        entity.mentioned = len(self.sentences)
        entity.named = True
        self.latest[entity.gender] = entity
        for gender in "fm":
            if same := [member for member in entity.members if member.gender == gender]:
                self.latest[gender] = same[0] if len(same) == 1 else None
        for member in entity.members:
            member.mentioned, member.named = entity.mentioned, True

    def _refer(self, entity: StoryEntity, form: str) -> str:
        case = _CASES[form]
        gender = entity.gender
        now = len(self.sentences)
        recent = now - entity.mentioned
        pronoun = (
            self.latest.get(gender) is entity
            and recent <= 1
            and (recent == 0 or entity.pronouns < 5)
            and (recent == 0 or self.rng.random() < (0.9 if entity.name else 0.6))
        )
        known = entity.named
        self._mention(entity)
        if case == 0:
            self.subject_gender = gender
            self.speaker = entity
        if pronoun or case == 3:
            entity.pronouns += 1
            return PRONOUNS[gender][case]
        entity.pronouns = 0
        self.bits += 5.5
        words = self._describe(entity, known or (case == 2 and bool(entity.name)))
        if case != 2:
            return words
        return words + ("'" if gender == "p" and words.endswith("s") and not entity.name else "'s")

    def _first_mention(self, entity: StoryEntity) -> str:
        if not isinstance(entity, Person) or entity is self.people[0] or self.rng.random() < 0.25:
            return entity.name
        who = [f"a {entity.noun}", "a friend", "a neighbour"]
        who += [f"a {entity.job}"] * 2 if entity.job else ["a cousin"]
        return f"{self.pick(who)} {self.pick(('called', 'named'))} {entity.name}"

    def _describe(self, entity: StoryEntity, known: bool) -> str:
        """Return the name, or sometimes an unambiguous description."""
        if not entity.name:
            if known and entity.adjective and self.rng.random() < 0.5:
                return entity.noun if entity.bare else f"the {entity.noun}"
            return entity.definite()
        if entity.members or (known and self.rng.random() > 0.15):
            return entity.name
        if not known:
            return self._first_mention(entity)
        if isinstance(entity, Person):
            noun = entity.job if entity.job and entity.job_known else entity.noun
            if sum(noun in (p.noun, p.job) for p in self.people) > 1:
                return entity.name
            return f"the {'old ' if entity.age == 'old' else ''}{noun}"
        return f"the {entity.noun}"
