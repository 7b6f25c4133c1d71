"""Spelling correction: edit distances, the noisy channel, and a trained model."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth import Model, Tokenizer, load
from firth.inference.infilling.similar_words import SimilarWord, build_word_list, edit_distances
from firth.inference.infilling.spelling import (
    EDIT_COST,
    MIN_GAIN,
    MIN_LOG_PROB,
    SuspectWord,
    _best_correction,
    correct_batch,
    make_corrector,
)
from firth.inference.scoring.token_scoring import ScoringRequest
from firth.utils.errors import MismatchError
from tests.inference.conftest import SENTENCES, MakeModel, memorize


def distance(one: str, other: str) -> int:
    width = max(len(other), 1)
    letters = np.zeros((1, width), dtype=np.int32)
    letters[0, : len(other)] = [ord(letter) for letter in other]
    return int(edit_distances(one, letters, np.array([len(other)]))[0])


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("kitten", "sitting", 3),  # the textbook example of Levenshtein's distance
        ("teh", "the", 1),
        ("acress", "actress", 1),  # Kernighan, Church and Gale 1990
        ("ca", "abc", 3),  # 2 if a letter might be touched twice
    ],
)
def test_published_distances(one: str, other: str, count: int) -> None:
    assert distance(one, other) == count


@settings(max_examples=200, deadline=None)
@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_distances_are_those_of_the_definition(one: str, other: str) -> None:
    def define(i: int, j: int) -> int:
        if min(i, j) == 0:
            return max(i, j)
        found = [
            define(i - 1, j) + 1,
            define(i, j - 1) + 1,
            define(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        ]
        if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
            found.append(define(i - 2, j - 2) + 1)
        return min(found)

    assert distance(one, other) == define(len(one), len(other))


def test_similar_words(tokenizers: dict[str, Tokenizer]) -> None:
    lexicon = build_word_list(tokenizers["wordpiece"], spaced=True)
    assert {"the", "and"} <= set(lexicon.words)
    assert not any(word.startswith("#") or len(word) < 2 for word in lexicon.words)
    found = {near.word: near.edits for near in lexicon.similar("Teh")}
    assert found["the"] == 1
    assert set(found.values()) == {1}  # a short word differs in one letter
    assert "the" not in {near.word for near in lexicon.similar("the")}
    ids = tokenizers["wordpiece"].encode("the")
    assert [near.id for near in lexicon.similar("teh") if near.word == "the"] == ids


def test_whole_words_of_other_kinds(tokenizers: dict[str, Tokenizer]) -> None:
    """Byte-level BPE has other tokens at the beginning of a text."""
    tokenizer = tokenizers["bpe"]
    spaced, first = (build_word_list(tokenizer, spaced=spaced) for spaced in (True, False))
    (within,) = [id for word, id in zip(spaced.words, spaced.ids, strict=True) if word == "the"]
    assert tokenizer.backend.id_to_token(int(within)) == "Ġthe"
    assert all(not tokenizer.backend.id_to_token(int(id)).startswith("Ġ") for id in first.ids)


# ---- the noisy channel

NEAR = [SimilarWord("the", 5, 1), SimilarWord("ten", 6, 1), SimilarWord("them", 7, 2)]
ROW = ScoringRequest((1, 4, 2), [1, 1, 1], [5, 6, 7])


def judged(first: list[float], *rest: list[float], word: str = "teh", spelt: bool = True) -> Any:
    doubt = SuspectWord(0, len(word), NEAR, [ROW] * (1 + len(rest)))
    return _best_correction(word, doubt, [first, *rest], spelt)


def test_a_correction_by_hand() -> None:
    """P(the) = 0.5, P(ten) = 0.1, P(them) = 0.4; `teh` has two tokens, 1e-4 and 1e-3."""
    found = judged([log(0.5), log(0.1), log(0.4)], [log(1e-4)], [log(1e-3)], word="Teh")
    assert (found.word, found.correction, found.edits) == ("Teh", "The", 1)
    assert found.score == pytest.approx(0.5)
    assert found.was == pytest.approx(1e-7)
    assert found.gain == pytest.approx(log(0.5) - EDIT_COST - log(1e-7))


def test_the_margin() -> None:
    """A correction must win by the minimum gain."""
    for was, is_better in (
        (-EDIT_COST - MIN_GAIN - 0.7, True),
        (-EDIT_COST - MIN_GAIN - 0.68, False),
    ):
        assert (judged([log(0.5), -9.0, -9.0, was]) is not None) == is_better
    # Two edits cost twice as much: `them` is e times likelier than `the`, and loses.
    assert judged([-2.0, -9.0, -1.0, -20.0]).correction == "the"
    assert judged([-9.0, -15.0, -1.0, -30.0]).correction == "them"


def test_words_with_unknown_characters() -> None:
    found = judged([log(0.5), -9.0, -9.0, log(0.4)], spelt=False)
    assert found.was == pytest.approx(exp(MIN_LOG_PROB))


# ---- a trained model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small encoder trained on six sentences."""
    return load(memorize(SENTENCES * 40, tmp_path_factory.mktemp("world"), "encoder-tiny", 120))


