"""The `firth` command, assembled from one file per verb.

A verb takes its options, calls the Python function of the same name and returns an `Output`.
Results go to stdout, progress and errors to stderr. Heavy imports stay inside functions, so that
`firth --help` is fast.
"""

from importlib import import_module

import typer

import firth
from firth.cli import tokenizer
from firth.cli.verbs import CommandGroup, verb

VERBS = (
    "demo stories tokenizer prepare objectives presets pretrain tasks finetune evaluate predict "
)
VERBS += "prompt generate fill embed search inspect report study serve export"
TRAINING = ("pretrain", "finetune")
DIVIDING = ("evaluate", "predict", "embed")  # their inputs among the processes of torchrun
WITHOUT_MODELS = ("demo", "stories", "presets", "tasks", "report")

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
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
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Pre-train, fine-tune, evaluate and use language models."""


verb(tokenizer_app, "train", examples=tokenizer.TRAIN_EXAMPLES)(tokenizer.train)
verb(tokenizer_app, "show", examples=tokenizer.SHOW_EXAMPLES)(tokenizer.show)
for name in VERBS.split():
    if name == "tokenizer":
        app.add_typer(tokenizer_app, name=name)
        continue
    module = import_module(f"firth.cli.{name}")
    add = verb(
        app,
        name,
        loads_models=name not in WITHOUT_MODELS,
        divides_inputs=name in DIVIDING,
        trains=name in TRAINING,
        examples=module.EXAMPLES,
    )
    add(getattr(module, name))


def main() -> None:
    """Run the `firth` command."""
    app(prog_name="firth")
