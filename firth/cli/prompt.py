"""`firth prompt`: zero-, one- and few-shot prediction with a prompt."""

from pathlib import Path
from typing import Annotated, Any

from firth.cli.options import (
    Argument,
    Columns,
    DataOption,
    DecodingOption,
    Device,
    Format,
    Limit,
    ModelArgument,
    OutputOption,
    PromptOption,
    check_jsonl,
    column_names,
    terminal_text,
)
from firth.cli.verbs import BadRows, Output
from firth.utils.errors import UsageError

EXAMPLES = (
    'firth prompt gpt2 "The cake was lovely." --task classify --labels negative,positive',
    "firth prompt gpt2 cheese --example 'sea otter => loutre de mer' --example 'bread => pain'",
)
ARROWS = ("=>", "→", "\t")  # between the text of a demonstration and its answer


def prompt(
    model: ModelArgument,
    queries: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            help="Texts to answer; for pair, the two texts; for choice, a text and its choices.",
        ),
    ] = None,
    task: Annotated[
        str,
        DataOption(help="seq2seq generates an answer; classify, pair and choice score labels."),
    ] = "seq2seq",
    data: Annotated[
        str | None,
        DataOption(help="Labelled examples to evaluate on; - for stdin. Default: the TEXTs."),
    ] = None,
    examples: Annotated[
        Path | None,
        PromptOption(help="File of labelled examples to draw demonstrations from. Default: none."),
    ] = None,
    example: Annotated[
        list[str] | None,
        PromptOption(metavar="TEXT=>ANSWER", help="A demonstration; repeatable."),
    ] = None,
    shots: Annotated[
        int | None,
        PromptOption(help="Number of demonstrations. Default: 4 with --examples, else all given."),
    ] = None,
    pick: Annotated[
        str | None,
        PromptOption(
            help="Selection: random, balanced (equally many per label) or nearest to the text. "
            "Default: balanced if there are labels, else random."
        ),
    ] = None,
    near: Annotated[
        str | None,
        PromptOption(
            metavar="MODEL", help="Embedding model for --pick nearest. Default: tf-idf of words."
        ),
    ] = None,
    draws: Annotated[
        int, PromptOption(help="Number of random demonstration sets; reports mean ± std.")
    ] = 1,
    labels: Annotated[
        str | None,
        PromptOption(
            help="Labels, or label words: 0=negative,1=positive. Default: those of the data."
        ),
    ] = None,
    template: Annotated[
        str | None,
        PromptOption(
            help="Template of an example: 'Review: {text}\\nSentiment: {label}'. Fields: {text}, "
            "{text_a} {text_b}, {source} {target}, {labels}; {label} or [MASK] is the answer. "
            "Default: the task's."
        ),
    ] = None,
    instruction: Annotated[
        str, PromptOption(help="Instruction at the start of the prompt. Default: none.")
    ] = "",
    calibrate: Annotated[
        bool | None,
        DecodingOption(
            "--calibrate/--no-calibrate",
            help="Divide label probabilities by those of an empty text. Default: on for classify "
            "and pair, off with --pick nearest.",
        ),
    ] = None,
    mean: Annotated[
        bool | None,
        DecodingOption(
            "--mean/--sum",
            help="Score a label by the mean or the sum of its tokens' log-probabilities. Default: "
            "the mean if labels differ in length.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, DecodingOption(help="Maximum length of a generated answer in tokens.")
    ] = 32,
    limit: Limit = 0,
    seed: Annotated[int, PromptOption(help="Random seed of the demonstrations.")] = 0,
    out: Annotated[
        Path | None,
        OutputOption(
            help="JSON-lines file for the predictions; --data may then lack labels. Default: none."
        ),
    ] = None,
    show: Annotated[bool, OutputOption("--show", help="Print the first prompt.")] = False,
    column: Columns = None,
    format: Format = None,
    device: Device = None,
) -> Output:
    """Predict with a prompt of zero, one or a few demonstrations, without training."""
    from firth.cli import terminal
    from firth.cli.views import prompting as view
    from firth.jobs.prompting import prompt

    if example and examples:
        raise UsageError("Give --examples FILE or --example TEXT=>ANSWER, not both.")
    check_jsonl(out)
    bad_rows = BadRows()
    options: dict[str, Any] = {
        "task": task,
        "data": data,
        "examples": [_parse_example(terminal_text(e)) for e in example] if example else examples,
        "shots": shots,
        "pick": pick,
        "near": near,
        "draws": draws,
        "labels": _parse_labels(labels),
        "template": template,
        "instruction": instruction,
        "calibrate": calibrate,
        "mean": mean,
        "max_new_tokens": max_new_tokens,
        "limit": limit,
        "seed": seed,
        "columns": column_names(column),
        "format": format,
    }
    with terminal.progress() as progress:
        result = prompt(
            model,
            [terminal_text(query) for query in queries or ()],
            out=out,
            device=device,
            bad=bad_rows,
            progress=progress,
            **options,
        )
    return Output(result.values(), view.prompted(result, show=show, out=out), bad_rows)


def _parse_example(text: str) -> tuple[str, str]:
    """Split a demonstration into its text and its answer.

    >>> _parse_example("sea otter => loutre de mer")
    ('sea otter', 'loutre de mer')
    """
    for arrow in ARROWS:
        if arrow in text:
            source, _, target = text.rpartition(arrow)
            return source.strip(), target.strip()
    raise UsageError(f"--example takes TEXT=>ANSWER, such as 'cheese => fromage', not {text!r}.")


def _parse_labels(text: str | None) -> dict[str, str]:
    """Parse the labels and the word of each.

    >>> _parse_labels("0=negative, 1=positive"), _parse_labels("yes,no")
    ({'0': 'negative', '1': 'positive'}, {'yes': 'yes', 'no': 'no'})
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        label, equals, word = (side.strip() for side in part.partition("="))
        if text is not None and (not label or (equals and not word) or label in found):
            raise UsageError(
                f"--labels takes words, or LABEL=WORD, separated by commas, not {text!r}."
            )
        if label:
            found[label] = word or label
    return found
