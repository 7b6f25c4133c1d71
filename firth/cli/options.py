"""Options that several verbs share, and the panels of `--help` in which options are grouped."""

import glob
import inspect
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import typer

from firth.jobs import job_configs
from firth.utils.config_fields import Doc, flag
from firth.utils.errors import UsageError
from firth.utils.object_stores import is_url
from firth.utils.outputs import check_output

if TYPE_CHECKING:
    from firth.data.memory import Data
    from firth.data.readers import ReadOptions
    from firth.model import Model

Verb = TypeVar("Verb", bound=Callable[..., Any])

# In this order.
PANELS = ("Data", "Prompt", "Training", "Decoding", "Server", "Model", "Output", "Hub")
Argument: Any = typer.Argument
DataOption: Any = partial(typer.Option, rich_help_panel="Data")
TrainingOption: Any = partial(typer.Option, rich_help_panel="Training")
ModelOption: Any = partial(typer.Option, rich_help_panel="Model")
OutputOption: Any = partial(typer.Option, rich_help_panel="Output")
HubOption: Any = partial(typer.Option, rich_help_panel="Hub")
PromptOption: Any = partial(typer.Option, rich_help_panel="Prompt")

# ---- options from the docs of config fields ---------------------------------------------------


def with_options(config: type, *, panel: str = "", unset: bool = False) -> Callable[[Verb], Verb]:
    """Give a verb the documented fields of a config as options; it gets them as `**options`.

    A config's own fields come before inherited ones. With `unset`, an option that is not given is
    None, and its help states the field's default.
    """
    parameters = []
    for field in sorted(fields(config), key=lambda field: field.name not in config.__annotations__):
        kind, *docs = get_args(field.type) or (field.type,)
        if not docs or not isinstance(doc := docs[-1], Doc):
            continue
        default, help = ... if field.default is MISSING else field.default, doc.help
        if unset:
            help += "" if "Default:" in help else f" Default: {default}."
            default = None
        option = _option(field.name, doc, default, kind=kind, help=help, panel=panel)
        kind = doc.kind or kind
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option,
                annotation=kind | None if default is None else kind,
            )
        )

    def add(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        own = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
        verb.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *own]
        )
        return verb

    return add


def _option(
    name: str, doc: Doc, default: Any, *, kind: Any = None, help: str = "", panel: str = ""
) -> Any:
    flags = doc.flags or flag(name)
    if kind == bool | None and not doc.flags:
        flags += f"/--no-{name}"
    return typer.Option(
        default,
        *flags.split(),
        help=help or doc.help,
        metavar=doc.metavar,
        min=doc.min,
        rich_help_panel=doc.panel or panel,
    )


# ---- models -----------------------------------------------------------------------------------

MODEL_HELP = (
    "A run directory, a Hugging Face directory, a GGUF file, a file of word vectors, an embedded "
    "model (stories-encoder, stories-decoder, stories-seq2seq), or a name on the hub such as gpt2 "
    "or org/name@revision."
)
MODEL = Argument(..., metavar="MODEL", help=MODEL_HELP)
DEVICE = _option("device", job_configs.DEVICE, None)
DTYPE = _option("dtype", job_configs.DTYPE, None)
WEIGHTS = ModelOption(
    None,
    help="int8: quantize weight matrices to 8 bits (CPU only; a quarter of the memory). Default: "
    "no quantization.",
)

# ---- files ------------------------------------------------------------------------------------

STRICT = _option("strict", job_configs.STRICT, False)
OVERWRITE = _option("overwrite", job_configs.OVERWRITE, False)
ENGINE = OutputOption(
    "local",
    help="local: processes of this machine; ray: tasks on a Ray cluster (pip install "
    "'firth\\[ray]').",
)
PATHS = Argument(
    ...,
    metavar="PATHS...",
    help="Text files (.txt .md .jsonl .csv .tsv .parquet .conll, also .gz .bz2 .xz .zst), folders, "
    "globs, URLs (s3://BUCKET/FOLDER/), - for standard input, datasets:NAME. A corpus of several "
    "sources or languages names them: en=PATH,PATH ha=PATH.",
)
COLUMNS = _option("columns", job_configs.COLUMNS, None)
FORMAT = _option("format", job_configs.FORMAT, None)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How a file of texts is read."""

    column: Annotated[
        str, Doc("The column of JSONL, CSV and Parquet files with the text.", "Data")
    ] = "text"
    format: Annotated[str | None, job_configs.FORMAT] = None

    def reading(self, **details: Any) -> "ReadOptions":
        """Return the options of the reader; an unknown format is a usage error."""
        from firth.data.readers import ReadOptions, check_format

        check_format(self.format)
        return ReadOptions(column=self.column, format=self.format, **details)


@dataclass(frozen=True, kw_only=True)
class TextOptions(FileOptions):
    """How `tokenizer train` and `prepare` read text."""

    documents: Annotated[
        Literal["block", "line", "file"],
        Doc(
            "What one document of a plain-text file is: a block between blank lines, a line, or "
            "the file."
        ),
    ] = "block"
    strict: Annotated[bool, job_configs.STRICT] = False
    no_clean: Annotated[bool, Doc("Keep the text as it is: no Unicode or markup cleaning.")] = False
    workers: Annotated[
        int | None, Doc("Number of processes. Default: one per CPU core.", min=1)
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the Python functions."""
        reading = self.reading(documents=self.documents, strict=self.strict)
        return {"reading": reading, "clean": not self.no_clean, "workers": self.workers}


