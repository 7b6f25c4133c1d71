"""Embed texts: one vector per text, or one per token.

S  texts     N  tokens of all of them     W  vector size
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.inference.batching import batch_by_length
from firth.inference.embedding.embedder import Embedder
from firth.models.masks import Mask
from firth.models.pooling import pool_packed
from firth.models.static_vectors import StaticVectors
from firth.models.transformer import max_input_length
from firth.tokenizers.tokenizer import encode_batch
from firth.training.distributed.ranks import current_ranks, own_share, sum_arrays
from firth.utils.device_transfer import AsyncFetch, to_device
from firth.utils.errors import FirthError, UsageError
from firth.utils.streams import bounded_batches
from firth.utils.surrogates import without_surrogates

Floats = NDArray[np.float32]
logger = logging.getLogger("firth")
Item = TypeVar("Item")

CHUNK_ROWS, CHUNK_CHARACTERS = 2048, 1 << 18  # of texts that are sorted by length together


class TokenizedTexts(NamedTuple):
    """Tokenized texts."""

    rows: Sequence[Sequence[int]]
    cut: NDArray[np.bool_]  # (S,) whether the text was truncated


@dataclass(frozen=True)
class TextVectors:
    """The vectors of texts, which of these were truncated, and their number of tokens."""

    values: Floats  # (S, W)
    cut: NDArray[np.bool_]  # (S,) whether the text was truncated
    tokens: int

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which vectors have no NaN or infinity."""  # (S,)
        return np.asarray(np.isfinite(self.values).all(axis=1))


def embed(embedder: Embedder, texts: Data) -> Floats:
    """Compute one vector per text; texts longer than the context are truncated, which is logged.

    A text without tokens (possible if the tokenizer adds no special tokens) gets a zero vector.
    """
    texts = as_texts(texts, "texts")
    result = np.zeros((len(texts), embedder.dimension), dtype=np.float32)
    done = cut = 0
    for chunk, vectors in embed_chunks(
        embedder, chunked(texts, len), partial(encode_texts, embedder)
    ):
        if not vectors.finite.all():
            bad = done + int(np.argmin(vectors.finite))
            raise FirthError(
                f"The vector of text {bad} (counted from 0) is not finite: the network "
                'overflows, or its weights are NaN; try dtype="float32".'
            )
        result[done : done + len(chunk)] = vectors.values
        done += len(chunk)
        cut += int(vectors.cut.sum())
    if cut:
        most = f"{embedder.max_length:,} tokens"
        logger.warning(f"{cut:,} of {done:,} texts were longer than {most} and were truncated.")
    return result


