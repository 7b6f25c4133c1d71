"""A vocabulary of thirty tokens for the examples in docstrings and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import SENTINEL, Vocabulary
from firth.utils.rng import derive_keys

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "quick", "brown", "fox", "jump", "##s", "over", "a", "lazy", "dog", "."),
    *("it", "barked", "thank", "you", "for", "invit", "##ing", "me", "to", "your", "party"),
    *(SENTINEL.format(i) for i in (2, 1, 0)),
)
ROLES = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCABULARY = Vocabulary(
    ids=ROLES,
    sentinels=np.array([WORDS.index(SENTINEL.format(i)) for i in range(3)]),
    special=np.array([word[0] in "[<" for word in WORDS]),
    begins=np.array([not word.startswith("##") for word in WORDS]),
    ends=np.zeros(len(WORDS), dtype=np.bool_),
)


def packed(*texts: str, seed: int = 0) -> PackedSequences:
    """Encode texts as packed sequences of token ids.

    >>> packed("[CLS] the dog [SEP]", "a fox").tokens.tolist()
    [2, 5, 14, 3, 12, 8]
    """
    rows = [[WORDS.index(word) for word in text.split()] for text in texts]
    joined = PackedSequences.join(
        [np.array(row) for row in rows], derive_keys(seed, np.arange(len(rows)))
    )
    after_periods = np.flatnonzero(joined.tokens == WORDS.index(".")) + 1
    sentences = np.union1d(joined.starts, after_periods)[:-1]
    return replace(joined, sentences=sentences)


def words(ids: Sequence[int] | PackedSequences) -> list[str] | str:
    """Decode token ids to words, sequence by sequence."""
    if isinstance(ids, PackedSequences):
        return [str(words(row.tolist())) for row in ids.rows()]
    return " ".join(WORDS[i] for i in ids)


def predicted(batch: Batch, name: str) -> str:
    """Return the target words of a prediction."""
    return str(words(batch.predictions[name].targets.tolist()))
