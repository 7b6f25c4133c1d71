"""Models from before the Transformer, and task-specific models that pre-training replaced."""

from __future__ import annotations

from firth.models.ngram.config import NgramConfig
from firth.models.presets.elmo import ELMO
from firth.models.presets.recurrent import RECURRENT_MODELS
from firth.models.presets.recurrent_tasks import RECURRENT_TASKS
from firth.models.presets.row import Preset
from firth.models.presets.word_vectors import WORD_VECTORS

# The vocabulary is that of the tokenizer, and the number of n-grams that of the text.
NGRAMS = {
    f"ngram-{n}": Preset(
        name=f"ngram-{n}",
        config=NgramConfig(order=n, vocab_size=1),
        heads=("language",),
        objective="n-gram",
        recipe="",
        source="modified Kneser-Ney: Chen and Goodman 1999",
        parameters=0,
    )
    for n in range(1, 7)
}

EARLIER: dict[str, Preset] = {
    **NGRAMS,
    **WORD_VECTORS,
    **RECURRENT_MODELS,
    **ELMO,
    **RECURRENT_TASKS,
}
