"""Pseudo-log-likelihoods under masked language models: mask each token in turn and score it.

    G  texts of one length     L  tokens of each     C  copies, one per masked token
    R  distinct copies

The sum is a text's pseudo-log-likelihood (Salazar et al. 2020). A text of a dozen tokens becomes a
dozen rows, so the copies of all texts of one length are built together, with array operations.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.generation.special_tokens import as_list
from firth.inference.scoring.log_likelihood import check_length, no_likelihood_message, text_groups
from firth.inference.scoring.token_scoring import (
    BATCHES_PER_WINDOW,
    TokenScores,
    check_language_head,
    default_batch_tokens,
    scores_on_host,
    target_log_probs,
)
from firth.models.language_model import ScoringModel
from firth.models.masks import Mask
from firth.models.transformer import max_text_length
from firth.tokenizers.tokenizer import Tokenizer, encode_batch
from firth.utils.device_transfer import AsyncFetch, to_device
from firth.utils.errors import MismatchError
from firth.utils.rng import Bools, Floats, Longs, derive_keys
from firth.utils.streams import bounded_batches


class MaskedPositions(NamedTuple):
    """Positions of a text that are masked in turn."""

    tokens: Sequence[int]  # (L,) the text with its special tokens
    positions: Sequence[int]  # scored positions
    ends: Sequence[int]  # each copy is masked from its position up to this end

    @property
    def size(self) -> int:
        """The number of input tokens."""
        return len(self.tokens) * len(self.positions)


def pseudo_log_likelihoods(
    network: ScoringModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    by_word: bool = False,
    batch_tokens: int = 0,
    temperature: float = 1.0,
) -> Iterator[TokenScores]:
    """Compute the pseudo-log-likelihood of each text.

    With `by_word`, the rest of a token's word is masked with it, so that a rare word is not given
    away by its second half (Kauf and Ivanova 2023). A decoder must be pre-trained with the `hybrid`
    objective: it uses bidirectional attention and predicts a token at the position before it.
    Logits are divided by the temperature.
    """
    mask_id = tokenizer.special_ids.get("mask")
    if network.config.architecture == "encoder-decoder":
        raise MismatchError(no_likelihood_message("encoder-decoder"))
    if mask_id is None:
        raise MismatchError("This model's tokenizer has no mask token, so it cannot mask tokens.")
    check_language_head(network)
    size = batch_tokens or default_batch_tokens(network)
    encode = _encode_for_decoder if network.config.has_decoder else _encode_for_encoder
    max_length, sizes = max_text_length(network), deque[int]()

    def masked_texts() -> Iterator[MaskedPositions]:
        for tokens, maskable, words in encode(network, tokenizer, texts, by_word):
            check_length(len(tokens), max_length)
            sizes.append(len(maskable))
            ends = [_end_of_word(words, i) if by_word else i + 1 for i in maskable]
            chunk = max(1, size * BATCHES_PER_WINDOW // max(1, len(tokens)))
            for begin in range(0, len(maskable), chunk):
                part = slice(begin, begin + chunk)
                yield MaskedPositions(tokens, maskable[part], ends[part])

    window_size = size * BATCHES_PER_WINDOW
    windows = bounded_batches(
        masked_texts(), lambda one: one.size, max_size=window_size, max_items=sys.maxsize
    )
    started = (_start_window(network, window, mask_id, size, temperature) for window in windows)
    scores = (_finish_window(window) for window in _one_ahead(started))
    return _join_parts(chain.from_iterable(scores), sizes)


class StartedWindow(NamedTuple):
    """The scores of a window of texts, which a GPU may still be computing."""

    log_probs: AsyncFetch  # of all masked tokens, by the length of their text
    is_top: AsyncFetch
    order: Longs  # the texts in this order
    counts: Longs  # masked tokens of each


def _one_ahead(windows: Iterator[StartedWindow]) -> Iterator[StartedWindow]:
    """Start the next window before a window is waited for: the host prepares it meanwhile."""
    previous = next(windows, None)
    for window in windows:
        assert previous is not None
        yield previous
        previous = window
    if previous is not None:
        yield previous


@torch.no_grad()
def _start_window(
    network: ScoringModel,
    window: Sequence[MaskedPositions],
    mask_id: int,
    size: int,
    temperature: float,
) -> StartedWindow:
    """Score the masked tokens of texts, those of one length together."""
    lengths = np.array([len(one.tokens) for one in window])
    order = np.argsort(lengths, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)
    found = [
        _score_same_length(network, [window[i] for i in group], mask_id, size, temperature)
        for group in groups
    ]
    # Copied before the next window is started, which `_finish_window` does not wait for.
    log_probs, is_top = (AsyncFetch(torch.cat(parts)) for parts in zip(*found, strict=True))
    counts = np.array([len(window[i].positions) for i in order])
    return StartedWindow(log_probs, is_top, order, counts)


def _finish_window(window: StartedWindow) -> list[tuple[Floats, Bools]]:
    """Return each masked token's log-probability, and whether it is the top token, by text."""
    log_probs, is_top = scores_on_host(window.log_probs.wait(), window.is_top.wait())
    ends = np.cumsum([0, *window.counts]).tolist()
    parts = [(log_probs[begin:end], is_top[begin:end]) for begin, end in pairwise(ends)]
    return [parts[i] for i in np.argsort(window.order)]


