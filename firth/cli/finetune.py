"""`firth finetune`: fine-tune a model on labelled examples of a task."""

from pathlib import Path
from typing import Annotated, Any

from firth.cli.options import (
    Columns,
    DataOption,
    Device,
    Limit,
    ModelArgument,
    ModelOption,
    OutputOption,
    Resume,
    Settings,
    TrainingOption,
    column_names,
    overrides,
)
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth finetune bert-base-uncased --task classify --train train.tsv --dev dev.tsv "
    "--out runs/sentiment --lr 2e-5 --epochs 3",
    "firth finetune runs/encoder --task tag --train train.conll --out runs/entities "
    "--strategy lora:rank=8",
)


def finetune(
    model: ModelArgument,
    task: Annotated[
        str, DataOption(help="classify, tag, span, seq2seq, …; `firth tasks` lists them.")
    ],
    train: Annotated[Path, DataOption(help="File of training examples.")],
    out: Annotated[Path, OutputOption(help="Run directory to write.")],
    dev: Annotated[
        Path | None,
        DataOption(
            help="File of examples to select the best checkpoint on. Default: held out of --train."
        ),
    ] = None,
    decoder: Annotated[
        str | None,
        ModelOption(
            metavar="MODEL", help="Decoder to join to an encoder, for seq2seq. Default: none."
        ),
    ] = None,
    strategy: Annotated[
        str,
        ModelOption(
            help="What to train: full, freeze:N, probe, probe-then-full, gradual, lora, adapters, "
            "prefix, prompt, bitfit or ia3, with options as in lora:rank=16. Several in quotes, "
            "or all, are compared. Default: the recipe's."
        ),
    ] = "",
    recipe: Annotated[
        str | None,
        TrainingOption(help="Named defaults; `firth tasks` lists them. Default: the task's first."),
    ] = None,
    learning_rate: Annotated[
        float | None, TrainingOption("--lr", help="Peak learning rate. Default: the recipe's.")
    ] = None,
    epochs: Annotated[
        float | None,
        TrainingOption(help="Passes over the training set. Default: the recipe's."),
    ] = None,
    batch_size: Annotated[
        int | None,
        TrainingOption(min=1, help="Examples per optimizer step. Default: the recipe's."),
    ] = None,
    max_length: Annotated[
        int | None,
        TrainingOption(min=1, help="Maximum sequence length in tokens. Default: the recipe's."),
    ] = None,
    warmup: Annotated[
        float | None,
        TrainingOption(
            help="Warm-up: a fraction of the run (below 1) or steps. Default: the recipe's."
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, TrainingOption(help="Decoupled weight decay. Default: the recipe's.")
    ] = None,
    precision: Annotated[
        str | None,
        TrainingOption(help="fp32, bf16, fp16 or auto. Default: auto, the fastest on the device."),
    ] = None,
    limit: Limit = 0,
    seed: Annotated[int, TrainingOption(help="Random seed.")] = 0,
    seeds: Annotated[
        int, TrainingOption(min=1, help="Number of runs with different seeds; reports mean ± std.")
    ] = 1,
    search: Annotated[
        bool,
        TrainingOption(
            "--search", help="Grid search over learning rate, batch size and frozen layers."
        ),
    ] = False,
    minutes: Annotated[
        float,
        TrainingOption(min=0, help="With --search: start no run after this time; 0: no limit."),
    ] = 0.0,
    balance: Annotated[
        bool, TrainingOption("--balance", help="Weight the loss by inverse label frequency.")
    ] = False,
    augment: Annotated[
        str,
        DataOption(help="Data augmentation: dropout, swap, masked; or swap,masked. Default: none."),
    ] = "",
    replay: Annotated[
        Path | None,
        DataOption(help="Text to keep pre-training on, against forgetting. Default: none."),
    ] = None,
    scratch: Annotated[
        bool,
        ModelOption("--scratch", help="Start from random weights, as a baseline."),
    ] = False,
    column: Columns = None,
    set_: Settings = None,
    resume: Resume = False,
    device: Device = None,
) -> Output:
    """Fine-tune a model on labelled examples of a task.

    Any other field of the config is set with --set: schedule=cosine, head.layers=2, task.prefix=….
    """
    from firth.cli import terminal
    from firth.cli.views import tasks as view
    from firth.jobs import sweep
    from firth.jobs.finetuning import finetune
    from firth.jobs.run_options import merge_options

    several = strategy.split()
    sweeps = (seeds > 1, search, len(several) > 1 or several == ["all"])
    if sum(sweeps) > 1:
        raise UsageError("Use one of --seeds, --search and several strategies, not two of them.")
    if resume and any(sweeps):
        raise UsageError("--resume continues one run; several runs need an empty directory.")
    if search and strategy:
        raise UsageError("--search chooses between full and freeze itself: omit --strategy.")
    if minutes and not search:
        raise UsageError("--minutes is for --search; for one run use --set minutes=N.")
    fields = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "max_length": max_length,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "precision": precision,
    }
    options: dict[str, Any] = {
        "model": model,
        "decoder": decoder,
        "task": task,
        "train": train,
        "dev": dev,
        "recipe": recipe,
        "limit": limit,
        "seed": seed,
        "overrides": merge_options(overrides(set_), fields),
        "columns": column_names(column),
        "balance": balance,
        "augment": augment,
        "replay": replay,
        "scratch": scratch,
        "device": device,
    }
    swept: sweep.SweepResult | None = None
    with terminal.training() as callback:
        options["callback"] = callback
        if search:
            swept = sweep.search(out, minutes=minutes, **options)
        elif seeds > 1:
            swept = sweep.seeds(seeds, out, strategy=strategy, **options)
        elif any(sweeps):
            swept = sweep.strategies(several, out, **options)
        else:
            result = finetune(out=out, strategy=strategy, resume=resume, **options)
    if swept is not None:
        return Output(swept.values(), view.sweep(swept, out))
    return Output(result.values(), view.finetuned(result))
