"""Word vectors: one row for each way to train them."""

from __future__ import annotations

from firth.models.presets.row import Preset
from firth.models.static_vectors_config import StaticVectorsConfig

VECTOR_SIZE = 100
# Of the n-grams. fastText has 2,000,000, which is 800 MB; a vocabulary of 43,000 words has 198,000.
BUCKETS = 500_000


def _word_vectors(name: str, source: str, buckets: int = 0) -> Preset:
    """Return the row of word vectors; the vocabulary is that of the tokenizer."""
    return Preset(
        name=name,
        config=StaticVectorsConfig(vocab_size=1, hidden_size=VECTOR_SIZE, buckets=buckets),
        heads=(),
        objective=name,
        recipe="",
        source=source,
        parameters=(1 + buckets) * VECTOR_SIZE,
    )


WORD_VECTORS = {
    row.name: row
    for row in (
        _word_vectors("skipgram", "Mikolov et al. 2013, arXiv 1310.4546"),
        _word_vectors("cbow", "Mikolov et al. 2013, arXiv 1301.3781"),
        _word_vectors("fasttext", "Bojanowski et al. 2017, arXiv 1607.04606", BUCKETS),
        _word_vectors("glove", "Pennington et al. 2014"),
    )
}
