"""Vectors of words and pairs, against the hidden states of each text alone."""

from __future__ import annotations

import numpy as np
import pytest

from firth import Model
from firth.inspection.probe_vectors import pair_vectors, text_vectors, word_vectors

SENTENCES = [["Anna", "'s", "unbelievable", "kite", "."], ["It", "rained", "."]]


def test_a_word_is_the_mean_of_its_tokens(encoder: Model) -> None:
    words = [(0, 2), (0, 3), (1, 1)]
    vectors, seen = word_vectors(encoder, SENTENCES, words)
    assert seen == words
    text = "Anna 's unbelievable kite ."
    states = encoder.hidden_states(text).numpy()  # (L + 1, N, W)
    spans = encoder.tokenizer.encoding(text, specials=True).offsets
    # A token may begin with the space before its word.
    own = [i for i, (a, b) in enumerate(spans) if 7 <= a < b <= 20]
    assert len(own) > 1
    assert np.allclose(vectors[:, 0], states[:, own].mean(1), atol=1e-4)


def test_words_beyond_the_maximum_length_are_left_out(encoder: Model) -> None:
    long = ["kite"] * 600
    vectors, seen = word_vectors(encoder, [long, SENTENCES[1]], [(0, 0), (0, 599), (1, 0)])
    assert seen == [(0, 0), (1, 0)]
    assert vectors.shape[1] == 2


def test_a_pair_is_both_texts_their_distance_and_product(encoder: Model) -> None:
    u, v = text_vectors(encoder, ["It rained.", "The sun shone."]).transpose(1, 0, 2)
    pair = pair_vectors(encoder, [("It rained.", "The sun shone.")])[:, 0]
    expected = np.concatenate([u, v, abs(u - v), u * v], axis=1)
    assert pair == pytest.approx(expected, abs=1e-5)