def _score_same_length(
    network: ScoringModel,
    group: Sequence[MaskedPositions],
    mask_id: int,
    size: int,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Score texts of one length; identical copies are computed once."""
    tokens = np.array([one.tokens for one in group])  # (G, L)
    owners = np.repeat(np.arange(len(group)), [len(one.positions) for one in group])  # (C,)
    positions, ends = (
        np.fromiter(chain.from_iterable(values), np.int64, len(owners))
        for values in ([one.positions for one in group], [one.ends for one in group])
    )
    rows, which = _distinct_rows(_masked_copies(tokens[owners], positions, ends, mask_id))
    targets = tokens[owners, positions]
    positions -= int(network.config.has_decoder)
    length, device = rows.shape[1], network.device
    batch_size = max(1, size // length)
    parts, scored = [], []
    for begin in range(0, len(rows), batch_size):
        batch = rows[begin : begin + batch_size]
        mask = Mask(np.full(len(batch), length), device=device)
        hidden = network(to_device(batch.reshape(-1), device), mask)
        inside = np.flatnonzero((which >= begin) & (which < begin + len(batch)))
        flat = (which[inside] - begin) * length + positions[inside]
        parts.append(target_log_probs(network, hidden, flat, targets[inside], temperature))
        scored.append(inside)
    order = to_device(np.argsort(np.concatenate(scored)), device)
    log_probs, is_top = (torch.cat(values)[order] for values in zip(*parts, strict=True))
    return log_probs, is_top


def _masked_copies(texts: Longs, positions: Longs, ends: Longs, mask_id: int) -> Longs:
    """Mask each text, of shape (C, L), from its position up to its end.

    >>> _masked_copies(np.array([[1, 7, 8, 2]] * 2), np.array([1, 2]), np.array([3, 3]), 0).tolist()
    [[1, 0, 0, 2], [1, 7, 0, 2]]
    """
    at = np.arange(texts.shape[1])
    return np.where((at >= positions[:, None]) & (at < ends[:, None]), mask_id, texts)


def _distinct_rows(rows: Longs) -> tuple[Longs, Longs]:
    """Return the distinct rows, and for each row the index of its equal among them.

    Sums of products with random numbers tell rows apart much faster than sorting them does.

    >>> distinct, which = _distinct_rows(np.array([[1, 2], [3, 4], [1, 2]]))
    >>> len(distinct), distinct[which].tolist()
    (2, [[1, 2], [3, 4], [1, 2]])
    """
    factors = derive_keys(0, np.arange(rows.shape[1])) | np.uint64(1)
    _, first, which = np.unique(
        rows.astype(np.uint64) @ factors, return_index=True, return_inverse=True
    )
    if not np.array_equal(rows[first][which], rows):  # two different rows with one sum
        return np.unique(rows, axis=0, return_inverse=True)
    return rows[first], which


# Tokens, maskable positions, and the word of each token if texts are masked by word.
EncodedText = tuple[list[int], list[int], list[int | None]]


def _encode_for_encoder(
    network: ScoringModel, tokenizer: Tokenizer, texts: Iterable[str], by_word: bool
) -> Iterator[EncodedText]:
    """Tokenize with the tokenizer's special tokens, which are never masked."""
    for group in text_groups(texts):
        for encoding in encode_batch(tokenizer.backend, group, specials=True, offsets=by_word):
            is_special = encoding.special_tokens_mask
            maskable = [i for i, special in enumerate(is_special) if not special]
            yield encoding.ids, maskable, encoding.word_ids if by_word else []


def _encode_for_decoder(
    network: ScoringModel, tokenizer: Tokenizer, texts: Iterable[str], by_word: bool
) -> Iterator[EncodedText]:
    """Tokenize between begin and end tokens; the first token has no position that predicts it."""
    begin, end = as_list(network.config.bos_token_id), as_list(network.config.eos_token_id)
    for group in text_groups(texts):
        for encoding in encode_batch(tokenizer.backend, group, offsets=by_word):
            maskable = range(len(begin), len(begin) + len(encoding.ids))
            words = encoding.word_ids if by_word else []
            words = [*[None] * len(begin), *words, *[None] * len(end)]
            yield [*begin, *encoding.ids, *end], [i for i in maskable if i], words


def _end_of_word(words: Sequence[int | None], position: int) -> int:
    """Return the end of the word that a position belongs to.

    >>> _end_of_word([None, 0, 1, 1, 1, 2, None], 3)
    5
    """
    end = position + 1
    while end < len(words) and words[end] is not None and words[end] == words[position]:
        end += 1
    return end


def _join_parts(parts: Iterator[tuple[Floats, Bools]], sizes: deque[int]) -> Iterator[TokenScores]:
    """Join the parts of each text; `sizes` has the number of scored tokens per text."""
    nothing = np.empty(0), np.empty(0, dtype=np.bool_)
    log_probs, is_top = nothing
    for part in chain(parts, [nothing]):  # a text without tokens has no part
        if len(log_probs):
            part = np.concatenate([log_probs, part[0]]), np.concatenate([is_top, part[1]])
        log_probs, is_top = part
        while sizes and len(log_probs) >= sizes[0]:
            size = sizes.popleft()
            yield TokenScores(log_probs[:size], bool(is_top[:size].all()))
            log_probs, is_top = log_probs[size:], is_top[size:]
