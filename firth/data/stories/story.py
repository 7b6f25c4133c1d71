"""Story i of a seed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count
from random import Random

from firth.data.stories.plots import PLOTS
from firth.data.stories.probes import held_out
from firth.data.stories.scenes import SCENES
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.task_examples import Examples, examples
from firth.data.stories.world import pick


@dataclass(frozen=True)
class Story:
    """A story, its sentences, its topic and its labelled examples."""

    plot: str
    text: str
    sentences: tuple[str, ...]
    topic: str
    summary: str
    examples: Examples


def generate_story(seed: int, number: int) -> Story:
    """Generate story `number` of a seed.

    >>> story = generate_story(0, 7)
    >>> story == generate_story(0, 7), story == generate_story(1, 7)
    (True, False)
    """
    for attempt in count():
        digest = blake2b(f"{seed} {number} {attempt}".encode(), digest_size=8).digest()
        rng = Random(int.from_bytes(digest, "big"))
        builder = StoryBuilder(rng, SCENES)
        plot = pick(rng, PLOTS)
        plot(builder)
        text, labelled = " ".join(builder.sentences), examples(builder)
        if not held_out(_all_text(text, labelled)):
            break
    sentences = tuple(builder.sentences)
    return Story(plot.__name__, text, sentences, builder.topic, builder.summary, labelled)


def _all_text(story: str, labelled: Examples) -> str:
    """Join a story and the texts of its examples."""
    rows = chain(labelled.sentiment, labelled.entailment, labelled.rewrite)
    pairs = chain.from_iterable(pair[:2] for pair in labelled.agreement)
    return " . ".join([story, *chain.from_iterable(row[:2] for row in rows), *pairs])
