"""Character n-grams and their hashes: published examples, and gensim where it is installed."""

from __future__ import annotations

import pytest

from firth.models.subwords import SubwordConfig, hash_ngram, ngram_buckets, word_ngrams

WORDS = ["where", "été", "日本語", "a", "naïveté", "<>", ""]


def test_ngrams_of_the_paper() -> None:
    """Bojanowski et al. 2017, section 3.2: the word "where" with n = 3."""
    assert word_ngrams("where", 3, 3) == ["<wh", "whe", "her", "ere", "re>"]


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)
def test_fnv_1a_of_its_authors(text: str, value: int) -> None:
    """The test vectors of Fowler, Noll and Vo for 32 bits."""
    assert hash_ngram(text) == value


def test_buckets_of_all_words_are_those_of_each_ngram() -> None:
    config = SubwordConfig(min_n=2, max_n=5, buckets=1000)
    buckets, sizes = ngram_buckets(WORDS, config)
    expected = [[hash_ngram(ngram) % 1000 for ngram in word_ngrams(word, 2, 5)] for word in WORDS]
    assert sizes.tolist() == [len(row) for row in expected]
    assert buckets.tolist() == [bucket for row in expected for bucket in row]


def test_ngrams_and_hashes_of_gensim() -> None:
    inner = pytest.importorskip("gensim.models.fasttext_inner")
    for word in WORDS:
        assert sorted(word_ngrams(word)) == sorted(inner.compute_ngrams(word, 3, 6))
        for ngram in word_ngrams(word):
            assert hash_ngram(ngram) == inner.ft_hash_bytes(ngram.encode())
