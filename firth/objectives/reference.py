"""BERT's masking in plain Python: the reference that tests compare `masked` with."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def mask_tokens(
    tokens: Sequence[int],
    special: Sequence[bool],
    mask_id: int,
    mask_prob: float,
    rng: Random,
    *,
    keep_prob: float = 0.1,
    random_prob: float = 0.1,
) -> tuple[list[int], dict[int, int]]:
    """Mask one sequence as BERT does (Devlin et al. 2019, section 3.1).

    `special` marks the special tokens of the vocabulary. Return the inputs, and the target at each
    selected position: by default 80 % of those become [MASK], 10 % a random token, 10 % stay.

    >>> special = [True] * 5 + [False] * 15
    >>> mask_tokens([2, 11, 12, 13, 14, 15, 3], special, 4, 0.4, Random(0))
    ([2, 11, 12, 13, 4, 15, 3], {4: 14, 5: 15})
    """
    candidates = [i for i, token in enumerate(tokens) if not special[token]]
    count = min(len(candidates), max(1, round(len(candidates) * mask_prob)))
    inputs, targets = list(tokens), {}
    for position in sorted(rng.sample(candidates, count)):
        targets[position] = tokens[position]
        draw = rng.random()
        if draw < 1 - keep_prob - random_prob:
            inputs[position] = mask_id
        elif draw < 1 - keep_prob:
            inputs[position] = rng.choice([t for t in range(len(special)) if not special[t]])
    return inputs, targets
