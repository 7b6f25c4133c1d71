"""Options that several verbs share, and the panels of `--help` in which options are grouped."""

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.data.readers import ReadOptions
    from firth.model import Model

Argument = typer.Argument
DataOption: Any = partial(typer.Option, rich_help_panel="Data")
TrainingOption: Any = partial(typer.Option, rich_help_panel="Training")
ModelOption: Any = partial(typer.Option, rich_help_panel="Model")
OutputOption: Any = partial(typer.Option, rich_help_panel="Output")
HubOption: Any = partial(typer.Option, rich_help_panel="Hub")
DecodingOption: Any = partial(typer.Option, rich_help_panel="Decoding")
PromptOption: Any = partial(typer.Option, rich_help_panel="Prompt")

# ---- every verb -------------------------------------------------------------------------------

Json = Annotated[bool, OutputOption("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, OutputOption("--debug", help="Print a traceback with an error.")]

# ---- models -----------------------------------------------------------------------------------

MODEL_HELP = (
    "A run directory, a Hugging Face directory, a GGUF file, or a name on the hub such as gpt2 or "
    "org/name@revision."
)
ModelArgument = Annotated[str, Argument(metavar="MODEL", help=MODEL_HELP)]
Offline = Annotated[
    bool, HubOption("--offline", help="Use only the local cache of the hub; download nothing.")
]
AllowLegacy = Annotated[
    bool,
    HubOption("--allow-legacy", help="Convert a pytorch_model.bin to safetensors and load it."),
]
Device = Annotated[
    str | None, ModelOption(help="cpu, cuda or cuda:N. Default: the GPU if there is one.")
]
Dtype = Annotated[
    str | None,
    ModelOption(help="Weights as float32, bfloat16 or float16. Default: as in the checkpoint."),
]
Weights = Annotated[
    str | None,
    ModelOption(
        help="int8: quantize weight matrices to 8 bits (CPU only; a quarter of the memory). "
        "Default: no quantization."
    ),
]

# ---- text -------------------------------------------------------------------------------------


class DocumentUnit(StrEnum):
    """What one document of a plain-text file is."""

    block = "block"
    line = "line"
    file = "file"


Paths = Annotated[
    list[str],
    Argument(
        metavar="PATHS...",
        help="Text files (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), folders, "
        "globs, - for standard input, datasets:NAME.",
    ),
]
Documents = Annotated[
    DocumentUnit,
    DataOption(
        help="What one document of a plain-text file is: a block between blank lines, a line, "
        "or the file."
    ),
]
TextColumn = Annotated[
    str, DataOption("--column", help="The column of JSONL, CSV and Parquet files with the text.")
]
Format = Annotated[
    str | None,
    DataOption(
        help="File format of standard input or of a file with an unknown extension: txt, jsonl, "
        "csv, tsv, … Default: from the extension."
    ),
]
Strict = Annotated[
    bool, DataOption("--strict", help="Fail on bytes that are not UTF-8 instead of replacing them.")
]
NoClean = Annotated[
    bool,
    DataOption("--no-clean", help="Keep the text as it is: no Unicode or markup cleaning."),
]
Workers = Annotated[
    int | None, DataOption(min=1, help="Number of processes. Default: one per CPU core.")
]

# ---- labelled examples ------------------------------------------------------------------------

Columns = Annotated[
    list[str] | None,
    DataOption(
        "--column",
        metavar="ROLE=NAME",
        help="Name of a column in your file, such as text=review or label=stars; repeatable.",
    ),
]
Limit = Annotated[
    int, DataOption(min=0, help="Use at most this many examples, stratified by label; 0: all.")
]
Settings = Annotated[
    list[str] | None,
    TrainingOption(
        "--set",
        metavar="KEY=VALUE",
        help="Override any other field of the run's config; repeatable.",
    ),
]
Resume = Annotated[
    bool, OutputOption("--resume", help="Continue an interrupted run from its last checkpoint.")
]


# ---- values of options ------------------------------------------------------------------------


def assignments(pairs: list[str] | None, option: str, example: str) -> dict[str, str]:
    """Parse the `key=value` pairs of an option that may be repeated.

    >>> assignments(["epochs=3"], "--set", "epochs=3")
    {'epochs': '3'}
    """
    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} takes KEY=VALUE, such as {example}, not {pair!r}.")
        found[key.strip()] = value
    return found


def column_names(pairs: list[str] | None) -> dict[str, str]:
    """Parse `--column role=name`."""
    return assignments(pairs, "--column", "text=review")


def overrides(pairs: list[str] | None) -> dict[str, str]:
    """Parse `--set key=value`."""
    return assignments(pairs, "--set", "schedule=cosine")


def terminal_text(text: str) -> str:
    """Replace the bytes of an argument that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_options(
    column: str,
    format: str | None,
    documents: DocumentUnit = DocumentUnit.block,
    strict: bool = False,
) -> "ReadOptions":
    """How to read text files, from the options."""
    from firth.data.readers import ReadOptions

    check_format(format)
    return ReadOptions(documents=documents.value, column=column, format=format, strict=strict)


def check_format(format: str | None) -> None:
    """Raise a usage error for an unknown `--format`."""
    from firth.data.readers import FORMATS

    if format and format not in FORMATS:
        raise UsageError(f"--format {format} is not known; choose one of {', '.join(FORMATS)}.")


def check_jsonl(out: str | Path | None) -> None:
    """Raise a usage error if a JSON-lines output file has the extension of another format.

    >>> check_jsonl("answers.csv")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: --out writes JSON lines: name the file answers.jsonl, not \
answers.csv.
    """
    path = Path(out or "-")
    if path.suffix.lower() in OTHER_FORMATS:
        name = path.with_name(path.stem.removesuffix(".jsonl") + ".jsonl")
        raise UsageError(f"--out writes JSON lines: name the file {name}, not {path}.")


OTHER_FORMATS = (".csv", ".tsv", ".json", ".parquet", ".gz", ".xz", ".bz2", ".zst", ".npy")


def check_texts(texts: list[str]) -> list[str]:
    """Texts given on the command line; a path among them is a usage error."""
    if not texts:
        raise UsageError("Give texts after MODEL, or a file of examples with --data.")
    for text in texts:
        if os.path.exists(text):
            raise UsageError(
                f"{text} is a file or folder, not a text: pass it with --data, which also allows "
                "several models."
            )
    return [terminal_text(text) for text in texts]


def load_model(
    model: str, dtype: str | None, device: str | None, weights: str | None = None
) -> "Model":
    """Load a model to the device that an option names, or to the best one."""
    from firth.model import load
    from firth.utils.devices import select_device

    return load(model, dtype=dtype, device=str(select_device(device)), weights=weights)
