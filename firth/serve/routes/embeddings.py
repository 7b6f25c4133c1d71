"""`/v1/embeddings`: one vector per text, in OpenAI's format."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from firth.formats.sentence_transformers import Normalize
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import (
    Floats,
    TokenizedTexts,
    encode_texts,
    start_embedding,
)
from firth.serve.api_errors import ApiError, json_response
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.field_kinds import (
    MAX_INPUTS,
    TEXTS,
    TOKEN_IDS,
    any_of,
    boolean,
    integer,
    list_of,
    one_of,
    text,
)
from firth.serve.model_pool import PoolEntry
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.served_model import ServedModel
from firth.utils.errors import NonFiniteError

ROWS = list_of(TOKEN_IDS, "a list of lists of token ids", minimum=1, maximum=MAX_INPUTS)


@dataclass(frozen=True, kw_only=True)
class EmbeddingFields(RequestFields):
    """The parameters of `/v1/embeddings`."""

    input: Any = parameter(
        "Text or texts; or token ids, with special tokens, as `/tokenize` returns them.",
        any_of(TEXTS, TOKEN_IDS, ROWS),
    )
    encoding_format: str = parameter(
        "float: a list of numbers; base64: float32 in little-endian order.",
        one_of("float", "base64"),
        "float",
    )
    dimensions: int | None = parameter(
        "Keep only the first values of each vector, for models trained for that (Matryoshka).",
        integer(minimum=1),
        None,
    )
    truncate: bool = parameter(
        "Truncate a text that is longer than the model's context; else it is an error.",
        boolean(),
        False,
    )
    normalize: bool | None = parameter(
        "Scale vectors to unit length. Default: as the model's files say.", boolean(), None
    )
    prompt_name: str | None = parameter(
        "Name of one of the model's prompts to put before each text.", text(), None
    )
    user: str | None = parameter("Accepted, but neither used nor stored.", text(), None)


@dataclass(frozen=True)
class EmbeddingSettings:
    """What inputs must have in common to be embedded together."""

    normalize: bool | None = None
    prompt: str | None = None
    role: str = ""

    def embedder(self, served: ServedModel) -> Embedder:
        """Return the model's embedder with these options."""
        return served.embedder(self.normalize, self.prompt, self.role)


def embed_rows(
    served: ServedModel, settings: EmbeddingSettings, rows: Sequence[Sequence[int]]
) -> list[Floats]:
    """Compute the vectors of tokenized texts."""
    tokens = TokenizedTexts(rows, np.zeros(len(rows), dtype=np.bool_))
    found = start_embedding(settings.embedder(served), tokens)()
    if not found.finite.all():
        raise NonFiniteError(
            "A vector is not finite: the network overflows, or its weights are NaN."
        )
    return list(found.values)


def text_rows(embedder: Embedder, texts: Sequence[str], truncate: bool) -> list[list[int]]:
    """Tokenize texts; one that is too long is an error unless it may be truncated."""
    tokens = encode_texts(embedder, texts)
    if tokens.cut.any() and not truncate:
        raise too_long(int(np.argmax(tokens.cut)), embedder.max_length)
    return [list(row) for row in tokens.rows]


def too_long(index: int, limit: int) -> ApiError:
    """Return the error of an input that is longer than the context."""
    return ApiError(
        400,
        f"Input {index} (counted from 0) is longer than the model's context of {limit:,} tokens: "
        "shorten it, or set `truncate` to true.",
        param="input",
        code="context_length_exceeded",
    )


def _token_rows(embedder: Embedder, rows: Sequence[list[int]], truncate: bool) -> list[list[int]]:
    """Check token ids; as texts, they may be truncated."""
    limit, size = embedder.max_length, embedder.network.config.input_config.vocab_size
    for i, row in enumerate(rows):
        if len(row) > limit and not truncate:
            raise too_long(i, limit)
        if (largest := max(row)) >= size:
            raise ApiError(
                400,
                f"There is no token {largest}: the vocabulary has {size:,} tokens.",
                param="input",
            )
    return [row[:limit] for row in rows]


async def embed_tokens(
    entry: PoolEntry, settings: EmbeddingSettings, rows: Sequence[Sequence[int]]
) -> Floats:
    """Compute vectors through the queue and the worker of a model."""  # (S, W)
    sizes = [max(1, len(row)) for row in rows]
    with entry.admission.reserve(sum(sizes)):
        found = await entry.worker.run(embed_rows, settings, rows, sizes)
    return np.stack(found)


async def embeddings(state: ServerState, fields: EmbeddingFields) -> Response:
    """Compute one vector per input."""
    entry = state.pool.find(fields.model, "embed")
    settings = EmbeddingSettings(fields.normalize, fields.prompt_name)
    embedder = settings.embedder(entry.served)
    given = fields.input
    if isinstance(given, str) or isinstance(given[0], str):
        texts = [given] if isinstance(given, str) else given
        size = sum(map(len, texts))
        rows = await off_loop(size, text_rows, embedder, texts, fields.truncate)
    else:
        several = given if isinstance(given[0], list) else [given]
        rows = _token_rows(embedder, several, fields.truncate)
    vectors = shortened(await embed_tokens(entry, settings, rows), fields.dimensions, embedder)
    count = sum(map(len, rows))
    state.metrics.tokens.labels(entry.served.name, "prompt").inc(count)
    name, encoding = entry.served.name, fields.encoding_format
    return await off_loop(vectors.size, _response, name, vectors, encoding, count)


def _response(model: str, vectors: Floats, encoding: str, tokens: int) -> Response:
    """Return vectors in OpenAI's format."""
    data = [
        {"object": "embedding", "index": i, "embedding": as_format(row, encoding)}
        for i, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": model, "usage": usage})


def shortened(vectors: Floats, size: int | None, embedder: Embedder) -> Floats:
    """Keep the first values of vectors; those of unit length keep unit length."""
    if size is None:
        return vectors
    if size > vectors.shape[1]:
        raise ApiError(
            400, f"`dimensions` is at most {vectors.shape[1]:,} for this model.", param="dimensions"
        )
    vectors = vectors[:, :size]
    if len(embedder.steps) and isinstance(embedder.steps[-1], Normalize):
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def as_format(vector: Floats, encoding: str) -> list[float] | str:
    """Return a vector as a list, or as base64 of its float32 values.

    >>> as_format(np.array([1.0], dtype=np.float32), "base64")
    'AACAPw=='
    """
    if encoding == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


ROUTES = (ApiRoute("POST", "/v1/embeddings", "One vector per text.", embeddings, EmbeddingFields),)