def chunked(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group consecutive texts by their characters, to bound memory; ranks divide a group.

    >>> list(chunked(["ab", "c", "d" * CHUNK_CHARACTERS, "e"], len))[0]
    ['ab', 'c']
    """
    ranks = current_ranks().size
    return bounded_batches(
        items, size, max_size=ranks * CHUNK_CHARACTERS, max_items=ranks * CHUNK_ROWS
    )


def embed_chunks(
    embedder: Embedder,
    chunks: Iterable[list[Item]],
    encode: Callable[[list[Item]], TokenizedTexts],
    *,
    prefetch: bool | None = None,
) -> Iterator[tuple[list[Item], TextVectors]]:
    """Yield each chunk with its vectors; `prefetch` (default: on a GPU) overlaps three chunks.

    A thread then tokenizes one chunk while the network computes another, and the vectors of a third
    are copied to the host. Chunks before an error of the source are yielded before it is raised.
    """
    if not (embedder.device.type == "cuda" if prefetch is None else prefetch):
        for chunk in chunks:
            yield chunk, start_embedding(embedder, encode(chunk))()
        return
    tokenizing: deque[tuple[list[Item], Future[TokenizedTexts]]] = deque()
    computing: deque[tuple[list[Item], Callable[[], TextVectors]]] = deque()
    source, more, error = iter(chunks), True, None
    with ThreadPoolExecutor(1) as thread:
        while more:
            try:
                following = next(source, None)
            except Exception as raised:
                following, error = None, raised
            if following is None:
                more = False
            else:
                tokenizing.append((following, thread.submit(encode, following)))
            while len(tokenizing) > more:
                chunk, tokens = tokenizing.popleft()
                computing.append((chunk, start_embedding(embedder, tokens.result())))
                if len(computing) > 1:
                    chunk, wait = computing.popleft()
                    yield chunk, wait()
        for chunk, wait in computing:
            yield chunk, wait()
    if error is not None:
        raise error


@torch.no_grad()
def start_embedding(embedder: Embedder, tokens: TokenizedTexts) -> Callable[[], TextVectors]:
    """Start computing the vectors of texts in batches of similar length; return how to wait."""
    device = embedder.device
    order: list[int] = []
    parts: list[Tensor] = []
    nonempty = [i for i, row in enumerate(tokens.rows) if row]
    shapes = [(len(tokens.rows[i]),) for i in nonempty]
    with embedder.inference_mode():
        for batch in own_share(batch_by_length(shapes, embedder.tokens_per_batch, padded=True)):
            rows = [nonempty[i] for i in batch]
            hidden, mask = _hidden_states(embedder, [tokens.rows[row] for row in rows])
            with torch.autocast(device.type, enabled=False):
                pooled = pool_packed(hidden, mask, embedder.pooling, embedder.skip)
                parts.append(embedder.steps(pooled).float())
            order += rows
    vectors = torch.cat(parts) if parts else torch.empty(0, embedder.dimension, device=device)
    pending = AsyncFetch(vectors)

    def wait() -> TextVectors:
        values = np.zeros((len(tokens.rows), vectors.shape[1]), dtype=np.float32)
        values[order] = pending.wait().numpy()
        return TextVectors(sum_arrays(values), tokens.cut, sum(map(len, tokens.rows)))

    return wait


def encode_texts(embedder: Embedder, texts: Sequence[str]) -> TokenizedTexts:
    """Tokenize texts, truncated to the maximum length."""
    backend, max_length = embedder.tokenizer.backend, embedder.max_length
    prompted = [embedder.prompt + without_surrogates(text) for text in texts]
    is_open = embedder.network.config.open_vocabulary
    encodings = encode_batch(backend, prompted, specials=True, offsets=is_open)
    ids = [encoding.ids for encoding in encodings]
    if is_open:
        pairs = zip(encodings, prompted, strict=True)
        ids = [embedder.tokenizer.open_ids(*pair) for pair in pairs]
    cut = np.array([len(row) > max_length for row in ids], dtype=np.bool_)
    from_left = embedder.tokenizer.config.get("truncation_side") == "left"
    for row in np.flatnonzero(cut):
        ids[row] = truncate(ids[row], encodings[row].special_tokens_mask, max_length, from_left)
    if isinstance(embedder.network, StaticVectors):  # unknown words are left out of the mean
        unknown = embedder.network.config.unknown_token_id
        ids = [[id for id in row if id != unknown] for row in ids]
    return TokenizedTexts(ids, cut)


def truncate(ids: list[int], special: list[int], max_length: int, from_left: bool) -> list[int]:
    """Remove the last (or first) tokens of a text, but not the special tokens around it.

    >>> truncate([101, 7, 8, 9, 102], [1, 0, 0, 0, 1], 4, from_left=False)
    [101, 7, 8, 102]
    """
    first, last = special.index(0), len(special) - special[::-1].index(0)
    count = max(0, max_length - (first + len(ids) - last))
    kept = ids[last - count : last] if from_left else ids[first : first + count]
    return [*ids[:first], *kept, *ids[last:]]


def _hidden_states(embedder: Embedder, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Mask]:
    """Compute the mean of the selected layers for a batch of texts."""  # (N, W)
    network, device = embedder.network, embedder.device
    lengths = [len(row) for row in ids]
    flat = np.fromiter(chain.from_iterable(ids), np.int64, count=sum(lengths))
    tokens = to_device(flat, device)
    make_mask = Mask if network.config.has_encoder else Mask.causal
    mask = make_mask(lengths, device=device)
    if embedder.layers == (network.config.num_layers,):
        return network.encode(tokens, mask)[: len(tokens)].float(), mask
    layers = _SelectedLayers(embedder.layers)
    network.encode(tokens, mask, layers=layers)
    return sum(layers[1:], layers[0]) / len(layers), mask


class _SelectedLayers(list[Tensor]):
    """Collects the outputs of the selected layers; a layer selected twice is added twice."""

    def __init__(self, wanted: Sequence[int]) -> None:
        super().__init__()
        self.wanted, self.seen = wanted, 0

    def append(self, layer: Tensor) -> None:
        self.extend([layer.float()] * self.wanted.count(self.seen))
        self.seen += 1


# ---- single tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenVector:
    """A token of a text, its characters, and its vector."""

    token: str
    span: tuple[int, int]  # first and last + 1 character
    vector: Floats  # (W,)


@torch.no_grad()
def embed_tokens(embedder: Embedder, text: str) -> list[TokenVector]:
    """Compute the contextual vector of each token of a text, without special tokens."""
    text = without_surrogates(text)
    encoding = embedder.tokenizer.encoding(text, specials=True)
    if len(encoding.ids) > (max_length := max_input_length(embedder.network)):
        raise UsageError(
            f"The text has {len(encoding.ids)} tokens, but the model's context is {max_length} "
            "tokens; shorten it."
        )
    if not encoding.ids:
        return []
    ids = encoding.ids
    if embedder.network.config.open_vocabulary:
        ids = embedder.tokenizer.open_ids(encoding, text)
    with embedder.inference_mode():
        hidden, _ = _hidden_states(embedder, [ids])
    vectors: Floats = hidden.float().cpu().numpy()
    if not np.isfinite(vectors).all():
        raise FirthError('A vector of this text is not finite; try dtype="float32".')
    rows = zip(encoding.tokens, encoding.offsets, vectors, strict=True)
    special = encoding.special_tokens_mask
    return [TokenVector(*row) for row, skip in zip(rows, special, strict=True) if not skip]
