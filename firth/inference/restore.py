"""Put back what was taken out of a text: an encoder-decoder answers hole by hole."""

from __future__ import annotations

from collections.abc import Sequence

from firth.errors import Misuse
from firth.inference.generate import greedy
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer


def restore(network: Transformer, tokenizer: Tokenizer, damaged: Sequence[int]) -> list[list[int]]:
    """What belongs into each hole of a damaged text, whose holes are sentinels (T5)."""
    holes = [id for id in damaged if id in set(tokenizer.sentinel_ids)]
    if not holes:
        raise Misuse("There is no hole in the text: write <extra_id_0> where something is missing.")
    most = min(network.config.context - 1, 8 * len(holes) + 8)
    written = greedy(network, [list(damaged)], most=most, end=network.config.end_id)[0]
    return [between(written, hole, set(holes)) for hole in holes]


def between(written: Sequence[int], hole: int, holes: set[int]) -> list[int]:
    """The tokens behind a sentinel, up to the next one.

    >>> between([90, 1, 2, 91, 3], 90, {90, 91}), between([90, 1], 91, {90, 91})
    ([1, 2], [])
    """
    if hole not in written:
        return []
    found = []
    for id in written[written.index(hole) + 1 :]:
        if id in holes:
            break
        found.append(id)
    return found
