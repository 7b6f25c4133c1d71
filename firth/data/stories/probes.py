"""What the stories must not contain: probes of a model's knowledge, and sentences of the lectures.

A probe is a sentence with a blank. The stories contain neither the sentence nor the four words
around its blank, whatever stands in the blank, so that a right answer is not a remembered phrase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from firth.data.stories.word_lists import phrases

BLANK = "[MASK]"
PROBES = ("facts", "capitals", "polarity")
# Sentences of the lectures.
HELD_OUT = phrases("""the dog barked loudly at the mailman; the capital of france is paris;
    the sun rises in the east; i went to the store to buy milk; the river bank was flooding;
    the cat sat on the mat; the quick brown fox jumps; a bat flew out of the cave;
    he hit the ball with a bat; i record the record; she went to the store yesterday""")
_HELD_OUT = re.compile(rf"\b(?:{'|'.join(HELD_OUT)})\b")
_WINDOW = 4  # words around a blank
_WORDS = re.compile(r"[a-z0-9]+")


class Context(NamedTuple):
    """The words before and after a blank, in lower case."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def read_probes(name: str) -> list[tuple[str, str]]:
    """Read a probe file: texts with their answers, or positive and negative texts.

    >>> read_probes("capitals")[0]
    ('The capital of France is [MASK].', 'Paris')
    """
    lines = Path(__file__).with_name("probes").joinpath(f"{name}.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in lines.splitlines()[1:]]
    return [(first, second) for first, second in rows]


def words_of(text: str) -> list[str]:
    """Split a text into its words, in lower case and without punctuation.

    >>> words_of("Anna's kite, 7 m long")
    ['anna', 's', 'kite', '7', 'm', 'long']
    """
    return _WORDS.findall(text.lower())


def context(text: str) -> Context:
    """Return the four words nearest to the blank, two on each side where there are two.

    >>> context("The [MASK] barked loudly at the mailman.")
    Context(before=('the',), after=('barked', 'loudly', 'at'))
    """
    before, after = (words_of(part) for part in text.split(BLANK))
    left = max(_WINDOW // 2, _WINDOW - len(after))
    before = before[-left:]
    return Context(tuple(before), tuple(after[: _WINDOW - len(before)]))


@cache
def contexts() -> frozenset[Context]:
    """Return the words around the blanks of all probes."""
    texts = [row for name in PROBES for row in read_probes(name)]
    return frozenset(context(text) for row in texts for text in row if BLANK in text)


@cache
def _by_pair() -> dict[tuple[str, str], list[tuple[int, Context]]]:
    """Map the longest two neighbouring words of a context to their offset from the blank."""
    found: dict[tuple[str, str], list[tuple[int, Context]]] = {}
    for around in contexts():
        pairs = [(pair, i - len(around.before)) for i, pair in enumerate(pairwise(around.before))]
        pairs += [(pair, i + 1) for i, pair in enumerate(pairwise(around.after))]
        pair, offset = max(pairs, key=lambda each: len("".join(each[0])))
        found.setdefault(pair, []).append((offset, around))
    return found


def contains_context(words: Sequence[str]) -> bool:
    """Return whether the words around a probe's blank occur, with any word in the blank.

    >>> contains_context("yesterday the cat barked loudly at us".split())
    True
    """
    table = _by_pair()
    return any(
        _stands_at(around, words, position - offset)
        for position, pair in enumerate(pairwise(words))
        if pair in table
        for offset, around in table[pair]
    )


def _stands_at(around: Context, words: Sequence[str], blank: int) -> bool:
    start, end = blank - len(around.before), blank + 1 + len(around.after)
    inside = start >= 0 and end <= len(words)
    return inside and (tuple(words[start:blank]), tuple(words[blank + 1 : end])) == around


def held_out(text: str) -> bool:
    """Return whether a text contains a held-out sentence or the words around a probe's blank.

    Case and punctuation are ignored.

    >>> held_out("Look, the sun rises -- in the East!")
    True
    """
    words = words_of(text)
    return contains_context(words) or bool(_HELD_OUT.search(" ".join(words)))
