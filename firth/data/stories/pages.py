"""Pages: a few sentences of the stories' world that need no story.

A page is a review, or up to eight everyday sentences, facts and the like. A model that has read
only stories takes every first sentence for the opening of a story.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from firth.data.stories.agreement import minimal_pair
from firth.data.stories.everyday import everyday
from firth.data.stories.morphology import articles
from firth.data.stories.probes import held_out
from firth.data.stories.reviews import review
from firth.data.stories.scenes import SCENES, did_you_know, weather, wild_sounds
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import words

_RELATIONS = words("""capital capital capital language sound food young shop colour opposite tool
    job season month kind day sun home""")


def _fact(t: StoryBuilder) -> None:
    statement = t.fact(t.pick(_RELATIONS)).statement
    t.sentences.append(articles(f"{statement[0].upper()}{statement[1:]}."))


def _agreement(t: StoryBuilder) -> None:
    t.sentences.append(minimal_pair(t.rng).good)


# a kind of sentence named twice is twice as likely
SENTENCES: tuple[Callable[[StoryBuilder], None], ...] = (
    *(everyday, everyday, everyday, everyday, _fact, _fact, _agreement, _agreement),
    *(did_you_know, weather, wild_sounds),
)


def generate_page(seed: int, number: int) -> str:
    """Generate page `number` of a seed; sentences that are held out are left out.

    >>> generate_page(0, 2) == generate_page(0, 2)
    True
    """
    builder = StoryBuilder(Random(f"page {seed} {number}"), SCENES)
    builder.start()
    if builder.chance(0.3):
        builder.sentences.append(review(builder, builder.chance(0.5)))
    else:
        _sentences(builder)
    return " ".join(sentence for sentence in builder.sentences if not held_out(sentence))


def _sentences(t: StoryBuilder) -> None:
    """Add up to eight sentences, in some pages all of one kind."""
    kinds = (t.pick(SENTENCES),) if t.chance(0.3) else SENTENCES
    for _ in range(1 + int(t.rng.random() * 8)):
        t.pick(kinds)(t)
