"""The verbs that make vectors of texts: `embed` a file, `search` one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.commands.verbs import AnyModel, Output
from firth.errors import Misuse

if TYPE_CHECKING:
    from firth.model import Model
    from firth.text.readers import Reading

Option, Argument = typer.Option, typer.Argument

Pooling = Annotated[
    str | None,
    Option(help="mean, cls, last, max, mean_sqrt_len, weightedmean, or several: cls+mean."),
]
OneLayer = Annotated[int | None, Option(help="Of which layer; 0 enters the first, -1 is the last.")]
Layers = Annotated[str | None, Option(help="The mean of several layers: 9,10,11,12.")]
Prompt = Annotated[str | None, Option(help="Which of the model's own prompts stands before.")]
Batch = Annotated[int, Option(min=0, help="Tokens that the model sees at once; 0: as usual.")]
Dtype = Annotated[str | None, Option(help="float32, bfloat16 or float16; else the file's own.")]
Precision = Annotated[
    str,
    Option(help="Of products of matrices: fp32, bf16, or auto: bf16 for encoders on a GPU."),
]
Device = Annotated[str | None, Option(help="cpu or cuda; else the GPU where there is one.")]
Column = Annotated[str, Option(help="The field of a table that holds the text.")]
Format = Annotated[
    str | None, Option(help="What standard input, or a file of unknown ending, holds: txt, tsv, …")
]

# What weights are kept in for a precision that is asked for, whatever the file has.
WIDEST = {"fp32": "float32", "bf16": "float32"}


def embed(
    model: AnyModel,
    file: Annotated[
        str,
        Argument(
            metavar="FILE",
            help="A text on each line, or a table with a column of texts (.jsonl .csv .tsv "
            ".parquet), also .gz .bz2 .xz .zst; - for standard input.",
        ),
    ],
    out: Annotated[Path, Option(help="The file to write: .npy, .jsonl or .parquet.")],
    pooling: Pooling = None,
    layer: OneLayer = None,
    layers: Layers = None,
    normalize: Annotated[
        bool | None, Option("--normalize/--no-normalize", help="Vectors of length one.")
    ] = None,
    prompt: Prompt = None,
    batch: Batch = 0,
    precision: Precision = "auto",
    dtype: Dtype = None,
    device: Device = None,
    column: Column = "text",
    format: Format = None,
) -> Output:
    """Write one vector for each text of a file; interrupted and started again, it continues."""
    from firth.commands import terminal, vector_views
    from firth.inference.vector_files import sink_for

    sink_for(out)
    reading = _reading(column, format)
    _there(file)
    from firth.inference.embed_file import embed_file

    embedder = _load(model, dtype or WIDEST.get(precision), device).embedder(
        pooling=pooling,
        layer=_layers(layer, layers),
        normalize=normalize,
        prompt=prompt,
        precision=precision,
        batch=batch,
    )
    with terminal.progress() as progress:
        made = embed_file(embedder, file, out, reading=reading, progress=progress)
    return Output(asdict(made), vector_views.embedded(made, embedder.limit))


def search(
    model: AnyModel,
    file: Annotated[
        str, Argument(metavar="FILE", help="What to look in: a file such as `firth embed` takes.")
    ],
    query: Annotated[str, Argument(metavar="QUERY", help="What to look for.")],
    top: Annotated[int, Option(min=1, help="How many texts, best first.")] = 5,
    index: Annotated[
        Path | None, Option(help="Where the index is kept; else beside the file, in FILE.index.")
    ] = None,
    pooling: Pooling = None,
    layer: OneLayer = None,
    layers: Layers = None,
    batch: Batch = 0,
    precision: Precision = "auto",
    dtype: Dtype = None,
    device: Device = None,
    column: Column = "text",
    format: Format = None,
) -> Output:
    """Find the texts of a file that mean most nearly what a query means."""
    from firth.commands import terminal, vector_views

    reading = _reading(column, format)
    _there(file)
    from firth.inference.search import open_index
    from firth.inference.search import search as find

    opened = _load(model, dtype or WIDEST.get(precision), device)
    asked = {"pooling": pooling, "layer": _layers(layer, layers), "normalize": True, "batch": batch}
    asked["precision"] = precision
    texts: Any = opened.embedder(**asked, role="document")  # type: ignore[arg-type]
    with terminal.progress() as progress:
        built = open_index(texts, file, place=index, reading=reading, progress=progress)
    query = query.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    hits = find(opened.embedder(**asked, role="query"), built, query, top=top)  # type: ignore[arg-type]
    values = {"query": query, "index": str(built.path), "built": built.built, "rows": len(built)}
    hits_as_values = [asdict(hit) for hit in hits]
    return Output({**values, "hits": hits_as_values}, vector_views.hits(built, hits, texts.limit))


def _load(model: str, dtype: str | None, device: str | None) -> "Model":
    import torch

    from firth.model import load

    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=on)
    except (RuntimeError, AssertionError) as error:
        raise Misuse(f"--device {on} cannot be used here; cpu always can.") from error
    return load(model, dtype=dtype, device=on)


def _there(file: str) -> None:
    """A misspelt file is told at once, before a model is opened."""
    from firth.text.readers import Reading, find_sources

    if not Path(file).is_dir():
        find_sources([file], Reading(format="txt"))


def _reading(column: str, format: str | None) -> "Reading":
    from firth.text.readers import FORMATS, Reading

    if format and format not in FORMATS:
        raise Misuse(f"--format {format} is not known; there are {', '.join(FORMATS)}.")
    return Reading(column=column, format=format)


def _layers(one: int | None, several: str | None) -> int | list[int] | None:
    """--layer or --layers, as numbers."""
    if several is None:
        return one
    if one is not None:
        raise Misuse("Give --layer or --layers, not both.")
    try:
        return [int(number) for number in several.split(",")]
    except ValueError as error:
        raise Misuse(f"--layers takes numbers such as 9,10,11,12, not {several!r}.") from error
