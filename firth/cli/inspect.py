"""`firth inspect`: look inside a model, or compare the inside of two."""

import sys
from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs.inspect_config import InspectConfig
from firth.utils.errors import UsageError

EXAMPLES = (
    'firth inspect stories-encoder "The [MASK] barked loudly at the mailman." --out page.html',
    'firth inspect bert-base-uncased "He sat by the river bank." "She robbed a bank." --word bank',
    "firth inspect stories-encoder --compare stories-decoder --data reviews.tsv --out page.html",
)


@options.with_options(InspectConfig, panel="Data")
def inspect(
    model: str = options.MODEL,
    texts: list[str] | None = options.Argument(
        None, metavar="[TEXT]...", help="Texts to look at, each with sections of its own."
    ),
    **settings: Any,
) -> Output:
    """Show tokens, attention, logit lens, attribution and generation; or compare two models."""
    from firth.cli import terminal
    from firth.cli.views.inspection import inspected
    from firth.jobs.inspecting import inspect

    for name in ("layers", "heads"):
        settings[name] = _numbers(settings[name], name)
    settings["columns"] = options.column_names(settings["columns"])
    texts = options.text_arguments(texts or [], "--data", " and --compare MODEL")
    with terminal.progress() as progress:
        found = inspect(model, texts, progress=progress, **settings)
    for note in found.notes:
        print(note, file=sys.stderr)
    return Output(found.values(), inspected(found, settings["out"], settings["png"]))


def _numbers(value: str | None, name: str) -> list[int] | None:
    """Parse --layers or --heads.

    >>> _numbers("1,-1", "layers")
    [1, -1]
    """
    if value is None:
        return None
    try:
        return [int(number) for number in value.split(",")]
    except ValueError as error:
        raise UsageError(f"--{name} takes numbers such as 1,6,-1, not {value!r}.") from error
