"""The verbs that teach a model a task, ask it, and say how well it does."""

import os
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.commands.verbs import (
    ANY_MODEL,
    AnyModel,
    Complaints,
    Output,
    Weights,
    assignments,
    json_lines,
    kept,
    lines_file,
    typed,
)
from firth.errors import Misuse

if TYPE_CHECKING:
    from firth.sweep import Sweep

Option, Argument = typer.Option, typer.Argument

Task = Annotated[str, Option(help="classify, tag, seq2seq, …: `firth tasks` lists them.")]
Column = Annotated[
    list[str] | None,
    Option(metavar="ROLE=NAME", help="What a column is called: text=review, label=stars."),
]
Format = Annotated[
    str | None,
    Option(help="What standard input, or a file of unknown ending, holds: tsv, jsonl, …"),
]
Device = Annotated[str | None, Option(help="cpu or cuda; else the GPU where there is one.")]


def tasks() -> Output:
    """List the tasks a model can be taught, and those that are only measured."""
    from firth.commands import task_views
    from firth.tasks.recipes import recipes_for
    from firth.tasks.table import MEASURES, TASKS

    every: dict[str, Any] = {**TASKS, **MEASURES, **TASKS}  # the taught ones first
    rows = [
        {
            "task": name,
            "about": task.about,
            "files": task.columns,
            "metric": task.metric,
            "architectures": list(task.architectures),
            "recipes": list(recipes_for(name)) if name in TASKS else [],
            "taught": name in TASKS,
        }
        for name, task in every.items()
    ]
    return Output({"tasks": rows}, [task_views.tasks(rows)])


def finetune(
    model: AnyModel,
    task: Task,
    train: Annotated[Path, Option(help="The examples to learn from.")],
    out: Annotated[Path, Option(help="The run directory to write.")],
    dev: Annotated[
        Path | None, Option(help="Examples to choose the best model by; else some are held out.")
    ] = None,
    decoder: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="Join an encoder to this decoder, so that it can write: for seq2seq.",
        ),
    ] = None,
    strategy: Annotated[
        str,
        Option(
            help="full, freeze:N, probe, probe-then-full, gradual, lora, adapters, prefix, prompt, "
            "bitfit, ia3, each with options (lora:rank=16); several with spaces between; or all."
        ),
    ] = "",
    recipe: Annotated[
        str | None, Option(help="The lectures' settings for a kind of work: see `firth tasks`.")
    ] = None,
    limit: Annotated[int, Option(min=0, help="Learn from so many examples, in fair shares.")] = 0,
    seed: Annotated[int, Option(help="Another seed, another run.")] = 0,
    seeds: Annotated[int, Option(min=1, help="Repeat with so many seeds: mean ± deviation.")] = 1,
    search: Annotated[
        bool, Option("--search", help="Try the lectures' grid of rates, batches, frozen blocks.")
    ] = False,
    minutes: Annotated[
        float, Option(min=0, help="With --search: begin no run after so many.")
    ] = 0.0,
    balance: Annotated[
        bool, Option("--balance", help="Rare labels count as much as common ones.")
    ] = False,
    augment: Annotated[
        str, Option(help="More examples: dropout, swap, masked, or several with commas.")
    ] = "",
    replay: Annotated[
        Path | None, Option(help="A text to go on learning, so that it is not forgotten.")
    ] = None,
    scratch: Annotated[
        bool, Option("--scratch", help="Forget all weights first: what is pre-training worth?")
    ] = False,
    column: Column = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting (rate, epochs, batch, …), head.layers, or task.OPTION.",
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on where this run stopped.")] = False,
    device: Device = None,
) -> Output:
    """Teach a model a task with labelled examples."""
    from firth import sweep
    from firth.commands import task_views, terminal
    from firth.finetuning import finetune

    several = strategy.split()
    tables = (seeds > 1, search, len(several) > 1 or several == ["all"])
    if sum(tables) > 1:
        raise Misuse("--seeds, --search and several strategies are each a table: ask for one.")
    if resume and any(tables):
        raise Misuse("--resume goes on with one run; several begin in an empty directory.")
    if search and strategy:
        raise Misuse("--search tries full and freeze; leave --strategy out.")
    if minutes and not search:
        raise Misuse("--minutes is for --search; one run has --set minutes=N.")
    options: dict[str, Any] = {
        "model": model,
        "decoder": decoder,
        "task": task,
        "train": train,
        "dev": dev,
        "recipe": recipe,
        "limit": limit,
        "seed": seed,
        "changes": assignments(set_ or [], "--set", "rate=1e-3"),
        "columns": assignments(column or [], "--column", "text=review"),
        "balance": balance,
        "augment": augment,
        "replay": replay,
        "scratch": scratch,
        "device": device,
    }
    made: Sweep | None = None
    with terminal.training() as listener:
        options["listener"] = listener
        if search:
            made = sweep.search(out, minutes=minutes, **options)
        elif seeds > 1:
            made = sweep.seeds(seeds, out, strategy=strategy, **options)
        elif any(tables):
            made = sweep.strategies(several, out, **options)
        else:
            tuned = finetune(out=out, strategy=strategy, resume=resume, **options)
    if made is not None:
        return Output(made.values(), task_views.sweep(made, out))
    return Output(tuned.values(), task_views.tuned(tuned))


