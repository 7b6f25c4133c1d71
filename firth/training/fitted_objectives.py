"""The table of models that are fitted without the training loop, by the objective of a preset."""

from __future__ import annotations

from firth.training.fitting import FittedObjective
from firth.training.ngram_fitting import fit_ngram
from firth.training.word_vectors.objectives import WORD_VECTORS

FITTED: dict[str, FittedObjective] = {
    "n-gram": FittedObjective(
        about="predict the next token by counts of n-grams, smoothed by Kneser and Ney's method",
        source="Chen and Goodman 1999; Heafield et al. 2013",
        fit=fit_ngram,
    ),
    **WORD_VECTORS,
}
