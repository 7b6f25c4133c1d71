"""Texts to vectors: one for each token of a text, and one for the text as a whole.

S  texts     N  tokens of all of them     W  width
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from firth.adapt.prompts import reading_room
from firth.errors import FirthError, Misuse
from firth.models.formats.sentence import Normalize, Sentence
from firth.models.masks import Mask
from firth.models.pooling import pool_stream, read_pooling
from firth.models.transformer import Transformer
from firth.text.readers import INVALID
from firth.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Layer = int | Sequence[int]
Item = TypeVar("Item")

BATCH = {"cpu": 4096, "cuda": 65_536}  # tokens that a network sees at once
ROWS, CHARACTERS = 2048, 1 << 18  # of texts that are sorted by their length together


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A network with its tokenizer, and how one vector is made of those of a text's tokens."""

    network: Transformer
    tokenizer: Tokenizer
    pooling: tuple[str, ...]  # several are put side by side
    steps: nn.Sequential  # what is done to the pooled vector: projections, norms
    layers: tuple[int, ...]  # whose mean is pooled; 0: what enters the first layer
    limit: int  # tokens of a text, with those its family puts around it; the rest is cut
    prompt: str = ""  # stands before every text
    skip: int = 0  # so many tokens of the prompt are not pooled
    batch: int = 0  # tokens that the network sees at once; 0: what suits the device

    @cached_property
    def width(self) -> int:
        """The size of its vectors."""
        width = self.network.config.reading.width
        pooled = torch.zeros(1, width * len(self.pooling), device=self.device)
        return int(self.steps(pooled).shape[1])

    @property
    def device(self) -> torch.device:
        return self.network.tokens.weight.device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides which vector a text gets."""
        settings = {
            "config": self.network.config.to_dict(),
            "tokenizer": self.tokenizer.fingerprint,
            "pooling": [self.pooling, self.layers, self.limit, self.prompt, self.skip],
            "steps": [str(step) for step in self.steps],
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for module in (self.network, self.steps):
            for name, tensor in module.state_dict().items():
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Vectors:
    """The vectors of some texts, and what became of the texts on the way."""

    values: Floats  # (S, W)
    cut: NDArray[np.bool_]  # (S,) the text is longer than what the model sees
    tokens: int

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which vectors are made of numbers alone."""  # (S,)
        return np.asarray(np.isfinite(self.values).all(axis=1))


def make_embedder(
    network: Transformer,
    tokenizer: Tokenizer,
    sentence: Sentence | None = None,
    *,
    pooling: str | None = None,
    layer: Layer | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    batch: int = 0,
) -> Embedder:
    """What a model's directory says of embedding texts, and what is asked for instead.

    Where neither says anything, an encoder's vectors are averaged; of a decoder, only the last
    token has seen the whole text. `prompt` is the name of one that the directory has.
    """
    usual = ("mean",) if network.config.has_encoder else ("last",)
    given = sentence or Sentence(pooling=usual)
    kinds = read_pooling(pooling) if pooling else given.pooling
    if "cls" in kinds and network.config.architecture == "decoder":
        raise Misuse(
            "The first token of a decoder sees nothing of the text behind it, so cls says nothing "
            "of it; pool by last or mean."
        )
    Sentence(pooling=kinds, steps=given.steps).width(network.config.reading.width)
    before = _prompt(given, prompt)
    said = (given.longest, tokenizer.config.get("model_max_length"), reading_room(network))
    return Embedder(
        network=network,
        tokenizer=tokenizer,
        pooling=kinds,
        steps=_steps(given.steps, normalize).to(network.tokens.weight.device),
        layers=_layers(network, layer),
        limit=int(min(size for size in said if isinstance(size, int | float) and size > 0)),
        prompt=before,
        skip=_prompt_length(tokenizer, before) if before and not given.pools_prompt else 0,
        batch=batch,
    )


def _steps(steps: Sequence[nn.Module], normalize: bool | None) -> nn.Sequential:
    kept = list(steps)
    if normalize is not None:
        while kept and isinstance(kept[-1], Normalize):
            kept.pop()
        kept += [Normalize()] if normalize else []
    return nn.Sequential(*kept)