@pytest.mark.parametrize(
    ("text", "corrected", "words"),
    [
        ("Teh dog barked at the mailman.", "The dog barked at the mailman.", ["Teh"]),
        ("The dgo barked at the mailmn.", "The dog barked at the mailman.", ["dgo", "mailmn"]),
        ("The farmer sold apples at the market.", None, []),
        ("THE BOY PLAYED WITH THE SMALL BAOT.", "THE BOY PLAYED WITH THE SMALL BOAT.", ["BAOT"]),
    ],
)
def test_misspelt_words(text: str, corrected: str | None, words: list[str], world: Model) -> None:
    found = world.correct(text)
    assert found.corrected == (corrected or text)
    assert [one.word for one in found.corrections] == words
    for one in found.corrections:
        assert text[one.begin : one.end] == one.word
        assert one.gain >= MIN_GAIN
        assert one.score > one.was


def test_a_word_mistaken_for_another(world: Model) -> None:
    """`war` is a word, but the wrong one in this context."""
    found = world.correct("The cat slept on the war table.").corrections
    assert [(one.word, one.correction) for one in found] == [("war", "warm")]
    assert world.correct("The small boat.").corrections == []


def test_corrections_do_not_depend_on_the_batch(world: Model) -> None:
    texts = ["Teh dog barked.", "", "The cat slept on the tabel.", "12 [MASK] don't!"]
    corrector = make_corrector(world.blank_filler())
    together = correct_batch(corrector, texts, [corrector.find_suspects(text) for text in texts])
    assert [found.corrected for found in together] == [world.correct(t).corrected for t in texts]


def test_models_that_cannot_correct(make_model: MakeModel, world: Model) -> None:
    tokenizer = world.require_tokenizer()
    for name, sentence in (
        ("bart-base", "encoder-decoder cannot correct"),
        ("decoder-tiny", "decoder.*hybrid"),
    ):
        model = Model(make_model(name).network, tokenizer)
        with pytest.raises(MismatchError, match=sentence):
            model.correct("Teh dog.")


def test_corrections_on_the_command_line(world: Model, verb: Any, tmp_path: Path) -> None:
    world.save(tmp_path / "model")
    done = verb("fill", "model", "--correct", "Teh dog barked at the mailman.")
    assert "Teh" in done.stdout
    assert "The dog barked at the mailman." in done.stdout
    nothing = verb("fill", "model", "--correct", "The dog barked at the mailman.")
    assert "No corrections" in nothing.stdout
    found = json.loads(verb("fill", "model", "--correct", "Teh dog barked.", "--json").stdout)
    assert found["corrected"] == "The dog barked."
    assert found["corrections"][0].keys() == {
        *("word", "correction", "begin", "end", "edits", "score", "was", "gain")
    }
    Path("texts.txt").write_text("Teh dog barked.\n\nThe cat slpet on the warm table.\n")
    lines = verb("fill", "model", "--correct", "--file", "texts.txt").stdout.splitlines()
    assert lines == ["The dog barked.", "", "The cat slept on the warm table."]
