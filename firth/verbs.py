"""What every verb of the command line has: `--json`, `--debug`, and a sentence for each error."""

import inspect
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from firth.errors import FirthError, Misuse

if TYPE_CHECKING:
    from rich.console import RenderableType

Option, Argument = typer.Option, typer.Argument

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, Option("--debug", help="Show where an error came from.")]
Offline = Annotated[bool, Option("--offline", help="Fetch nothing; the hub's cache will do.")]
AllowLegacy = Annotated[
    bool, Option("--allow-legacy", help="Rewrite a pytorch_model.bin as safetensors and open it.")
]
ANY_MODEL = "A run or model directory, or a name on the hub such as gpt2 or org/name@revision."
AnyModel = Annotated[str, Argument(metavar="MODEL", help=ANY_MODEL)]


class Output(NamedTuple):
    """What a verb has to say."""

    values: dict[str, Any]
    view: list["RenderableType"]


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
                    print(json.dumps(output.values, default=str))
                else:
                    _console().print(*output.view, sep="\n")
            except BrokenPipeError:
                raise
            except (FirthError, KeyboardInterrupt, Exception) as error:
                if debug:
                    traceback.print_exc()
                print(f"firth: {_sentence(error, debug)}", file=sys.stderr)
                raise typer.Exit(getattr(error, "exit_code", 1)) from None

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
        group.command(name)(run)
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
        return "Interrupted; nothing half-written has its final name."
    if isinstance(error, FirthError):
        return str(error)
    hint = "" if debug else " Run it again with --debug to see where."
    return f"Unexpected {type(error).__name__}: {error}.{hint}"


def _console() -> Any:
    from rich.console import Console

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Console(highlight=False, markup=False, emoji=False)


def assignments(pairs: list[str], option: str, example: str) -> dict[str, str]:
    """`key=value` pairs of an option that may be given several times."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Misuse(f"{option} takes KEY=VALUE, such as {example}, not {pair!r}.")
        found[key.strip()] = value
    return found