def _layers(network: Transformer, layer: Layer | None) -> tuple[int, ...]:
    """The layers of a network that are asked for, counted from the first; -1 is the last."""
    most = network.config.layers
    asked = (most,) if layer is None else (layer,) if isinstance(layer, int) else tuple(layer)
    for number in asked:
        if not -most - 1 <= number <= most:
            raise Misuse(
                f"There is no layer {number}: this model has {most} (0 is what enters the first, "
                "-1 the last)."
            )
    if not asked:
        raise Misuse("Name at least one layer.")
    return tuple(number % (most + 1) for number in asked)


def _prompt(sentence: Sentence, name: str | None) -> str:
    name = sentence.prompt if name is None else name
    if not name:
        return ""
    if name not in sentence.prompts:
        there = ", ".join(sentence.prompts) or "none"
        raise Misuse(f"This model has no prompt {name!r}; it has {there}.")
    return sentence.prompts[name]


def _prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """How many tokens a prompt is, with those before it but without those behind it."""
    mask = tokenizer.backend.encode(prompt).special_tokens_mask
    return len(mask) - (1 if mask and mask[-1] else 0)


def embed(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """One vector for each text; a text longer than the model sees is cut.

    A text without a single token, which only models without a token at the ends can have, gets a
    vector of zeros.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise Misuse("Texts to embed are a list of strings; put a single one into a list.")
    whole = np.zeros((len(texts), embedder.width), dtype=np.float32)
    done = 0
    for chunk in chunked(texts, len):
        vectors = embed_chunk(embedder, chunk)
        if not vectors.finite.all():
            bad = done + int(np.argmin(vectors.finite))
            raise FirthError(
                f"The vector of text {bad} (counted from 0) is not finite: the network overflows "
                'on it, or has weights that are not numbers; dtype="float32" may help.'
            )
        whole[done : done + len(chunk)] = vectors.values
        done += len(chunk)
    return whole


def chunked(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Neighbours of about so many characters together, so that memory is bounded.

    >>> list(chunked(["ab", "c", "d" * CHARACTERS, "e"], len))[1]
    ['e']
    """
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += size(item)
        if len(chunk) == ROWS or characters >= CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


@torch.no_grad()
def embed_chunk(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """The vectors of texts that are in memory: sorted by length, so that nothing is padded much."""
    ids, cut = _encode(embedder, texts)
    values = np.zeros((len(texts), embedder.width), dtype=np.float32)
    parts: list[tuple[list[int], Tensor]] = []
    with _still(embedder.network):
        for rows in _batches([len(row) for row in ids], embedder.batch or _usual(embedder)):
            stream, mask = _stream(embedder, [ids[row] for row in rows])
            pooled = pool_stream(stream, mask, embedder.pooling, embedder.skip)
            parts.append((rows, embedder.steps(pooled)))
    for rows, vectors in parts:
        values[rows] = vectors.float().cpu().numpy()
    return Vectors(values, cut, sum(map(len, ids)))


def _usual(embedder: Embedder) -> int:
    return BATCH.get(embedder.device.type, BATCH["cuda"])


def _encode(embedder: Embedder, texts: Sequence[str]) -> tuple[list[list[int]], NDArray[np.bool_]]:
    """The tokens of each text, and whether some had to be left out."""
    backend, limit = embedder.tokenizer.backend, embedder.limit
    whole = [embedder.prompt + _speakable(text) for text in texts]
    encodings = backend.encode_batch_fast(whole)
    ids = [encoding.ids for encoding in encodings]
    cut = np.array([len(row) > limit for row in ids], dtype=np.bool_)
    from_left = embedder.tokenizer.config.get("truncation_side") == "left"
    for row in np.flatnonzero(cut):
        ids[row] = _shortened(ids[row], encodings[row].special_tokens_mask, limit, from_left)
    return ids, cut


def _shortened(ids: list[int], special: list[int], limit: int, from_left: bool) -> list[int]:
    """A text that is too long without its last tokens (or its first), but with those at its ends.

    >>> _shortened([101, 7, 8, 9, 102], [1, 0, 0, 0, 1], 4, from_left=False)
    [101, 7, 8, 102]
    """
    first, last = special.index(0), len(special) - special[::-1].index(0)
    room = max(0, limit - (first + len(ids) - last))
    kept = ids[last - room : last] if from_left else ids[first : first + room]
    return [*ids[:first], *kept, *ids[last:]]


def _speakable(text: str) -> str:
    """A text without half characters (surrogates), of which no tokens can be made."""
    return text if text.isascii() else INVALID.sub("\ufffd", text)


def _batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Texts of similar length, the longest first, so many that they are `budget` tokens together.

    >>> list(_batches([2, 9, 3, 0, 3], budget=6))
    [[1], [2, 4], [0]]
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    begin = 0
    while begin < len(order):
        count = max(1, budget // lengths[order[begin]])
        yield order[begin : begin + count]
        begin += count


def _stream(embedder: Embedder, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Mask]:
    """What the network makes of each token, several texts at once."""  # (N, W)
    network, device = embedder.network, embedder.device
    lengths = [len(row) for row in ids]
    tokens = torch.tensor([id for row in ids for id in row], device=device)
    both_ways = network.encoder is not None
    mask = Mask(lengths, device=device) if both_ways else Mask.causal(lengths, device=device)
    stack = network.encoder or network.decoder
    assert stack is not None
    kept = _Kept(embedder.layers)
    stack(network.table(stack)(tokens), mask, layers=kept)
    return sum(kept[1:], kept[0]) / len(kept) if len(kept) > 1 else kept[0], mask


class _Kept(list[Tensor]):
    """Collects what leaves the layers that are asked for, as often as they are, and no other."""

    def __init__(self, wanted: Sequence[int]) -> None:
        super().__init__()
        self.wanted, self.seen = wanted, 0

    def append(self, layer: Tensor) -> None:
        self.extend([layer.float()] * self.wanted.count(self.seen))
        self.seen += 1


@contextmanager
def _still(network: Transformer) -> Iterator[None]:
    """Without dropout, also where a network is being trained."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


# ---- single tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenVector:
    """A token of a text, the characters it stands for, and what the network makes of it."""

    token: str
    span: tuple[int, int]  # begin and end in the text
    vector: Floats  # (W,)


@torch.no_grad()
def embed_tokens(embedder: Embedder, text: str) -> list[TokenVector]:
    """One vector for each token of a text, in its context; without the tokens at the ends."""
    text = _speakable(text)
    encoding = embedder.tokenizer.backend.encode(text)
    if len(encoding.ids) > (most := reading_room(embedder.network)):
        raise Misuse(f"The text has {len(encoding.ids)} tokens, the model sees only {most}.")
    if not encoding.ids:
        return []
    with _still(embedder.network):
        stream, _ = _stream(embedder, [encoding.ids])
    vectors: Floats = stream.float().cpu().numpy()
    if not np.isfinite(vectors).all():
        raise FirthError('The network overflows on this text; dtype="float32" may help.')
    rows = zip(encoding.tokens, encoding.offsets, vectors, strict=True)
    inside = [not special for special in encoding.special_tokens_mask]
    return [TokenVector(*row) for row, real in zip(rows, inside, strict=True) if real]


def span_vector(tokens: Iterable[TokenVector], begin: int, end: int) -> Floats:
    """The mean of the tokens that share characters with a part of the text, such as a word.

    >>> pieces = [TokenVector("bat", (4, 7), np.ones(1)), TokenVector("##s", (7, 8), np.zeros(1))]
    >>> span_vector(pieces, 4, 8)
    array([0.5], dtype=float32)
    """
    inside = [token.vector for token in tokens if token.span[0] < end and begin < token.span[1]]
    if not inside:
        raise Misuse(f"No token stands between the characters {begin} and {end}.")
    mean: Floats = np.mean(inside, axis=0).astype(np.float32)
    return mean
