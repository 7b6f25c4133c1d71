"""The rows of word vectors in the table of fitted objectives."""

from __future__ import annotations

from firth.training.fitting import FittedObjective
from firth.training.word_vectors.fit_vectors import (
    check_options,
    default_options,
    fit_cbow,
    fit_fasttext,
    fit_glove,
    fit_skipgram,
)
from firth.training.word_vectors.glove import GloveConfig
from firth.training.word_vectors.negative_sampling import NegativeSamplingConfig

WORD_VECTORS = {
    "skipgram": FittedObjective(
        about="predict a word from each word of its context, among sampled negatives",
        source="Mikolov et al. 2013, arXiv 1310.4546",
        fit=fit_skipgram,
        options=default_options(NegativeSamplingConfig()),
        check=check_options,
    ),
    "cbow": FittedObjective(
        about="predict a word from the mean of its context, among sampled negatives",
        source="Mikolov et al. 2013, arXiv 1301.3781",
        fit=fit_cbow,
        options=default_options(NegativeSamplingConfig()),
        check=check_options,
    ),
    "fasttext": FittedObjective(
        about="skip-gram with vectors of character n-grams",
        source="Bojanowski et al. 2017, arXiv 1607.04606",
        fit=fit_fasttext,
        options=default_options(NegativeSamplingConfig()),
        check=check_options,
    ),
    "glove": FittedObjective(
        about="fit the logarithms of co-occurrence counts of words",
        source="Pennington et al. 2014",
        fit=fit_glove,
        options=default_options(GloveConfig()),
        check=check_options,
    ),
}
