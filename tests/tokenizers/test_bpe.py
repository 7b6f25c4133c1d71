"""BPE merges compared with published examples, the plain reference and the `tokenizers` library."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import astuple
from itertools import pairwise

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from firth.tokenizers.bpe import BpeConfig, learn_merges
from firth.tokenizers.reference import learn_merges_slowly, merge_pair


def library(
    words: list[str], counts: list[int], config: BpeConfig
) -> tuple[list[str], list[list[str]]]:
    """Train with the `tokenizers` library on the same words."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        min_frequency=config.min_frequency,
        special_tokens=list(config.specials),
        initial_alphabet=list(config.alphabet),
        show_progress=False,
    )
    lines = (" ".join([word] * count) for word, count in zip(words, counts, strict=True))
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


@st.composite
def word_counts(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    """Distinct words of a small alphabet, so that ties and overlapping pairs are frequent."""
    letters = "abcdefgh"[: draw(st.integers(1, 8))]
    words = draw(st.sets(st.text(letters, min_size=1, max_size=20), min_size=1, max_size=60))
    counts = draw(st.lists(st.integers(1, 30), min_size=len(words), max_size=len(words)))
    return sorted(words), counts


def test_the_example_of_sennrich() -> None:
    """Sennrich et al. 2016, algorithm 1: es, est, est</w>, lo, low come first, up to ties."""
    words, counts = ["low", "lower", "newest", "widest"], [5, 2, 6, 3]
    learned = learn_merges(words, counts, BpeConfig(size=99, suffix="</w>"))
    joined = [left + right for left, right in learned.merges]
    assert joined[:3] == ["es", "est</w>", "lo"]
    assert {"low</w>", "newest</w>", "widest</w>"} <= set(joined)


def test_the_example_of_wikipedia() -> None:
    """aaabdaaabac: Wikipedia's "Byte pair encoding" merges aa, ab, and then aa·ab."""
    learned = learn_merges(["aaabdaaabac"], [1], BpeConfig(size=7, min_frequency=0))
    assert learned.tokens == ["a", "b", "c", "d", "aa", "ab", "aaab"]


@settings(max_examples=50, deadline=None)
@given(
    counted=word_counts(),
    size=st.sampled_from([10, 30, 1000]),
    min_frequency=st.sampled_from([0, 2, 5]),
    alphabet=st.sampled_from(["", "axyz"]),
)
def test_the_same_merges_as_the_library(
    counted: tuple[list[str], list[int]], size: int, min_frequency: int, alphabet: str
) -> None:
    config = BpeConfig(
        size=size, min_frequency=min_frequency, specials=("<s>", "</s>"), alphabet=alphabet
    )
    learned = learn_merges(*counted, config)
    tokens, merges = library(*counted, config)
    assert learned.tokens == tokens
    assert [list(pair) for pair in learned.merges] == merges


@settings(max_examples=50, deadline=None)
@given(counted=word_counts(), size=st.sampled_from([10, 30, 1000]))
def test_the_same_merges_as_the_reference(counted: tuple[list[str], list[int]], size: int) -> None:
    words = {tuple(word): count for word, count in zip(*counted, strict=True)}
    learned = learn_merges(*counted, BpeConfig(size=size))
    assert learned.merges == learn_merges_slowly(words, size)
    for step in learned.steps:  # the counts of the trace, counted anew
        pairs: Counter[tuple[str, str]] = Counter()
        symbols: Counter[str] = Counter()
        for word, count in words.items():
            pairs.update({pair: count * n for pair, n in Counter(pairwise(word)).items()})
            symbols.update({symbol: count * n for symbol, n in Counter(word).items()})
        pair = step.left, step.right
        assert astuple(step)[2:] == (
            "".join(pair),
            pairs[pair],
            symbols[step.left],
            symbols[step.right],
        )
        words = {merge_pair(word, pair): count for word, count in words.items()}


@settings(max_examples=50, deadline=None)
@given(counted=word_counts(), marks=st.sampled_from([("##", ""), ("", "</w>"), ("##", "</w>")]))
def test_marked_merges_against_recounted_pairs(
    counted: tuple[list[str], list[int]], marks: tuple[str, str]
) -> None:
    """Each merge is the most frequent pair, counted anew, with WordPiece's and GPT-1's marks."""
    (words, counts), (prefix, suffix) = counted, marks
    learned = learn_merges(words, counts, BpeConfig(size=60, prefix=prefix, suffix=suffix))
    ids = {token: i for i, token in enumerate(learned.tokens)}
    texts = [
        [prefix * (i > 0) + letter + suffix * (i == len(word) - 1) for i, letter in enumerate(word)]
        for word in words
    ]
    for pair in learned.merges:
        totals: Counter[tuple[str, str]] = Counter()
        for text, count in zip(texts, counts, strict=True):
            for neighbours in itertools.pairwise(text):
                totals[neighbours] += count
        assert pair == min(totals, key=lambda p: (-totals[p], ids[p[0]], ids[p[1]]))
        token = pair[0] + pair[1].removeprefix(prefix)
        texts = [
            [token if symbol == "".join(pair) else symbol for symbol in merge_pair(text, pair)]
            for text in map(tuple, texts)
        ]


def test_rare_characters_are_left_out() -> None:
    words, counts = ["aab", "abc", "bxa"], [10, 5, 1]
    learned = learn_merges(words, counts, BpeConfig(size=99, max_alphabet=2, min_frequency=1))
    assert "x" not in learned.tokens
    assert "c" not in learned.tokens
    assert learned.tokens[:2] == ["a", "b"]


def test_empty_words_and_no_words() -> None:
    assert learn_merges([], [], BpeConfig(size=9)).tokens == []
    assert learn_merges(["", "ab", ""], [3, 4, 5], BpeConfig(size=9)).merges == [("a", "b")]
