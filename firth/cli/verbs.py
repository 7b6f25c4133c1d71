"""What all verbs share: registration, `--json`, `--debug`, error messages and exit codes."""

import inspect
import json
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from firth.cli.options import PANELS, HubOption, OutputOption
from firth.utils.bad_rows import AS_NULL, BadRows
from firth.utils.config_fields import flag
from firth.utils.errors import DeviceError, FirthError, UsageError
from firth.utils.torchrun import launched_by_torchrun, launched_rank, launched_world_size

if TYPE_CHECKING:
    from rich.console import RenderableType

NO_LIMIT = 1_000_000  # columns of a pipe or a file
PARAMETER = re.compile(r"`(\w+)(?:=([^`]+))?`")  # as messages name it: `top_k`, `beams=3`
PAIR = re.compile(r"'([^']+)': '([^']+)'")  # of a dict
MODEL_OPTIONS = {
    "offline": HubOption(
        False, "--offline", help="Use only the local cache of the hub; download nothing."
    ),
    "allow_legacy": HubOption(
        False, "--allow-legacy", help="Convert a pytorch_model.bin to safetensors and load it."
    ),
}
COMMON_OPTIONS = {
    "json_": OutputOption(False, "--json", help="Print one JSON object and nothing else."),
    "debug": OutputOption(False, "--debug", help="Print a traceback with an error."),
}


