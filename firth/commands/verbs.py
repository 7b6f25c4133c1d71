"""What every verb of the command line has: `--json`, `--debug`, and a sentence for each error."""

import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from firth.errors import FirthError, Misuse

if TYPE_CHECKING:
    from rich.console import RenderableType

Option, Argument = typer.Option, typer.Argument

TOLD = 20  # bad rows that are told one by one
OTHERS = (".csv", ".tsv", ".json", ".parquet", ".gz", ".xz", ".bz2", ".zst", ".npy")
SETTING = re.compile(r"`(\w+)(?:=([^`]+))?`")  # as sentences name it: `top_k`, `beams=3`

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, Option("--debug", help="Show where an error came from.")]
Offline = Annotated[bool, Option("--offline", help="Fetch nothing; the hub's cache will do.")]
AllowLegacy = Annotated[
    bool, Option("--allow-legacy", help="Rewrite a pytorch_model.bin as safetensors and open it.")
]
Weights = Annotated[
    str | None,
    Option(help="int8: matrices in 8 bits, a quarter of the memory; faster on a CPU if large."),
]
ANY_MODEL = "A run or model directory, or a name on the hub such as gpt2 or org/name@revision."
AnyModel = Annotated[str, Argument(metavar="MODEL", help=ANY_MODEL)]


