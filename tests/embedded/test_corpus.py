"""The pre-training text of the embedded models contains neither probes nor test texts."""

from __future__ import annotations

import pytest

from firth.data.stories import generate_story, held_out
from firth.data.stories.probes import PROBES, contains_context, context, read_probes, words_of
from scripts import embedded_corpus
from scripts.embedded_corpus import by_first_words, contains_any, task_texts, training_text


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task files of 100 000 words."""
    monkeypatch.setattr(embedded_corpus, "TASK_WORDS", 100_000)
    embedded_corpus.test_texts.cache_clear()


def test_probes_are_held_out() -> None:
    assert [len(read_probes(name)) for name in PROBES] == [50, 10, 10]
    for name in PROBES:
        for row in read_probes(name):
            for text in (part for part in row if "[MASK]" in part):
                assert held_out(text.replace("[MASK]", "thing")), text
                around = context(text)
                assert contains_context([*around.before, "anything", *around.after]), text
                assert not contains_context([*around.before, *around.after][1:]), text


def test_texts_with_a_test_text_are_recognized() -> None:
    story = generate_story(0, 13)
    tests = by_first_words(task_texts(story.examples))
    assert contains_any(f"Before. {story.text} After.", tests)
    for review, _ in story.examples.sentiment:
        assert contains_any(f'"{review.upper()}"', tests)
        assert not contains_any(review.rsplit(" ", 2)[0], by_first_words([review]))


def test_stories_with_a_test_text_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = generate_story(1, 0).sentences[0]
    other = by_first_words(["No story has these words."])
    monkeypatch.setattr(embedded_corpus, "test_texts", lambda: other)
    assert sentence in training_text(1, 2000)
    monkeypatch.setattr(embedded_corpus, "test_texts", lambda: by_first_words([sentence]))
    assert sentence not in training_text(1, 2000)


@pytest.mark.usefixtures("small")
def test_training_text() -> None:
    text = training_text(1, 20_000)
    assert len(text.split()) > 20_000
    assert not contains_context(words_of(text))
    assert not contains_any(text, embedded_corpus.test_texts())


@pytest.mark.nightly
def test_a_whole_part_of_the_training_text() -> None:
    embedded_corpus.test_texts.cache_clear()
    text = training_text(7, 500_000)
    assert not contains_context(words_of(text))
    assert not contains_any(text, embedded_corpus.test_texts())
