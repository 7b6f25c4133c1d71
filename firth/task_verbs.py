"""The verbs that teach a model a task, ask it, and say how well it does."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.errors import Misuse
from firth.verbs import ANY_MODEL, AnyModel, Output, assignments

if TYPE_CHECKING:
    from firth.sweep import Sweep

Option, Argument = typer.Option, typer.Argument

Task = Annotated[
    str,
    Option(help="classify, pair, regress, choice, tag, span, seq2seq or lm: see `firth tasks`."),
]
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
    """List the tasks a model can be taught, with their files, metrics and recipes."""
    from firth import task_views
    from firth.tasks.recipes import RECIPES
    from firth.tasks.table import TASKS

    rows = [
        {
            "task": name,
            "about": task.about,
            "files": task.columns,
            "metric": task.metric,
            "architectures": list(task.architectures),
            "recipes": [key for key, recipe in RECIPES.items() if recipe.task == name],
        }
        for name, task in TASKS.items()
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
    from firth import sweep, task_views, terminal
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
    data: Annotated[str, Option(help="The examples, with what should be said of them.")],
    task: Annotated[str | None, Option(help="Only where the model itself does not say.")] = None,
    column: Column = None,
    format: Format = None,
    device: Device = None,
) -> Output:
    """Say how well a model does its task, each figure with an interval."""
    from firth import task_views, terminal
    from firth.evaluation import evaluate

    with terminal.progress() as progress:
        found = evaluate(
            model,
            data=data,
            task=task,
            columns=assignments(column or [], "--column", "text=review"),
            format=format,
            device=device,
            progress=progress,
        )
    return Output(found.values(), task_views.evaluation(found))


def predict(
    models: Annotated[list[str], Argument(metavar="MODEL...", help=ANY_MODEL)],
    data: Annotated[str, Option(help="The examples; - for standard input.")],
    out: Annotated[Path | None, Option(help="A .jsonl file to write the answers to.")] = None,
    task: Annotated[str | None, Option(help="Only where the model itself does not say.")] = None,
    column: Column = None,
    format: Format = None,
    device: Device = None,
) -> Output:
    """Answer every example of a file; several models are averaged."""
    from firth import task_views, terminal
    from firth.evaluation import predict, write_predictions

    with terminal.progress() as progress:
        found = predict(
            models,
            data=data,
            task=task,
            columns=assignments(column or [], "--column", "text=review"),
            format=format,
            device=device,
            progress=progress,
        )
    if out is not None:
        write_predictions(found, out)
    return Output(found.values(), task_views.predictions(found, out))