class Command(TyperCommand):
    """A command in whose help a flag stands alone, not as something that takes a <bool>."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` too."""
        return _bare_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` too."""
        return _bare_flags(super().get_params(ctx))


def _bare_flags(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


class Complaints:
    """What is wrong with some of many rows: told at once, while the others are done.

    The verb that has any ends with exit code 1.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: FirthError) -> None:
        """Tell of one more."""
        self.count += 1
        if self.count <= TOLD:
            print(error, file=sys.stderr)

    def check(self) -> None:
        """Fail if there was any."""
        if self.count:
            rows = "1 row was" if self.count == 1 else f"{self.count:,} rows were"
            told = f"; the first {TOLD} are told above" if self.count > TOLD else ", as told above"
            raise FirthError(f"{rows} bad{told}; all others are done.")


def kept(lines: int, complaints: Complaints, out: Any) -> str:
    """What a file holds that has a line for each row.

    >>> kept(3, Complaints(), "a.jsonl")
    '3 answers are in a.jsonl.'
    """
    if not complaints.count:
        return f"{lines:,} answers are in {out}."
    return f"{lines - complaints.count:,} answers are in {out}, and what is wrong with other rows."


def lines_file(out: str | Path | None) -> None:
    """Refuse a name for a file of JSON lines that promises something else.

    >>> lines_file("answers.csv")
    Traceback (most recent call last):
    firth.errors.Misuse: --out writes JSON lines, so answers.csv is not its name: call it \
answers.jsonl.
    """
    path = Path(out or "-")
    if path.suffix.lower() in OTHERS:
        name = path.stem.removesuffix(".jsonl") + ".jsonl"
        raise Misuse(
            f"--out writes JSON lines, so {path} is not its name: call it {path.with_name(name)}."
        )


class Line(str):
    """A line for another program: printed as it is, at once."""


def json_lines(values: Iterable[Any]) -> Iterator[Line]:
    """Values as they come, a line of JSON for each."""
    return (Line(json.dumps(value, ensure_ascii=False)) for value in values)


class Output(NamedTuple):
    """What a verb has to say; it may say it little by little."""

    values: Mapping[str, Any]  # an iterator is written item by item, a function is asked then
    view: Iterable["RenderableType"]  # each part is shown as it comes
    complaints: Complaints | None = None


def verb(
    group: typer.Typer, name: str, *, opens_models: bool = False
) -> Callable[[Callable[..., Output]], Callable[..., None]]:
    """Register a verb: gives it `--json` and `--debug`, its errors a sentence and an exit code.

    One that opens models has `--offline` and `--allow-legacy` as well.
    """
    shared = {"json_": Json, "debug": Debug}
    if opens_models:
        shared = {"offline": Offline, "allow_legacy": AllowLegacy} | shared

    def register(function: Callable[..., Output]) -> Callable[..., None]:
        call = partial(_opening, function) if opens_models else function

        def run(*, json_: bool, debug: bool, **options: Any) -> None:
            try:
                output = call(**options)
                if json_:
                    _print_json(output.values)
                else:
                    _print(output.view)
                if output.complaints is not None:
                    output.complaints.check()
            except BrokenPipeError:
                raise
            except (FirthError, KeyboardInterrupt, Exception) as error:
                if debug:
                    traceback.print_exc()
                print(f"firth: {as_typed(_sentence(error, debug), options)}", file=sys.stderr)
                usual = 130 if isinstance(error, KeyboardInterrupt) else 1
                raise typer.Exit(getattr(error, "exit_code", usual)) from None

        signature = inspect.signature(function)
        extra = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
            for key, hint in shared.items()
        ]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), *extra]
        )
        run.__annotations__ = {**function.__annotations__, **shared}
        group.command(name, cls=Command)(run)
        return run

    return register


def _opening(
    function: Callable[..., Output], *, offline: bool, allow_legacy: bool, **options: Any
) -> Output:
    from firth.models.formats.hub import opening

    with opening(offline=offline, allow_legacy=allow_legacy):
        return function(**options)


def _sentence(error: BaseException, debug: bool) -> str:
    if isinstance(error, KeyboardInterrupt):
        kept = f". {error}" if str(error) else "; nothing half-written has its final name."
        return f"Interrupted{kept}"
    if isinstance(error, FirthError):
        return str(error)
    hint = "" if debug else " Run it again with --debug to see where."
    return f"Unexpected {type(error).__name__}: {error}.{hint}"


def as_typed(sentence: str, options: Collection[str]) -> str:
    """What is said of settings, which have names in Python, with the options that people type.

    >>> as_typed("`top_k` is for sampling; search with `beams=3`.", ["top_k", "beams"])
    '--top-k is for sampling; search with --beams 3.'
    >>> as_typed("It needs the `datasets` library.", ["top_k"])
    'It needs the `datasets` library.'
    """

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in options:
            return found[0]
        return f"--{name.replace('_', '-')}" + (f" {value}" if value else "")

    return SETTING.sub(option, sentence)


def _print(view: Iterable["RenderableType"]) -> None:
    from rich.console import Console

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    console = Console(highlight=False, markup=False, emoji=False)
    for part in view:
        if isinstance(part, Line):
            print(part, flush=True)
        else:
            console.print(part)


def _print_json(values: Mapping[str, Any]) -> None:
    """One object; if something goes wrong once it is begun, its last field tells."""
    begun, ends = False, "{"
    try:
        for name, value in values.items():
            several = isinstance(value, Iterator)
            now = value() if callable(value) else value
            text = "[" if several else json.dumps(now, default=str)
            sys.stdout.write(f"{ends}{json.dumps(name)}: {text}")
            begun, ends = True, "], " if several else ", "
            for number, item in enumerate(value if several else ()):
                sys.stdout.write((", " if number else "") + json.dumps(item, default=str))
            if several:
                sys.stdout.write("]")
                ends = ", "
    except (FirthError, KeyboardInterrupt) as error:
        if begun:
            print(f'{ends}"error": {json.dumps(_sentence(error, debug=False))}}}', flush=True)
        raise
    print("}" if values else "{}", flush=True)


def typed(text: str) -> str:
    """What a terminal gave, also where it is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def assignments(pairs: list[str], option: str, example: str) -> dict[str, str]:
    """`key=value` pairs of an option that may be given several times."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Misuse(f"{option} takes KEY=VALUE, such as {example}, not {pair!r}.")
        found[key.strip()] = value
    return found
