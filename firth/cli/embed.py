"""`firth embed`: write one embedding vector for each text of a file."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from firth.cli.options import (
    Argument,
    Device,
    Dtype,
    Format,
    ModelArgument,
    ModelOption,
    OutputOption,
    TextColumn,
    load_model,
    read_options,
)
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth embed sentence-transformers/all-MiniLM-L6-v2 texts.txt --out vectors.npy",
    "firth embed runs/encoder texts.jsonl --out vectors.parquet --pooling mean --layer -2",
)

Pooling = Annotated[
    str | None,
    ModelOption(
        help="mean, cls, last, max, mean_sqrt_len, weightedmean, or several joined: cls+mean. "
        "Default: the model's own, else mean."
    ),
]
OneLayer = Annotated[
    int | None,
    ModelOption(help="Layer whose hidden states to pool; 0: embeddings. Default: -1, the last."),
]
Layers = Annotated[
    str | None, ModelOption(help="Layers whose hidden states to average, such as 9,10,11,12.")
]
BatchTokens = Annotated[
    int, ModelOption("--batch-tokens", min=0, help="Tokens per batch; 0: the device's default.")
]
Precision = Annotated[
    str,
    ModelOption(help="Matrix products in fp32, bf16 or auto: bf16 for encoders on a GPU."),
]

# A precision other than auto computes from float32 weights, whatever the checkpoint has.
WEIGHT_DTYPES = dict.fromkeys(("fp32", "bf16", "force-bf16"), "float32")


def embed(
    model: ModelArgument,
    file: Annotated[
        str,
        Argument(
            metavar="FILE",
            help="File with one text per line, or a table with a text column (.jsonl .csv .tsv "
            ".parquet), also .gz .bz2 .xz .zst; - for standard input.",
        ),
    ],
    out: Annotated[Path, OutputOption(help="File to write: .npy, .jsonl or .parquet.")],
    pooling: Pooling = None,
    layer: OneLayer = None,
    layers: Layers = None,
    normalize: Annotated[
        bool | None,
        ModelOption(
            "--normalize/--no-normalize",
            help="Scale vectors to unit length. Default: as the model's files say.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        ModelOption(help="Name of one of the model's own prompts to prepend. Default: none."),
    ] = None,
    batch_tokens: BatchTokens = 0,
    precision: Precision = "auto",
    dtype: Dtype = None,
    device: Device = None,
    column: TextColumn = "text",
    format: Format = None,
) -> Output:
    """Write one embedding vector for each text of a file; an interrupted run continues."""
    from firth.cli import terminal
    from firth.cli.views import embedding as view
    from firth.inference.embedding.vector_files import writer_for

    writer_for(out)  # errors in file names come before the model is loaded
    reading = read_options(column, format)
    check_source(file)
    from firth.inference.embedding.embed_file import embed_file

    embedder = load_model(model, dtype or WEIGHT_DTYPES.get(precision), device).embedder(
        pooling=pooling,
        layer=parse_layers(layer, layers),
        normalize=normalize,
        prompt=prompt,
        precision=precision,
        batch_tokens=batch_tokens,
    )
    with terminal.progress() as progress:
        embedded = embed_file(embedder, file, out, reading=reading, progress=progress)
    return Output(asdict(embedded), view.embedded(embedded, embedder.max_length))


def check_source(file: str) -> None:
    """Raise an error if a file does not exist, before a model is loaded."""
    from firth.data.readers import ReadOptions, find_sources

    if not Path(file).is_dir():
        find_sources([file], ReadOptions(format="txt"))


def parse_layers(one: int | None, several: str | None) -> int | list[int] | None:
    """Parse --layer or --layers.

    >>> parse_layers(None, "9,10"), parse_layers(-2, None)
    ([9, 10], -2)
    """
    if several is None:
        return one
    if one is not None:
        raise UsageError("Give --layer or --layers, not both.")
    try:
        return [int(number) for number in several.split(",")]
    except ValueError as error:
        raise UsageError(f"--layers takes numbers such as 9,10,11,12, not {several!r}.") from error
