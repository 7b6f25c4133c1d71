"""The `firth` command, assembled from one file per verb.

A verb takes its options, calls the Python function of the same name and returns an `Output`.
Results go to stdout, progress and errors to stderr. Heavy imports stay inside functions, so that
`firth --help` is fast.
"""

from typing import Annotated

import typer

import firth
from firth.cli import (
    demo,
    embed,
    evaluate,
    export,
    fill,
    finetune,
    generate,
    objectives,
    predict,
    prepare,
    presets,
    pretrain,
    prompt,
    search,
    stories,
    tasks,
    tokenizer,
)
from firth.cli.verbs import CommandGroup, verb

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokenizer_app = typer.Typer(
    cls=CommandGroup, help="Train tokenizers and compare them.", no_args_is_help=True
)


def _print_version(given: bool) -> None:
    if given:
        print(f"firth {firth.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Pre-train, fine-tune, evaluate and use language models."""


verb(app, "demo", examples=demo.EXAMPLES)(demo.demo)
verb(app, "stories", examples=stories.EXAMPLES)(stories.stories)
app.add_typer(tokenizer_app, name="tokenizer")
verb(tokenizer_app, "train", examples=tokenizer.TRAIN_EXAMPLES)(tokenizer.train)
verb(tokenizer_app, "show", examples=tokenizer.SHOW_EXAMPLES)(tokenizer.show)
verb(app, "prepare", loads_models=True, examples=prepare.EXAMPLES)(prepare.prepare)
verb(app, "objectives", examples=objectives.EXAMPLES)(objectives.objectives)
verb(app, "presets", examples=presets.EXAMPLES)(presets.presets)
verb(app, "pretrain", loads_models=True, examples=pretrain.EXAMPLES)(pretrain.pretrain)
verb(app, "tasks", examples=tasks.EXAMPLES)(tasks.tasks)
verb(app, "finetune", loads_models=True, examples=finetune.EXAMPLES)(finetune.finetune)
verb(app, "evaluate", loads_models=True, examples=evaluate.EXAMPLES)(evaluate.evaluate)
verb(app, "predict", loads_models=True, examples=predict.EXAMPLES)(predict.predict)
verb(app, "prompt", loads_models=True, examples=prompt.EXAMPLES)(prompt.prompt)
verb(app, "generate", loads_models=True, examples=generate.EXAMPLES)(generate.generate)
verb(app, "fill", loads_models=True, examples=fill.EXAMPLES)(fill.fill)
verb(app, "embed", loads_models=True, examples=embed.EXAMPLES)(embed.embed)
verb(app, "search", loads_models=True, examples=search.EXAMPLES)(search.search)
verb(app, "export", loads_models=True, examples=export.EXAMPLES)(export.export)


def main() -> None:
    """Run the `firth` command."""
    app(prog_name="firth")
