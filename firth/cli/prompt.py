"""`firth prompt`: zero-, one- and few-shot prediction with a prompt."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs.prompt_config import PromptConfig
from firth.utils.errors import UsageError

EXAMPLES = (
    'firth prompt gpt2 "The cake was lovely." --task classify --labels negative,positive',
    "firth prompt gpt2 cheese --example 'sea otter => loutre de mer' --example 'bread => pain'",
)
EXAMPLE_TASKS = ("classify", "seq2seq")  # with a text and an answer
ARROWS = ("=>", "→", "\t")  # between the text of a demonstration and its answer


@options.with_options(PromptConfig, panel="Prompt")
def prompt(
    model: str = options.MODEL,
    queries: list[str] | None = options.Argument(
        None,
        metavar="[TEXT]...",
        help="Texts to answer; for pair, the two texts; for choice, a text and its choices.",
    ),
    example: list[str] | None = options.PromptOption(
        None, metavar="TEXT=>ANSWER", help="A demonstration; repeatable. Default: none."
    ),
    show: bool = options.OutputOption(False, "--show", help="Print the first prompt."),
    **settings: Any,
) -> Output:
    """Predict with a prompt of zero, one or a few demonstrations, without training."""
    from firth.cli import terminal
    from firth.cli.views import prompting as view
    from firth.jobs.prompting import prompt

    if example and settings["examples"]:
        raise UsageError("Give --examples FILE or --example TEXT=>ANSWER, not both.")
    if example:
        if settings["task"] not in EXAMPLE_TASKS:
            raise UsageError(
                f"--example is for {' and '.join(EXAMPLE_TASKS)}: give --examples FILE."
            )
        settings["examples"] = [_parse_example(options.terminal_text(one)) for one in example]
    options.check_jsonl(settings["out"], settings["overwrite"])
    settings["columns"] = options.column_names(settings["columns"])
    texts = options.text_arguments(queries or [], "--data")
    with terminal.progress() as progress:
        result = prompt(model, texts, progress=progress, **settings)
    return Output(result.values(), view.prompted(result, show=show, out=settings["out"]))


def _parse_example(text: str) -> tuple[str, str]:
    """Split a demonstration into its text and its answer.

    >>> _parse_example("sea otter => loutre de mer")
    ('sea otter', 'loutre de mer')
    """
    for arrow in ARROWS:
        if arrow in text:
            source, target = map(str.strip, text.rpartition(arrow)[::2])
            if source and target:
                return source, target
    raise UsageError(f"--example takes TEXT=>ANSWER, such as 'cheese => fromage', not {text!r}.")