class BareFlags:
    """A mixin of commands whose help shows flags without a `<bool>` value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options, `--help` included."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in options:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return options


class Command(BareFlags, TyperCommand):
    """A command of the application."""


class CommandGroup(BareFlags, TyperGroup):
    """A group of commands."""


def null_rows(strict: bool) -> BadRows:
    """Return what prints the errors of bad rows, which are null in the output, to stderr."""

    def show(error: object) -> None:
        if _is_main_rank():
            print(error, file=sys.stderr)

    return BadRows(AS_NULL, strict=strict, show=show)


class OutputLine(str):
    """A line for another program: printed unchanged and flushed at once."""


def json_lines(values: Iterable[Any]) -> Iterator[OutputLine]:
    """Format each value as a line of JSON."""
    return (OutputLine(json.dumps(value, ensure_ascii=False)) for value in values)


class Output(NamedTuple):
    """The result of a verb: values for `--json`, and a view for a terminal."""

    values: Mapping[str, Any]  # iterators are written item by item, functions called when reached
    view: Iterable["RenderableType"]  # each part is printed as it comes
    bad_rows: BadRows | None = None


def row_output(
    rows: Iterator[Any],
    values: Callable[[Any], Any],
    show: Callable[[Iterator[Any]], Iterable["RenderableType"]],
    out: Path | None,
    bad_rows: BadRows,
    *,
    key: str = "results",
) -> Output:
    """Return the rows of a stream: written to a file, printed as JSON lines (`-`), or shown."""
    bad = {"bad": lambda: bad_rows.count, "notes": lambda: bad_rows.notes}
    if out is not None and str(out) != "-" and _is_main_rank():
        from firth.cli import terminal
        from firth.utils.streams import write_lines

        with terminal.progress() as progress:
            count = write_lines(map(values, rows), out, progress)
        summary = f"Wrote {count:,} {'row' if count == 1 else 'rows'} to {out}."
        return Output({"out": str(out), "n": count, **bad}, [summary], bad_rows)
    rows = chain(list(islice(rows, 1)), rows)  # errors of all rows come before any output
    found = map(values, rows)
    return Output({key: found, **bad}, json_lines(found) if out else show(rows), bad_rows)


def verb(
    group: typer.Typer,
    name: str,
    *,
    loads_models: bool = False,
    divides_inputs: bool = False,
    trains: bool = False,
    examples: Sequence[str] = (),
) -> Callable[[Callable[..., Output]], Callable[..., None]]:
    """Register a function as a verb, with `--json`, `--debug`, error messages and exit codes.

    A verb that loads models also gets `--offline` and `--allow-legacy`. `examples` are commands
    shown at the end of its help. Under torchrun, a verb that divides its inputs computes a part of
    them in each process, a verb that trains uses all processes, and all others are refused.
    """

    def register(function: Callable[..., Output]) -> Callable[..., None]:
        call = partial(_with_hub_options, function) if loads_models else function

        def run(*, json_: bool, debug: bool, **options: Any) -> None:
            try:
                if launched_world_size() > 1 and not (divides_inputs or trains):
                    raise UsageError("This verb runs in one process: omit torchrun.")
                with _all_ranks(options) if divides_inputs else nullcontext():
                    output = call(**options)
                    if not _is_main_rank():
                        _compute(output.values)
                        return
                    if json_:
                        _print_json(output.values)
                    else:
                        _print(output.view)
                if output.bad_rows is not None and output.bad_rows.count:
                    print(output.bad_rows.notes[-1], file=sys.stderr)
            except BrokenPipeError:
                raise
            except (FirthError, KeyboardInterrupt, Exception) as error:
                if debug:
                    traceback.print_exc()
                message = as_options(_error_message(error, debug), options)
                rank = f" rank {launched_rank()}" if launched_by_torchrun() else ""
                print(f"firth{rank}: {message}", file=sys.stderr, flush=True)
                if isinstance(error, DeviceError):  # else freeing its memory aborts the process
                    os._exit(error.exit_code)
                default = 130 if isinstance(error, KeyboardInterrupt) else 1
                raise typer.Exit(getattr(error, "exit_code", default)) from None

        shared = {**(MODEL_OPTIONS if loads_models else {}), **COMMON_OPTIONS}
        parameters = [
            *inspect.signature(function).parameters.values(),
            *(
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool
                )
                for key, option in shared.items()
            ),
        ]
        parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in parameters]
        parameters.sort(key=lambda one: ("", *PANELS).index(one.default.rich_help_panel or ""))
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        epilog = "\n\n".join(["Examples:", *examples]) if examples else None
        group.command(name, cls=Command, epilog=epilog)(run)
        return run

    return register


def _is_main_rank() -> bool:
    """Return whether this process prints: under torchrun, only rank 0 does."""
    return launched_rank() == 0


@contextmanager
def _all_ranks(options: dict[str, Any]) -> Iterator[None]:
    """Connect the processes that torchrun started, if it did, each with its own device."""
    if not launched_by_torchrun():
        yield
        return
    from firth.training.distributed.process_group import process_group

    with process_group(options.get("device")) as device:
        options["device"] = str(device)
        yield


def _compute(values: Mapping[str, Any]) -> None:
    """Take part in the computation of what rank 0 prints."""
    for value in values.values():
        if isinstance(value, Iterator):
            deque(value, maxlen=0)


def _with_hub_options(
    function: Callable[..., Output], *, offline: bool, allow_legacy: bool, **options: Any
) -> Output:
    if not (offline or allow_legacy):
        return function(**options)  # without importing torch, which some verbs do not need
    from firth.formats.hub import hub_options

    with hub_options(offline=offline, allow_legacy=allow_legacy):
        return function(**options)


def _error_message(error: BaseException, debug: bool) -> str:
    if isinstance(error, KeyboardInterrupt):
        details = f". {error}" if str(error) else "; no incomplete file has its final name."
        return f"Interrupted{details}"
    if isinstance(error, FirthError):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        why = str(error).partition(".")[0] or "no memory is left"
        return f"Out of memory ({why}): use a smaller model, smaller batches or shorter texts."
    hint = "" if debug else " Run it again with --debug for a traceback."
    return f"Unexpected {type(error).__name__}: {error}.{hint}"


def as_options(message: str, parameters: Collection[str]) -> str:
    """Replace the Python parameters that an error message names by command-line options.

    >>> as_options("`top_k` is for sampling; search with `beams=3`.", ["top_k", "beams"])
    '--top-k is for sampling; search with --beams 3.'
    >>> as_options("Choose with `columns={'text_a': 'NAME', 'text_b': 'NAME'}`.", ["columns"])
    'Choose with --column text_a=NAME --column text_b=NAME.'
    >>> as_options("It needs the `datasets` library.", ["top_k"])
    'It needs the `datasets` library.'
    """

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in parameters:
            return found[0]
        pairs = [f" {key}={one}" for key, one in PAIR.findall(value or "")]
        return " ".join(flag(name) + one for one in pairs or [f" {value}" if value else ""])

    return PARAMETER.sub(option, message)


def _print(view: Iterable["RenderableType"]) -> None:
    """Print each part; lines and tables are as wide as their text unless stdout is a terminal."""
    from rich.console import Console

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    width = None if sys.stdout.isatty() else NO_LIMIT
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    for part in view:
        if isinstance(part, OutputLine):
            print(part, flush=True)
        else:
            console.print(part)


def _print_json(values: Mapping[str, Any]) -> None:
    """Print one object; an error after its first field becomes its last field."""
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
            print(f'{ends}"error": {json.dumps(_error_message(error, debug=False))}}}', flush=True)
        raise
    print("}" if values else "{}", flush=True)