def named_paths(arguments: list[str], column: str = "text") -> "Data":
    """Group `NAME=PATH,PATH` arguments by name; return arguments without names as paths.

    An argument that is the name of a file, or a glob that matches one, is a path. In Python, a dict
    with the name of the text's column is a table, so no source can have that name.

    >>> named_paths(["en=a.txt,b.txt", "ha=c.txt"])
    {'en': ('a.txt', 'b.txt'), 'ha': ('c.txt',)}
    """
    matches = {a: None if glob.glob(a) else SOURCE_ARGUMENT.fullmatch(a) for a in arguments}
    if not any(matches.values()):
        return only_paths(arguments)
    found: dict[str, list[str]] = {}
    for argument, match in matches.items():
        if match is None:
            raise UsageError(f"Name the source of every path or of none: NAME={argument}.")
        name, value = match.groups()
        if name == column:
            raise UsageError(f"A source cannot have the name of the column {column!r}: {argument}.")
        found.setdefault(name, []).extend([value] if glob.glob(value) else value.split(","))
    return {name: only_paths(paths) for name, paths in found.items()}


SOURCE_ARGUMENT = re.compile(r"([\w.-]+)=(.+)")


# ---- values of options ------------------------------------------------------------------------


def assignments(pairs: list[str] | None, name: str, example: str) -> dict[str, str]:
    """Parse the `key=value` pairs of an option that may be repeated.

    >>> assignments(["epochs=3"], "--set", "epochs=3")
    {'epochs': '3'}
    """
    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{name} takes KEY=VALUE, such as {example}, not {pair!r}.")
        found[key.strip()] = value
    return found


def column_names(pairs: list[str] | None) -> dict[str, str]:
    """Parse `--column role=name`."""
    return assignments(pairs, "--column", "text=review")


def overrides(pairs: list[str] | None) -> dict[str, str]:
    """Parse `--set key=value`."""
    return assignments(pairs, "--set", "schedule=cosine")


def only_paths(arguments: Iterable[str]) -> tuple[str | Path, ...]:
    """Return arguments that are never texts, as strings with white space may be in Python."""
    return tuple(
        Path(path) if any(map(str.isspace, path)) and not is_url(path) else path
        for path in arguments
    )


def terminal_text(text: str) -> str:
    """Replace the bytes of an argument that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def text_arguments(texts: list[str], option: str, hint: str = "") -> list[str]:
    """Return texts of the command line; one that is a path, or looks like one, is a usage error.

    >>> text_arguments(["good.tsv"], "--data")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: There is no file good.tsv; correct its name and pass it with \
--data, or pass it as a text with a space before it: ' good.tsv'.
    >>> text_arguments(["Good and/or bad.", " good.tsv"], "--data")
    ['Good and/or bad.', ' good.tsv']
    """
    for text in texts:
        if os.path.exists(text):
            raise UsageError(
                f"{text} is a file or folder, not a text: pass it with {option}{hint}."
            )
        if PATH_LIKE.fullmatch(text):
            raise UsageError(
                f"There is no file {text}; correct its name and pass it with {option}, or pass it "
                f"as a text with a space before it: ' {text}'."
            )
    return [terminal_text(text) for text in texts]


def check_source(file: str, format: str | None) -> None:
    """Raise an error if a file does not exist, before a model is loaded."""
    from firth.tasks.readers.columns import find_source

    find_source(file, format or "txt")


def check_jsonl(out: str | Path | None, overwrite: bool = False) -> None:
    """Raise a usage error if a JSON-lines output exists or has the extension of another format.

    >>> check_jsonl("answers.csv")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: --out writes JSON lines: name the file answers.jsonl, not \
answers.csv.
    """
    path = Path(out or "-")
    if path.suffix.lower() in OTHER_FORMATS:
        name = path.with_name(path.stem.removesuffix(".jsonl") + ".jsonl")
        raise UsageError(f"--out writes JSON lines: name the file {name}, not {path}.")
    check_output(path, overwrite)


# A word with a slash, or anything that ends like a data file.
PATH_LIKE = re.compile(
    r"[^\s/\\]*[/\\]\S*|\S.*\.(txt|md|jsonl?|csv|tsv|parquet|conllu?|iob2?|xlsx?)(\.(gz|bz2|xz|zst))?",
    re.IGNORECASE,
)
OTHER_FORMATS = (".csv", ".tsv", ".json", ".parquet", ".gz", ".xz", ".bz2", ".zst", ".npy")


def load_model(
    model: str, dtype: str | None, device: str | None, weights: str | None = None
) -> "Model":
    """Load a model to the device that an option names, or to the best one."""
    from firth.model import default_device, load

    return load(model, dtype=dtype, device=default_device(device, weights), weights=weights)
