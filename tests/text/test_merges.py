"""Merges against the published example, a slow and simple learner, and the library's trainer."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from firth.text.merges import Recipe, learn_merges


def library(
    words: list[str], counts: list[int], recipe: Recipe
) -> tuple[list[str], list[list[str]]]:
    """What the `tokenizers` trainer learns when it counts the same words itself."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.size,
        min_frequency=recipe.min_frequency,
        special_tokens=list(recipe.specials),
        initial_alphabet=list(recipe.alphabet),
        show_progress=False,
    )
    lines = (" ".join([word] * count) for word, count in zip(words, counts, strict=True))
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def random_words(seed: int) -> tuple[list[str], list[int]]:
    draw = random.Random(seed)
    letters = "abcdefgh"[: draw.randint(1, 8)]
    longest = draw.choice([3, 8, 20])
    words = {
        "".join(draw.choices(letters, k=draw.randint(1, longest)))
        for _ in range(draw.randint(1, 60))
    }
    return sorted(words), [draw.randint(1, draw.choice([1, 3, 30])) for _ in words]


def test_the_example_of_sennrich() -> None:
    """Sennrich et al. 2016, algorithm 1: es, est, est</w>, lo, low come first, up to ties."""
    words, counts = ["low", "lower", "newest", "widest"], [5, 2, 6, 3]
    learned = learn_merges(words, counts, Recipe(size=99, suffix="</w>"))
    joined = [left + right for left, right in learned.merges]
    assert joined[:3] == ["es", "est</w>", "lo"]
    assert {"low</w>", "newest</w>", "widest</w>"} <= set(joined)


def test_the_example_of_wikipedia() -> None:
    """aaabdaaabac: Wikipedia's "Byte pair encoding" merges aa, ab, and then aa·ab."""
    learned = learn_merges(["aaabdaaabac"], [1], Recipe(size=7, min_frequency=0))
    assert learned.tokens == ["a", "b", "c", "d", "aa", "ab", "aaab"]


@pytest.mark.parametrize("seed", range(150))
def test_the_same_merges_as_the_library(seed: int) -> None:
    words, counts = random_words(seed)
    draw = random.Random(seed)
    recipe = Recipe(
        size=draw.choice([10, 30, 1000]),
        min_frequency=draw.choice([0, 2, 5]),
        specials=("<s>", "</s>"),
        alphabet=draw.choice(["", "axyz"]),
    )
    learned = learn_merges(words, counts, recipe)
    tokens, merges = library(words, counts, recipe)
    assert learned.tokens == tokens
    assert [list(pair) for pair in learned.merges] == merges


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("prefix", "suffix"), [("##", ""), ("", "</w>"), ("##", "</w>")])
def test_marks_against_a_simple_learner(seed: int, prefix: str, suffix: str) -> None:
    """Recount every pair after every merge: slow, and too simple to be wrong."""
    words, counts = random_words(seed)
    recipe = Recipe(size=60, prefix=prefix, suffix=suffix)
    learned = learn_merges(words, counts, recipe)
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
        best = min(totals, key=lambda p: (-totals[p], ids[p[0]], ids[p[1]]))
        assert pair == best
        texts = [merged(text, pair, prefix) for text in texts]


def merged(text: list[str], pair: tuple[str, str], prefix: str) -> list[str]:
    result: list[str] = []
    i = 0
    while i < len(text):
        if tuple(text[i : i + 2]) == pair:
            result.append(pair[0] + pair[1].removeprefix(prefix))
            i += 2
        else:
            result.append(text[i])
            i += 1
    return result


def test_rare_characters_are_left_out() -> None:
    words, counts = ["aab", "abc", "bxa"], [10, 5, 1]
    learned = learn_merges(words, counts, Recipe(size=99, max_alphabet=2, min_frequency=1))
    assert "x" not in learned.tokens
    assert "c" not in learned.tokens
    assert learned.tokens[:2] == ["a", "b"]


def test_empty_words_and_no_words() -> None:
    assert learn_merges([], [], Recipe(size=9)).tokens == []
    assert learn_merges(["", "ab", ""], [3, 4, 5], Recipe(size=9)).merges == [("a", "b")]
