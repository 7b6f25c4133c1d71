"""Nearest neighbours of a few words: a first look at trained vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.rng import Longs

RANKS = (100, 300, 1000, 3000)  # of the words shown, among frequent words with letters
MIN_LETTERS, MIN_COUNT = 4, 10
NEIGHBOURS = 5


def describe_neighbours(vectors: Tensor, counts: Longs, tokenizer: Tokenizer) -> list[str]:
    """Return a sentence with the nearest neighbours, by cosine, of words of different frequency."""
    frequent = [id for id in np.argsort(-counts, kind="stable").tolist() if counts[id] >= MIN_COUNT]
    words = {id: tokenizer.backend.id_to_token(id) or "" for id in frequent}
    shown = [id for id in frequent if words[id].isalpha() and len(words[id]) >= MIN_LETTERS]
    units = normalize(vectors[torch.tensor(frequent, dtype=torch.long)], dim=1)
    lines = []
    for id in (shown[rank] for rank in RANKS if rank < len(shown)):
        near = (units @ normalize(vectors[id], dim=0)).topk(min(NEIGHBOURS + 1, len(frequent)))
        names = [words[frequent[row]] for row in near.indices.tolist() if frequent[row] != id]
        lines.append(f"Nearest to {words[id]}: {', '.join(names[:NEIGHBOURS])}.")
    return lines
