"""`/v1/rerank`: documents by their relevance to a query, in Jina's format.

A cross-encoder reads query and document together (Nogueira and Cho 2019); other models compare
their vectors by cosine similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.field_kinds import MAX_INPUTS, TEXT, FieldKind, boolean, integer, list_of
from firth.serve.model_pool import PoolEntry
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.routes.embeddings import EmbeddingSettings, embed_tokens, text_rows
from firth.serve.routes.task_routes import labelled_examples, predict_examples
from firth.serve.served_model import is_cross_encoder
from firth.utils.surrogates import without_surrogates


def document() -> FieldKind:
    """A text, or an object with a text."""

    def convert(value: Any) -> str:
        if isinstance(value, dict) and value.keys() == {"text"}:
            value = value["text"]
        if not isinstance(value, str):
            raise ValueError
        return without_surrogates(value)

    boxed = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return FieldKind('a string or {"text": "…"}', convert, {"anyOf": [{"type": "string"}, boxed]})


@dataclass(frozen=True, kw_only=True)
class RerankFields(RequestFields):
    """The parameters of `/v1/rerank`."""

    query: str = parameter("What to look for.", TEXT)
    documents: Any = parameter(
        "Texts to sort.", list_of(document(), "a list of texts", minimum=1, maximum=MAX_INPUTS)
    )
    top_n: int | None = parameter("Return only the best. Default: all.", integer(minimum=1), None)
    return_documents: bool = parameter("Return the texts, too.", boolean(), True)
    truncate: bool = parameter(
        "Truncate a text that is longer than the model's context; else it is an error.",
        boolean(),
        True,
    )


async def rerank(state: ServerState, fields: RerankFields) -> dict[str, Any]:
    """Sort documents by their relevance to a query."""
    entry = state.pool.find(fields.model, "rerank")
    score = _pair_scores if is_cross_encoder(entry.served) else _cosines
    scores, tokens = await score(entry, fields)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: fields.top_n]
    results = []
    for i in order:
        text = {"document": {"text": fields.documents[i]}} if fields.return_documents else {}
        results.append({"index": i, "relevance_score": scores[i], **text})
    state.metrics.tokens.labels(entry.served.name, "prompt").inc(tokens)
    usage = {"total_tokens": tokens, "prompt_tokens": tokens}
    return {"model": entry.served.name, "object": "list", "usage": usage, "results": results}


async def _pair_scores(entry: PoolEntry, fields: RerankFields) -> tuple[list[float], int]:
    """Score pairs with a cross-encoder: the sigmoid of its number, and the tokens it read."""
    pairs = labelled_examples([[fields.query, text] for text in fields.documents])
    found, tokens = await predict_examples(entry, pairs, truncate=fields.truncate)
    return [_sigmoid(answer["number"]) for answer in found["predictions"]], tokens


def _sigmoid(value: float) -> float:
    """
    >>> _sigmoid(0.0), round(_sigmoid(-800.0), 3)
    (0.5, 0.0)
    """
    return 1 / (1 + exp(-value)) if value > 0 else exp(value) / (1 + exp(value))


async def _cosines(entry: PoolEntry, fields: RerankFields) -> tuple[list[float], int]:
    """Compare the vectors of query and documents, as `firth search` does."""
    query = await _vectors(entry, "query", [fields.query], fields.truncate)
    documents = await _vectors(entry, "document", fields.documents, fields.truncate)
    scores = documents[0] @ query[0][0]
    return [float(score) for score in scores], query[1] + documents[1]


async def _vectors(
    entry: PoolEntry, role: str, texts: Sequence[str], truncate: bool
) -> tuple[np.ndarray[Any, Any], int]:
    """Return vectors of unit length and the number of tokens."""
    settings = EmbeddingSettings(normalize=True, role=role)
    embedder = settings.embedder(entry.served)
    rows = await off_loop(sum(map(len, texts)), text_rows, embedder, texts, truncate)
    return await embed_tokens(entry, settings, rows), sum(map(len, rows))


ROUTES = (
    ApiRoute("POST", "/v1/rerank", "Documents by relevance to a query.", rerank, RerankFields),
)
