"""Fit an n-gram model: count the n-grams of shards and smooth the counts."""

from __future__ import annotations

from firth.models.ngram.config import NgramConfig
from firth.models.ngram.counting import Ints, bounded_text, count_ngrams
from firth.models.ngram.kneser_ney import KneserNey
from firth.models.ngram.model import NgramModel
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.fitting import FitInputs
from firth.utils.rng import Bools


def fit_ngram(inputs: FitInputs) -> NgramModel:
    """Count n-grams in one pass per order, and smooth them (modified Kneser-Ney)."""
    config, vocabulary = inputs.config, inputs.tokenizer.vocabulary
    assert isinstance(config, NgramConfig)
    bos, eos = vocabulary.id("bos", "cls"), vocabulary.id("eos", "sep")
    text = bounded_text(inputs.shards, bos, eos, config.vocab_size)
    counts = count_ngrams(text, config.order, config.vocab_size, inputs.scratch, inputs.progress)
    del text
    predicted = _predicted(vocabulary, eos, counts[0].counts)
    inputs.progress("smoothing", 0, 1)
    smoothed = KneserNey(counts, bos, predicted, inputs.note).smooth()
    return NgramModel.from_orders(config, smoothed)


def _predicted(vocabulary: Vocabulary, eos: int, counts: Ints) -> Bools:
    """Return the tokens that can be predicted: ordinary tokens, <unk> and the end of a text."""
    predicted = ~vocabulary.special | (counts > 0)
    predicted[[eos, *([vocabulary.ids["unk"]] if "unk" in vocabulary.ids else [])]] = True
    return predicted
