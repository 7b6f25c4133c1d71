"""Word counts compared with the pre-tokenizers of the library, for any memory and workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from firth.data.corpus import Corpus
from firth.data.readers import ReadOptions
from firth.tokenizers import counting
from firth.tokenizers.counting import WordCounts, _cut, _cut_clean, count_words, most_frequent_words
from firth.tokenizers.trainer import KINDS, train_tokenizer
from firth.utils.errors import InputError, UsageError
from tests.conftest import SAMPLE

HARD = "Ẹ káàárọ̀!  «naïve» 東京は。 don't\tx-ray\n\n  e=mc²  ﬁn\u00a0end 😀👍🏽 12,345.6 "


def backend(kind: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({}, ""))
    tokenizer.normalizer = KINDS[kind].normalizer(True, True)
    tokenizer.pre_tokenizer = KINDS[kind].pre_tokenizer
    return tokenizer


def whole(tokenizer: tokenizers.Tokenizer, text: str) -> Counter[str]:
    """Count the words of the whole text."""
    text = tokenizer.normalizer.normalize_str(text)
    return Counter(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_pre_tokenizer(tmp_path: Path, kind: str, clean: bool) -> None:
    (tmp_path / "a.txt").write_text(HARD + "\n\n" + SAMPLE, encoding="utf-8")
    corpus = Corpus([tmp_path], ReadOptions(documents="file"), clean=clean)
    counts, report = count_words(corpus, backend(kind), tmp_path / "scratch", workers=1)
    (text,) = corpus
    assert dict(counts.items()) == whole(backend(kind), text)
    assert (report.documents, report.words) == (1, len(text.split()))


@given(st.text(st.sampled_from("ab.'é1 \n\t\u00a0\u2003東"), max_size=30))
def test_pieces_do_not_change_the_words(text: str) -> None:
    tokenizer = backend("bpe")
    joined: Counter[str] = Counter()
    for piece, times in _cut([text]).items():
        for word, count in whole(tokenizer, piece).items():
            joined[word] += count * times
    assert joined == whole(tokenizer, text)


@given(st.lists(st.text("ab.é", min_size=1, max_size=5), min_size=1), st.data())
def test_clean_text_has_the_same_pieces(words: list[str], data: st.DataObject) -> None:
    spaces = [data.draw(st.sampled_from(" \n")) for _ in words]
    text = "".join(word + space for word, space in zip(words, spaces, strict=True)).strip()
    assert _cut_clean([text]) == _cut([text])


def test_counts_on_disk_equal_counts_in_memory(tmp_path: Path) -> None:
    small, large = WordCounts(tmp_path / "runs", memory=2000), WordCounts(tmp_path)
    for i in range(200):
        part = {f"w{i * j % 97}\n": j for j in range(1, 20)}
        small.add(part)
        large.add(part)
    assert len(small.runs) > 3
    assert not large.runs
    assert list(small.items()) == list(large.items())
    assert list(small.items()) == list(small.items()), "items can be read twice"


def test_counts_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BATCH_CHARACTERS", 500)
    (tmp_path / "a.txt").write_text(SAMPLE + "\n\n\x01\n\n<b>x</b>\xad", encoding="utf-8")
    corpus = Corpus([tmp_path])
    results = [count_words(corpus, backend("bpe"), tmp_path, workers) for workers in (1, 2, 3)]
    counts = [list(counts.items()) for counts, _ in results]
    assert counts[0] == counts[1] == counts[2]
    assert results[0][1] == results[1][1] == results[2][1]
    report = results[0][1]
    assert report.removed == {"empty": 1}
    assert report.repaired == {"control characters removed": 2, "pieces of markup removed": 2}


def test_most_frequent_words(tmp_path: Path) -> None:
    counts = WordCounts(tmp_path)
    counts.add({"aa": 5, "bb": 3, "cc": 2, "dd": 1, "ee": 1})
    assert most_frequent_words(counts) == (["aa", "bb", "cc", "dd", "ee"], [5, 3, 2, 1, 1], 1)
    assert most_frequent_words(counts, max_characters=7) == (["aa", "bb", "cc"], [5, 3, 2], 2)
    assert most_frequent_words(counts, max_characters=4) == (["aa", "bb"], [5, 3], 3)


def test_empty_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<br>\n\n\x01\n")
    with pytest.raises(InputError, match=r"No documents are left of .*a\.txt"):
        count_words(Corpus([tmp_path]), backend("bpe"), tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_of_sources_are_scaled_to_a_mixture(tmp_path: Path, workers: int) -> None:
    (tmp_path / "en.txt").write_text("the cat " * 800)  # 1,600 words
    (tmp_path / "ha.txt").write_text("ya tafi " * 50)  # 100 words
    corpus = Corpus({"en": tmp_path / "en.txt", "ha": tmp_path / "ha.txt"})
    for alpha, factor in ((1.0, 1), (0.5, 4), (0.0, 16)):  # (1600 / 100) ** (1 - alpha)
        counts, _ = count_words(corpus, backend("bpe-word"), tmp_path, workers, alpha=alpha)
        assert dict(counts.items()) == {
            **dict.fromkeys(("the", "cat"), 800),
            **dict.fromkeys(("ya", "tafi"), 50 * factor),
        }


def test_only_named_sources_have_a_mixture() -> None:
    with pytest.raises(UsageError, match="`mixture_alpha`"):
        train_tokenizer(["the cat sat"], kind="bpe", vocab_size=300, mixture_alpha=0.3)
    with pytest.raises(UsageError, match=r"`mixture_alpha`.*7"):
        train_tokenizer({"en": ["the cat sat"]}, kind="bpe", vocab_size=300, mixture_alpha=7)
