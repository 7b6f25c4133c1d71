"""Story i of a seed, and the sentences that are held out from every story."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count
from random import Random

from firth.data.stories.plots import PLOTS
from firth.data.stories.scenes import SCENES
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.task_examples import Examples, examples
from firth.data.stories.word_lists import phrases
from firth.data.stories.world import pick

# Sentences that models are evaluated on.
HELD_OUT = phrases("""the dog barked loudly at the mailman; the capital of france is paris;
    the sun rises in the east; i went to the store to buy milk; the river bank was flooding;
    the cat sat on the mat; the quick brown fox jumps; a bat flew out of the cave;
    he hit the ball with a bat; i record the record; she went to the store yesterday""")
_HELD_OUT = re.compile(rf"\b(?:{'|'.join(HELD_OUT)})\b")
_WORDS = re.compile(r"[a-z0-9]+")


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


def held_out(text: str) -> bool:
    """Return whether a text contains a held-out sentence, ignoring case and punctuation.

    >>> held_out("Look, the sun rises -- in the East!")
    True
    """
    return bool(_HELD_OUT.search(" ".join(_WORDS.findall(text.lower()))))


def _all_text(story: str, labelled: Examples) -> str:
    """Join a story and the texts of its examples."""
    rows = chain(labelled.sentiment, labelled.entailment, labelled.rewrite)
    pairs = chain.from_iterable(pair[:2] for pair in labelled.agreement)
    return " . ".join([story, *chain.from_iterable(row[:2] for row in rows), *pairs])
