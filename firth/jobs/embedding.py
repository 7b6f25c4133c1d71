"""Embeddings and semantic search of texts in memory, of tables and of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np

from firth.data.input_files import file_if_named
from firth.data.memory import Data, as_source
from firth.data.readers import ReadOptions
from firth.inference.embedding import semantic_search, vectors
from firth.inference.embedding.embed_file import EmbeddedFile, embed_file
from firth.inference.embedding.embedder import Layer
from firth.inference.embedding.semantic_search import SearchHit, SearchIndex, open_index
from firth.inference.embedding.vectors import Floats
from firth.jobs.row_streams import read_texts
from firth.jobs.text_inputs import VectorOptions
from firth.model import AnyModel, load_if_needed
from firth.tokenizers.counting import Progress
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import answer_good_rows
from firth.utils.devices import Device, Dtype, restored_torch_state


@overload
def embed(
    model: AnyModel, texts: Data, *, out: None = None, **options: Unpack[VectorOptions]
) -> Floats: ...


@overload
def embed(
    model: AnyModel, texts: Data, *, out: str | Path, **options: Unpack[VectorOptions]
) -> EmbeddedFile: ...


@check_arguments
@restored_torch_state()
def embed(
    model: AnyModel,
    texts: Data,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    pooling: str | None = None,
    layer: Layer | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    precision: str = "auto",
    batch_tokens: int = 0,
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    device: Device = None,
    progress: Progress = lambda what, done, total: None,
) -> Floats | EmbeddedFile:
    """Compute one vector for each text, (n, hidden_size), or write the vectors to `out`.

    `texts` is a text, a list or Series of texts, a table with a text `column`, or a file. `out`
    ends in .npy, .jsonl or .parquet; an interrupted run is resumed. Bad rows are null there and NaN
    here, and noted; with `strict`, they are an error. The other options are those of `Model.embed`.
    """
    loaded = load_if_needed(model, device, dtype=dtype)
    embedder = loaded.embedder(
        pooling=pooling,
        layer=layer,
        normalize=normalize,
        prompt=prompt,
        precision=precision,
        batch_tokens=batch_tokens,
    )
    given = file_if_named(texts)
    if out is None:
        rows = read_texts(given, "texts", column, format)
        answer = lambda good: vectors.embed(embedder, [row.text for row in good])  # noqa: E731
        found = answer_good_rows(rows, answer, strict=strict)
        missing = np.full(embedder.dimension, np.nan, np.float32)
        return np.stack([missing if one is None else one for one in found])
    reading = ReadOptions(column=column or "text", format=format, strict=strict)
    source = as_source([given] if isinstance(given, str) else given, "texts")
    return embed_file(
        embedder, source, out, overwrite=overwrite, reading=reading, progress=progress
    )


@check_arguments
@restored_torch_state()
def search(
    model: AnyModel,
    texts: Data | SearchIndex,
    query: str,
    *,
    top: int = 5,
    index: str | Path | None = None,
    pooling: str | None = None,
    layer: Layer | None = None,
    precision: str = "auto",
    batch_tokens: int = 0,
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    device: Device = None,
    progress: Progress = lambda what, done, total: None,
) -> list[SearchHit]:
    """Find the texts that are most similar to a query, best first.

    `texts` are those of `embed`. The vectors of a file are stored beside it, or in the folder
    `index`, and used again; `Model.index` returns them. Bad rows of a file are skipped, or an
    error with `strict`.
    """
    loaded = load_if_needed(model, device, dtype=dtype)
    options: dict[str, Any] = {
        "normalize": True,
        "pooling": pooling,
        "layer": layer,
        "precision": precision,
        "batch_tokens": batch_tokens,
    }
    documents = loaded.embedder(role="document", **options)
    reading = ReadOptions(column=column or "text", format=format, strict=strict)
    if not isinstance(texts, SearchIndex):
        given = file_if_named(texts)
        if isinstance(given, Path):
            texts = open_index(documents, given, path=index, reading=reading, progress=progress)
        else:
            rows = read_texts(given, "texts", column, format)
            found = answer_good_rows(rows, lambda good: [row.text for row in good], strict=strict)
            kept = [text or "" for text in found]  # empty texts are never found
            texts = SearchIndex(vectors.embed(documents, kept), kept)
    return semantic_search.search(loaded.embedder(role="query", **options), texts, query, top=top)
