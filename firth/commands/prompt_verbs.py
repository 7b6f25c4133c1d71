"""The verb that asks a model in words: `prompt`, zero-, one- and few-shot."""

from pathlib import Path
from typing import Annotated

import typer

from firth.commands.verbs import AnyModel, Complaints, Output, assignments, lines_file, typed
from firth.errors import Misuse

Option, Argument = typer.Option, typer.Argument

ARROWS = ("=>", "→", "\t")  # between the text of an example and its answer


def prompt(
    model: AnyModel,
    queries: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            help="Texts to answer; for pair the two that are compared, for choice a text and then "
            "its choices.",
        ),
    ] = None,
    task: Annotated[
        str,
        Option(help="seq2seq: it writes the answer. classify, pair, choice: it chooses one."),
    ] = "seq2seq",
    data: Annotated[
        str | None,
        Option(help="Or a file of texts, with what is right: how often is the model? - for stdin."),
    ] = None,
    examples: Annotated[
        Path | None, Option(help="A file of examples with their answers, of which some are shown.")
    ] = None,
    example: Annotated[
        list[str] | None,
        Option(metavar="TEXT=>ANSWER", help="Show this example; may be given several times."),
    ] = None,
    shots: Annotated[
        int | None, Option(help="How many examples are shown; 4 of a file unless given.")
    ] = None,
    pick: Annotated[
        str | None,
        Option(help="Which: random, balanced (as many of each label) or nearest to the text."),
    ] = None,
    near: Annotated[
        str | None,
        Option(metavar="MODEL", help="Nearest by this model's vectors, not by words (tf-idf)."),
    ] = None,
    draws: Annotated[
        int, Option(help="Repeat with so many choices of examples: mean ± deviation.")
    ] = 1,
    labels: Annotated[
        str | None,
        Option(help="The labels, or a word for each: 0=negative,1=positive."),
    ] = None,
    template: Annotated[
        str | None,
        Option(
            help="How an example reads: 'Review: {text}\\nSentiment: {label}'. Fields: {text}, "
            "{text_a} {text_b}, {source} {target}, {labels}; {label} or [MASK] is the answer."
        ),
    ] = None,
    instruction: Annotated[str, Option(help="What stands above all examples.")] = "",
    calibrate: Annotated[
        bool | None,
        Option(
            "--calibrate/--no-calibrate",
            help="Allow for labels that are likely whatever the text; so it is for classify and "
            "pair, but with nearest examples.",
        ),
    ] = None,
    mean: Annotated[
        bool | None,
        Option(
            "--mean/--sum",
            help="Score a label by the mean of its tokens, or their sum; by the mean where labels "
            "differ in tokens.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, Option(help="Of an answer that is written.")] = 32,
    limit: Annotated[int, Option(min=0, help="Ask so many of the file, in fair shares.")] = 0,
    seed: Annotated[int, Option(help="Another seed, other examples.")] = 0,
    out: Annotated[
        Path | None,
        Option(help="A .jsonl file to write each answer to; then what is right may be missing."),
    ] = None,
    show: Annotated[bool, Option("--show", help="Show the first prompt.")] = False,
    column: Annotated[
        list[str] | None,
        Option(metavar="ROLE=NAME", help="What a column is called: text=review, label=stars."),
    ] = None,
    format: Annotated[
        str | None,
        Option(help="What standard input, or a file of unknown ending, holds: tsv, jsonl, …"),
    ] = None,
    device: Annotated[
        str | None, Option(help="cpu or cuda; else the GPU where there is one.")
    ] = None,
) -> Output:
    """Ask a model in words, behind no, one or a few examples; nothing is learned."""
    from firth.commands import prompt_views, terminal
    from firth.prompting import prompt

    if example and examples:
        raise Misuse("Give --examples FILE or --example TEXT=>ANSWER, not both.")
    lines_file(out)
    complaints = Complaints()
    with terminal.progress() as progress:
        made = prompt(
            model,
            [typed(query) for query in queries or ()],
            task=task,
            data=data,
            examples=[_example(typed(one)) for one in example] if example else examples,
            shots=shots,
            pick=pick,
            near=near,
            draws=draws,
            labels=_labels(labels),
            template=template,
            instruction=instruction,
            calibrate=calibrate,
            mean=mean,
            max_new_tokens=max_new_tokens,
            limit=limit,
            seed=seed,
            columns=assignments(column or [], "--column", "text=review"),
            format=format,
            out=out,
            device=device,
            bad=complaints,
            progress=progress,
        )
    return Output(made.values(), prompt_views.prompted(made, show=show, out=out), complaints)


def _example(text: str) -> tuple[str, str]:
    """A text and its answer.

    >>> _example("sea otter => loutre de mer")
    ('sea otter', 'loutre de mer')
    """
    for arrow in ARROWS:
        if arrow in text:
            source, _, target = text.rpartition(arrow)
            return source.strip(), target.strip()
    raise Misuse(f"--example takes TEXT=>ANSWER, such as 'cheese => fromage', not {text!r}.")


def _labels(text: str | None) -> dict[str, str]:
    """Labels and their words.

    >>> _labels("0=negative, 1=positive"), _labels("yes,no")
    ({'0': 'negative', '1': 'positive'}, {'yes': 'yes', 'no': 'no'})
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        label, equals, word = (side.strip() for side in part.partition("="))
        if text is not None and (not label or (equals and not word) or label in found):
            raise Misuse(f"--labels takes words, or LABEL=WORD, with commas between, not {text!r}.")
        if label:
            found[label] = word or label
    return found
