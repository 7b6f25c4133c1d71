"""Word similarity: do the cosines of vectors rank pairs of words as people do?

The metric is Spearman's rank correlation with human scores, as for WordSim-353 (Finkelstein et al.
2002) and SimLex-999 (Hill et al. 2015). Pairs with an unknown word are left out and counted.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from firth.inference.embedding.embedder import Embedder, make_embedder
from firth.inference.embedding.word_lookup import Floats, FoundWords, look_up
from firth.metrics.classification import regression_metrics
from firth.models.language_model import LanguageNetwork
from firth.models.static_vectors import StaticVectors
from firth.tasks.readers.columns import good_examples
from firth.tasks.readers.word_pairs import read_word_pairs
from firth.tasks.scoring_task import Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.utils.errors import MismatchError

AS_TEXTS = "Each word is embedded as a text of its own, without context."
MIN_PAIRS = 3  # for a correlation


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute the correlations of cosines with human scores."""
    embedder = word_embedder(scorer)
    pairs = list(islice(good_examples(read_word_pairs, options.file), options.limit or None))
    words = list(dict.fromkeys(word for pair in pairs for word in (pair.first, pair.second)))
    place = {word: row for row, word in enumerate(words)}
    found = look_up(embedder, words)
    first, second = (
        np.array([place[getattr(pair, side)] for pair in pairs]) for side in ("first", "second")
    )
    known = found.known[first] & found.known[second]
    check_known(scorer, int(known.sum()), MIN_PAIRS, f"pairs of {options.data}")
    scores = np.array([pair.score for pair in pairs])[known]
    metrics = regression_metrics(scores, _cosines(found, first[known], second[known]))
    skipped = len(pairs) - len(scores)
    return ScoringResult(
        n=len(scores),
        metrics={name: metrics[name] for name in ("spearman", "pearson")},
        details={"pairs": len(pairs), "out_of_vocabulary": skipped},
        notes=[
            f"{skipped:,} of {len(pairs):,} pairs have an unknown word, and are left out."
            if skipped
            else "All words have vectors.",
            *word_notes(embedder),
        ],
    )


def _cosines(found: FoundWords, first: Floats, second: Floats) -> Floats:
    """Compute the cosine of each pair of rows; 0 if one is a zero vector."""
    norms = np.linalg.norm(found.vectors, axis=1, keepdims=True)
    units = found.vectors / np.where(norms > 0, norms, 1)
    return (units[first].astype(np.float64) * units[second]).sum(1)


def word_embedder(scorer: Scorer) -> Embedder:
    """Return the embedder of a model, which must have hidden states."""
    if not isinstance(scorer.network, LanguageNetwork):
        raise MismatchError(
            f"{scorer.name} has no hidden states, and so no vectors of words: use word vectors, or "
            "a network."
        )
    return make_embedder(scorer.network, scorer.tokenizer, scorer.sentence)


def check_known(scorer: Scorer, known: int, needed: int, what: str) -> None:
    """Raise MismatchError if too few examples have vectors."""
    if known < needed:
        raise MismatchError(
            f"{scorer.name} has vectors for all words of only {known} {what}; use vectors of the "
            "same language and kind of words."
        )


def word_notes(embedder: Embedder) -> list[str]:
    """Say how words are looked up in a model."""
    if not isinstance(embedder.network, StaticVectors):
        return [AS_TEXTS]
    composed = " or composed of its n-grams" if embedder.network.ngrams is not None else ""
    return [f"A word is looked up as it is, then lower-cased{composed}."]


SIMILARITY = ScoringTask(
    about="similarity of words, as people judge it (WordSim-353, SimLex-999)",
    columns="word1, word2, score",
    metric="spearman",
    architectures=("encoder", "decoder", "encoder-decoder"),
    options=(),
    run=measure,
)
