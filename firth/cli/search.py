"""`firth search`: find the texts of a file that are nearest to a query."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from firth.cli import options
from firth.cli.embed import EmbedOptions, check_source
from firth.cli.verbs import Output

EXAMPLES = (
    'firth search runs/encoder texts.txt "a dog that barked at night"',
    'firth search intfloat/e5-small-v2 papers.jsonl "low-resource translation" --column abstract '
    "--top 10",
)


@options.with_options(EmbedOptions, panel="Model")
def search(
    model: str = options.MODEL,
    file: str = options.Argument(
        ..., metavar="FILE", help="File of texts, in a format of `firth embed`."
    ),
    query: str = options.Argument(..., metavar="QUERY", help="Text to search for."),
    top: int = options.OutputOption(5, min=1, help="Number of results."),
    index: Path | None = options.OutputOption(
        None, help="Directory of the search index. Default: FILE.index."
    ),
    strict: bool = options.STRICT,
    **settings: Any,
) -> Output:
    """Find the texts of a file whose embeddings are most similar to that of a query."""
    from firth.cli import terminal
    from firth.cli.views import embedding as view

    how = EmbedOptions(**settings)
    reading = how.reading(strict=strict)
    check_source(file)
    from firth.inference.embedding import semantic_search

    loaded, how_embedded = how.load(model), {"normalize": True, **how.arguments()}
    embedder = loaded.embedder(**how_embedded, role="document")
    with terminal.progress() as progress:
        built = semantic_search.open_index(
            embedder, file, path=index, reading=reading, progress=progress
        )
    query = options.terminal_text(query)
    queries = loaded.embedder(**how_embedded, role="query")
    hits = semantic_search.search(queries, built, query, top=top)
    values = {"query": query, "index": str(built.path), "built": built.built, "rows": len(built)}
    values |= {"notes": built.notes, "hits": [asdict(hit) for hit in hits]}
    return Output(values, view.hits(built, hits, embedder.max_length))
