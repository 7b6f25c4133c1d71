"""Vectors of words, texts and pairs of texts at every layer, the inputs of probes.

A word is the mean of its tokens' hidden states, in its sentence; a text is the mean of all its
tokens; a pair is u, v, |u - v| and u * v, where u and v are its texts (InferSent, Conneau et al.
2017, section 3.1).

L  layers     G  words, texts or pairs     W  hidden size
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.inspection.layer_vectors import Vectors, encode_text, layer_embedder, layer_means
from firth.inspection.model_comparison import mean_vectors
from firth.model import Model

Word = tuple[int, int]  # sentence and place in it


def word_vectors(
    model: Model, sentences: Sequence[Sequence[str]], words: Sequence[Word]
) -> tuple[Vectors, list[Word]]:
    """Compute the vectors of words of sentences, which are joined by spaces.

    Words that the model does not see, because their sentence is longer than its maximum length, are
    left out: the words that have vectors are returned as well.
    """  # (L + 1, G, W)
    embedder = layer_embedder(model)
    encoded = [encode_text(embedder, " ".join(sentence)) for sentence in sentences]
    groups: list[list[list[int]]] = [[] for _ in sentences]
    seen: list[list[Word]] = [[] for _ in sentences]
    for row, place in words:
        start = sum(len(word) + 1 for word in sentences[row][:place])
        tokens = encoded[row].tokens_of((start, start + len(sentences[row][place])))
        if tokens:
            groups[row].append(tokens)
            seen[row].append((row, place))
    kept = [row for row, own in enumerate(groups) if own]
    vectors = layer_means(embedder, [encoded[row].ids for row in kept], [groups[r] for r in kept])
    return vectors, [word for row in kept for word in seen[row]]


def text_vectors(model: Model, texts: Sequence[str]) -> Vectors:
    """Compute the mean vector of each text."""  # (L + 1, G, W)
    return mean_vectors(model, texts)[0]


def pair_vectors(model: Model, pairs: Sequence[tuple[str, str]]) -> Vectors:
    """Compute the vectors of pairs of texts, each of which is encoded alone."""  # (L + 1, G, 4 W)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    places = {text: place for place, text in enumerate(texts)}
    vectors = text_vectors(model, texts)
    first, second = (vectors[:, [places[pair[side]] for pair in pairs]] for side in (0, 1))
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=2)