def evaluate(
    model: AnyModel,
    data: Annotated[
        str, Option(help="The examples, with what should be said of them; a text; a folder.")
    ],
    task: Annotated[
        str | None,
        Option(
            help="Only where the model itself does not say; lm, last-word and minimal-pairs "
            "measure any language model."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        Option(help="glue, lm or blimp: all that is in the folder, with the usual average."),
    ] = None,
    convention: Annotated[
        str, Option(help="For lm: plain, wikitext, ptb or enwik8: what is counted, and as one.")
    ] = "",
    context: Annotated[
        int, Option(min=0, help="For lm: tokens read at once; else 1024 or what the model reads.")
    ] = 0,
    stride: Annotated[
        int, Option(min=0, help="For lm: tokens from one window to the next; else half of them.")
    ] = 0,
    by_word: Annotated[
        bool,
        Option(
            "--by-word",
            help="For minimal-pairs: a masked model hides the rest of a word with each token.",
        ),
    ] = False,
    limit: Annotated[int, Option(min=0, help="Only so many examples of each file.")] = 0,
    column: Column = None,
    format: Format = None,
    weights: Weights = None,
    device: Device = None,
) -> Output:
    """Say how well a model does its task, each figure with an interval."""
    from firth.commands import task_views, terminal
    from firth.evaluation import evaluate
    from firth.suites import evaluate_suite

    given: dict[str, Any] = {"data": data, "limit": limit, "by_word": by_word, "device": device}
    alone: dict[str, Any] = {
        "task": task,
        "convention": convention,
        "context": context,
        "stride": stride,
        "columns": assignments(column or [], "--column", "text=review"),
        "format": format,
        "weights": weights,
    }
    with terminal.progress() as progress:
        if suite is None:
            found = evaluate(model, progress=progress, **given, **alone)
            return Output(found.values(), task_views.evaluation(found))
        if both := [name for name, value in alone.items() if value]:
            option = "column" if both[0] == "columns" else both[0]
            if option == "weights":
                raise Misuse("--weights is for one --data file: a suite keeps them as they are.")
            raise Misuse(f"A suite knows how each of its files is read: leave --{option} out.")
        table = evaluate_suite(model, suite, progress=progress, **given)
    return Output(table.values(), task_views.suite(table))


def predict(
    models: Annotated[
        list[str],
        Argument(
            metavar="MODEL... [TEXT]...",
            help=f"{ANY_MODEL} Without --data, behind one model, the texts to answer.",
        ),
    ],
    data: Annotated[str | None, Option(help="The examples; - for standard input.")] = None,
    out: Annotated[
        Path | None,
        Option(help="A .jsonl file to write the answers to, a line for each row; - for a pipe."),
    ] = None,
    task: Annotated[str | None, Option(help="Only where the model itself does not say.")] = None,
    column: Column = None,
    format: Format = None,
    device: Device = None,
) -> Output:
    """Answer texts, or every example of a file, as they come; several models are averaged.

    A row that cannot be read is told on stderr, and the others are answered.
    """
    from firth.commands import answer_views, terminal
    from firth.prediction import predicting
    from firth.streams import write_lines

    texts: list[str] = []
    if data is None:
        models, texts = models[:1], _texts(models[1:])
    lines_file(out)
    complaints = Complaints()
    stream = predicting(
        models,
        data=data,
        texts=texts,
        task=task,
        columns=assignments(column or [], "--column", "text=review"),
        format=format,
        device=device,
        bad=complaints,
    )
    values: dict[str, Any] = {"task": stream.task.name}
    rest = {"notes": lambda: stream.notes, "bad": lambda: complaints.count}
    if out is None or str(out) == "-":
        first = list(islice(stream, 1))  # what is wrong with all is told before anything is shown
        found = chain(first, stream)
        said = (row.answer for row in found)
        shown = json_lines(said) if out else answer_views.answers(stream, found)
        return Output({**values, "predictions": said, **rest}, shown, complaints)
    with terminal.progress() as progress:
        count = write_lines((row.answer for row in stream), out, progress)
    values |= {"out": str(out), "n": count, **rest}
    return Output(values, [kept(count, complaints, out), *stream.notes], complaints)


def _texts(given: list[str]) -> list[str]:
    """The texts behind a model; what is there under such a name is no text."""
    if not given:
        raise Misuse("Give texts to answer behind the model, or --data with a file of them.")
    for text in given:
        if os.path.exists(text):
            raise Misuse(
                f"{text} is a file or folder, and texts stand behind the model: name a file of "
                "them with --data; with it, several models may be given."
            )
    return [typed(text) for text in given]
