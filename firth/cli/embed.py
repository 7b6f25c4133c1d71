"""`firth embed`: write one embedding vector for each text of a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs import job_configs
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError
from firth.utils.outputs import check_output

if TYPE_CHECKING:
    from firth.model import Model

EXAMPLES = (
    "firth embed sentence-transformers/all-MiniLM-L6-v2 texts.txt --out vectors.npy",
    "firth embed runs/encoder texts.jsonl --out vectors.parquet --pooling mean --layer -2",
)
# A precision other than auto computes from float32 weights, whatever the checkpoint has.
WEIGHT_DTYPES = dict.fromkeys(("fp32", "bf16", "force-bf16"), "float32")


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(options.FileOptions):
    """How `embed` and `search` compute vectors."""

    pooling: Annotated[
        str | None,
        Doc(
            "mean, cls, last, max, mean_sqrt_len, weightedmean, or several joined: cls+mean. "
            "Default: the model's own, else mean."
        ),
    ] = None
    layer: Annotated[
        int | None, Doc("Layer whose hidden states to pool; 0: embeddings. Default: -1, the last.")
    ] = None
    layers: Annotated[
        str | None,
        Doc("Layers whose hidden states to average, such as 9,10,11,12. Default: --layer."),
    ] = None
    batch_tokens: Annotated[int, Doc("Tokens per batch; 0: the device's default.", min=0)] = 0
    precision: Annotated[
        str, Doc("Matrix products in fp32, bf16 or auto: bf16 for encoders on a GPU.")
    ] = "auto"
    dtype: Annotated[str | None, job_configs.DTYPE] = None
    device: Annotated[str | None, job_configs.DEVICE] = None

    def load(self, model: str) -> "Model":
        """Load a model with the weights that these options need."""
        return options.load_model(
            model, self.dtype or WEIGHT_DTYPES.get(self.precision), self.device
        )

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `Model.embedder`."""
        return {
            "pooling": self.pooling,
            "layer": parse_layers(self.layer, self.layers),
            "precision": self.precision,
            "batch_tokens": self.batch_tokens,
        }


@options.with_options(EmbedOptions, panel="Model")
def embed(
    model: str = options.MODEL,
    file: str = options.Argument(
        ...,
        metavar="FILE",
        help="File with one text per line, or a table with a text column (.jsonl .csv .tsv "
        ".parquet), also .gz .bz2 .xz .zst; - for standard input.",
    ),
    out: Path = options.OutputOption(..., help="File to write: .npy, .jsonl or .parquet."),
    overwrite: bool = options.OVERWRITE,
    strict: bool = options.STRICT,
    normalize: bool | None = options.ModelOption(
        None,
        "--normalize/--no-normalize",
        help="Scale vectors to unit length. Default: as the model's files say.",
    ),
    prompt: str | None = options.ModelOption(
        None, help="Name of one of the model's own prompts to prepend. Default: none."
    ),
    **settings: Any,
) -> Output:
    """Write one embedding vector for each text of a file; an interrupted run continues."""
    from firth.cli import terminal
    from firth.cli.views import embedding as view
    from firth.inference.embedding.vector_files import writer_for

    writer_for(out)  # errors in file names come before the model is loaded
    check_output(out, overwrite)
    how = EmbedOptions(**settings)
    reading = how.reading(strict=strict)
    check_source(file)
    from firth.inference.embedding.embed_file import embed_file

    embedder = how.load(model).embedder(normalize=normalize, prompt=prompt, **how.arguments())
    with terminal.progress() as progress:
        embedded = embed_file(
            embedder, file, out, overwrite=overwrite, reading=reading, progress=progress
        )
    return Output(asdict(embedded), view.embedded(embedded, embedder.max_length))


def check_source(file: str) -> None:
    """Raise an error if a file does not exist, before a model is loaded."""
    from firth.data.input_files import find_sources
    from firth.data.readers import ReadOptions

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
