"""The pre-training text of the embedded models: stories and pages without any test text.

The stories of seed 0 are the demo's and the tasks'; the pre-training text is of other seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import chain, count
from pathlib import Path

from firth.data.stories import Examples, Story, generate_story
from firth.data.stories.pages import generate_page
from firth.data.stories.probes import words_of
from firth.data.stories.story_files import split_of

TASK_SEED = 0
TASK_WORDS = 1_000_000  # as many as `firth stories` writes
PAGES = 4  # for each story
_KEY = 3  # words by which a text is looked up

Words = tuple[str, ...]


def stories(seed: int, words: int) -> Iterator[tuple[int, Story]]:
    """Generate the stories of a corpus with at least so many words, with their numbers."""
    done = 0
    for number in count():
        if done >= words:
            return
        story = generate_story(seed, number)
        done += len(story.text.split())
        yield number, story


def task_texts(examples: Examples) -> Iterator[str]:
    """Return every text of a story's labelled examples; the story itself is one of them."""
    rows = (*examples.sentiment, *examples.topic)
    yield from (text for text, _ in rows)
    pairs = (*examples.entailment, *examples.rewrite, *examples.summary, *examples.agreement)
    yield from chain.from_iterable(pair[:2] for pair in pairs)
    yield from (" ".join(word for word, _ in sentence) for sentence in examples.entities)


def by_first_words(texts: Iterable[str]) -> dict[Words, set[Words]]:
    """Map the first words of texts to all the words of those texts."""
    found: dict[Words, set[Words]] = defaultdict(set)
    for text in texts:
        words = tuple(words_of(text))
        found[words[:_KEY]].add(words)
    return found


@cache
def test_texts() -> dict[Words, set[Words]]:
    """Return the texts of all task test files."""
    told = stories(TASK_SEED, TASK_WORDS)
    tests = (story.examples for number, story in told if split_of(number) == "test")
    return by_first_words(chain.from_iterable(map(task_texts, tests)))


def contains_any(text: str, texts: dict[Words, set[Words]]) -> bool:
    """Return whether one of some texts occurs in another, ignoring case and punctuation.

    >>> contains_any("So Anna ran home, and all was well.", by_first_words(["Anna ran home."]))
    True
    """
    words = tuple(words_of(text))
    return any(
        words[i : i + len(other)] == other
        for i in range(len(words))
        for other in texts.get(words[i : i + _KEY], ())
    )


def training_text(seed: int, words: int) -> str:
    """Return stories and pages of a seed, without those that contain a test text."""
    tests = test_texts()
    documents = []
    for number, story in stories(seed, words):
        pages = (generate_page(seed, PAGES * number + i) for i in range(PAGES))
        documents += [story.text, *pages]
    return "".join(f"{text}\n\n" for text in documents if text and not contains_any(text, tests))


def write_training_text(out: Path, *, words: int, parts: int, workers: int) -> None:
    """Write the pre-training text, one part for each of the seeds after the tasks'."""
    seeds = range(TASK_SEED + 1, TASK_SEED + 1 + parts)
    test_texts()  # once, for all workers
    make = partial(training_text, words=words // parts)
    with out.open("w", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        file.writelines(pool.map(make, seeds))
