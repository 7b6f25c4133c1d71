"""`firth pretrain`: pre-train a language model, from scratch or from another model."""

from pathlib import Path
from typing import Annotated

from firth.cli.options import (
    DataOption,
    Device,
    ModelOption,
    OutputOption,
    Resume,
    Settings,
    TrainingOption,
    overrides,
)
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth pretrain --preset encoder-tiny --data runs/shards --out runs/encoder --tokens 10M "
    "--lr 1e-3 --mask-prob 0.3-0.15",
    "firth pretrain --from bert-base-uncased --data runs/shards --out runs/adapted --steps 1000 "
    "--max-length 128:0.9,512",
)
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def pretrain(
    data: Annotated[Path, DataOption(help="Directory of shards written by `firth prepare`.")],
    out: Annotated[Path, OutputOption(help="Run directory to write.")],
    preset: Annotated[
        str | None,
        ModelOption(help="Architecture; `firth presets` lists them. Default: that of --from."),
    ] = None,
    objective: Annotated[
        str | None,
        TrainingOption(
            help="Pre-training objective; `firth objectives` lists them. Default: the preset's."
        ),
    ] = None,
    steps: Annotated[
        int,
        TrainingOption(
            min=0,
            show_default=False,
            help="Training budget in optimizer steps; one budget is required.",
        ),
    ] = 0,
    tokens: Annotated[
        str,
        TrainingOption(show_default=False, help="Training budget in tokens, such as 10M or 1e7."),
    ] = "0",
    minutes: Annotated[
        float, TrainingOption(min=0, show_default=False, help="Training budget in minutes.")
    ] = 0.0,
    learning_rate: Annotated[
        float | None, TrainingOption("--lr", help="Peak learning rate. Default: the recipe's.")
    ] = None,
    batch_tokens: Annotated[
        str | None,
        TrainingOption(
            metavar="TOKENS",
            help="Tokens per optimizer step; may be a schedule, 8192:0.5,32768. Default: the "
            "recipe's.",
        ),
    ] = None,
    max_length: Annotated[
        str | None,
        TrainingOption(
            metavar="TOKENS",
            help="Maximum sequence length; may be a schedule: 64:0.8,256 is 64 for the first 80 % "
            "of the run, then 256. Default: the recipe's.",
        ),
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
    optimizer: Annotated[
        str | None, TrainingOption(help="adamw or muon. Default: the recipe's.")
    ] = None,
    precision: Annotated[
        str | None,
        TrainingOption(help="fp32, bf16, fp16 or auto. Default: auto, the fastest on the device."),
    ] = None,
    mask_prob: Annotated[
        str | None,
        TrainingOption(
            metavar="FRACTION",
            help="Fraction of tokens that masking objectives predict; may be a schedule: 0.3-0.15 "
            "falls linearly. Default: the recipe's, usually 0.15.",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        ModelOption("--from", metavar="MODEL", help="Model to continue from. Default: none."),
    ] = None,
    teacher: Annotated[
        str | None,
        ModelOption(metavar="MODEL", help="Larger model to distil from. Default: none."),
    ] = None,
    seed: Annotated[int, TrainingOption(help="Random seed.")] = 0,
    set_: Settings = None,
    resume: Resume = False,
    device: Device = None,
) -> Output:
    """Pre-train a language model, from scratch or from another model.

    Any other field of the config is set with --set: schedule=cosine, model.num_layers=6,
    objective.noise_density=0.3.
    """
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.jobs.pretraining import pretrain

    with terminal.training() as callback:
        result = pretrain(
            preset=preset,
            data=data,
            out=out,
            objective=objective,
            steps=steps,
            tokens=_parse_count(tokens),
            minutes=minutes,
            source=from_,
            teacher=teacher,
            seed=seed,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            max_length=max_length,
            warmup=warmup,
            weight_decay=weight_decay,
            optimizer=optimizer,
            precision=precision,
            mask_prob=mask_prob,
            overrides=overrides(set_),
            resume=resume,
            device=device,
            callback=callback,
        )
    return Output(result.values(), view.pretrained(result))


def _parse_count(text: str) -> int:
    """Parse a number of tokens.

    >>> _parse_count("10M"), _parse_count("1e7"), _parse_count("60k")
    (10000000, 10000000, 60000)
    """
    factor = SUFFIXES.get(text[-1:], 1)
    try:
        count = float(text[:-1] if factor > 1 else text) * factor
        if count < 0 or count != int(count):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--tokens is a number such as 5000000, 5M or 5e6, not {text!r}."
        ) from error
    return int(count)
