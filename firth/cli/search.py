"""`firth search`: find the texts of a file that are nearest to a query."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from firth.cli.embed import (
    WEIGHT_DTYPES,
    BatchTokens,
    Layers,
    OneLayer,
    Pooling,
    Precision,
    check_source,
    parse_layers,
)
from firth.cli.options import (
    Argument,
    Device,
    Dtype,
    Format,
    ModelArgument,
    OutputOption,
    TextColumn,
    load_model,
    read_options,
    terminal_text,
)
from firth.cli.verbs import Output

EXAMPLES = (
    'firth search runs/encoder texts.txt "a dog that barked at night"',
    'firth search intfloat/e5-small-v2 papers.jsonl "low-resource translation" --column abstract '
    "--top 10",
)


def search(
    model: ModelArgument,
    file: Annotated[
        str, Argument(metavar="FILE", help="File of texts, in a format of `firth embed`.")
    ],
    query: Annotated[str, Argument(metavar="QUERY", help="Text to search for.")],
    top: Annotated[int, OutputOption(min=1, help="Number of results.")] = 5,
    index: Annotated[
        Path | None, OutputOption(help="Directory of the search index. Default: FILE.index.")
    ] = None,
    pooling: Pooling = None,
    layer: OneLayer = None,
    layers: Layers = None,
    batch_tokens: BatchTokens = 0,
    precision: Precision = "auto",
    dtype: Dtype = None,
    device: Device = None,
    column: TextColumn = "text",
    format: Format = None,
) -> Output:
    """Find the texts of a file whose embeddings are most similar to that of a query."""
    from firth.cli import terminal
    from firth.cli.views import embedding as view

    reading = read_options(column, format)
    check_source(file)
    from firth.inference.embedding import semantic_search

    loaded = load_model(model, dtype or WEIGHT_DTYPES.get(precision), device)
    options: dict[str, Any] = {
        "pooling": pooling,
        "layer": parse_layers(layer, layers),
        "normalize": True,
        "batch_tokens": batch_tokens,
        "precision": precision,
    }
    embedder = loaded.embedder(**options, role="document")
    with terminal.progress() as progress:
        built = semantic_search.open_index(
            embedder, file, path=index, reading=reading, progress=progress
        )
    query = terminal_text(query)
    hits = semantic_search.search(loaded.embedder(**options, role="query"), built, query, top=top)
    values = {"query": query, "index": str(built.path), "built": built.built, "rows": len(built)}
    rows = [asdict(hit) for hit in hits]
    return Output({**values, "hits": rows}, view.hits(built, hits, embedder.max_length))
