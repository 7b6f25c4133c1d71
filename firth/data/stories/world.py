"""People, animals and things of a story, and how they may be referred to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from firth.data.stories import lexicon

T = TypeVar("T")

PRONOUNS = {  # subject, object, possessive, reflexive
    "f": ("she", "her", "her", "herself"),
    "m": ("he", "him", "his", "himself"),
    "n": ("it", "it", "its", "itself"),
    "p": ("they", "them", "their", "themselves"),
}


def pick(rng: Random, options: Sequence[T]) -> T:
    """Draw one of several options; faster than `Random.choice`."""
    return options[int(rng.random() * len(options))]


@dataclass(eq=False, slots=True)
class StoryEntity:
    """A person or thing of a story."""

    noun: str
    gender: str = "n"  # f, m, n, or p for plural
    name: str = ""
    adjective: str = ""
    members: tuple[StoryEntity, ...] = ()
    bare: bool = False  # the noun needs no article: "the old mill", "her kite"
    mentioned: int = -9  # the number of the sentence of the last mention
    pronouns: int = 0  # mentions by pronoun since the last full one
    named: bool = False

    @property
    def phrase(self) -> str:
        """The adjective and the noun."""
        return f"{self.adjective} {self.noun}" if self.adjective else self.noun

    def definite(self) -> str:
        return self.name or (self.phrase if self.bare else f"the {self.phrase}")

    def indefinite(self) -> str:
        if self.name:
            return self.name
        return f"{'some' if self.gender == 'p' else 'a'} {self.phrase}"


@dataclass(eq=False, slots=True)
class Person(StoryEntity):
    """A person with their attributes."""

    age: str = "child"  # child, adult or old
    surname: str = ""
    job: str = ""
    town: str = ""
    years: int = 0
    likes: str = ""
    trait: str = ""
    wears: str = ""
    pet: StoryEntity | None = None
    job_known: bool = False  # the reader knows the job


HOBBIES = tuple(
    "reading|drawing|fishing|football|old maps|music|horses|stars|cooking|trains|painting|birds|"
    "stories about pirates|swimming|flowers|chess|old coins|dancing|insects|ships".split("|")
)
TRAITS = tuple(
    "kind clever shy brave curious cheerful patient careful lazy proud friendly quiet stubborn "
    "polite honest gentle funny busy greedy messy".split()
)
GARMENTS = tuple("scarf hat coat jacket jumper cap belt shirt gloves apron".split())
PETS = tuple("dog dog dog dog cat cat cat rabbit parrot goat hen donkey".split())


class Cast:
    """Draw people, pets and things for one story; names are unique."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.used: set[str] = set()
        self.town = pick(rng, lexicon.TOWNS)

    def unused(self, options: Sequence[str]) -> str:
        while (name := pick(self.rng, options)) in self.used:
            pass
        self.used.add(name)
        return name

    def person(self, age: str = "", gender: str = "") -> Person:
        """Draw a person of an age and a gender, or of any."""
        rng = self.rng
        age = age or ("child" if rng.random() < 0.6 else "adult")
        gender = gender or ("f" if rng.random() < 0.5 else "m")
        if age == "child":
            noun, job = ("girl" if gender == "f" else "boy"), ""
        else:
            noun = "woman" if gender == "f" else "man"
            job = pick(rng, tuple(lexicon.JOBS))
            while gender == "f" and job.endswith("man"):
                job = pick(rng, tuple(lexicon.JOBS))
        return Person(
            noun,
            gender,
            self.unused(lexicon.GIRLS if gender == "f" else lexicon.BOYS),
            age=age,
            surname=self.unused(lexicon.SURNAMES),
            job=job,
            town=self.town,
            years=5 + int(rng.random() * 8) if age == "child" else 0,
            likes=self.unused(HOBBIES),
            trait=self.unused(TRAITS),
            wears=f"{pick(rng, lexicon.COLOURS)} {pick(rng, GARMENTS)}",
        )

    def friend(self, of: Person, age: str = "") -> Person:
        """Draw someone else, mostly of the other gender, so that pronouns are clear."""
        other = "m" if of.gender == "f" else "f"
        gender = other if self.rng.random() < 0.75 else of.gender
        return self.person(age or of.age, gender)

    def pet(self, species: str = "") -> StoryEntity:
        gender = "f" if self.rng.random() < 0.5 else "m"
        return StoryEntity(
            species or pick(self.rng, PETS), gender, self.unused(lexicon.PET_NAMES[gender])
        )

    def thing(self, nouns: Sequence[str] = ()) -> StoryEntity:
        """Draw a thing with an adjective that suits it."""
        noun = self.unused(nouns or tuple(lexicon.THINGS))
        return StoryEntity(noun, adjective=self.adjective(noun))

    def adjective(self, noun: str) -> str:
        rng = self.rng
        if noun in lexicon.MATERIALS and rng.random() < 0.3:
            return lexicon.MATERIALS[noun]
        kinds = lexicon.THINGS.get(noun, "s")
        tables = {"c": lexicon.COLOURS, "s": lexicon.SIZES, "a": lexicon.AGES, "l": lexicon.LOOKS}
        return pick(rng, tables[pick(rng, kinds)])

    @staticmethod
    def both(*members: StoryEntity) -> StoryEntity:
        """Group several people: "Anna and Ben"."""
        name = " and ".join(member.name or member.definite() for member in members)
        return StoryEntity("friends", "p", name, members=members)
