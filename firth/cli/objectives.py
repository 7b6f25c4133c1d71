"""`firth objectives`: list the pre-training objectives, or show their inputs and targets."""

from dataclasses import asdict

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth objectives",
    'firth objectives --text "The quick brown fox jumps"',
    'firth objectives --text "The weather is nice. Let us go for a walk." --objective masked-nsp',
    "firth objectives --data runs/shards --objective masked --objective span-corruption",
)


def objectives(
    text: str | None = options.DataOption(
        None, "--text", metavar="TEXT", help="Show every objective on this text. Default: none."
    ),
    tokenizer: str | None = options.ModelOption(
        None,
        metavar="MODEL",
        help="The model or tokenizer that splits --text into tokens. words: "
        "every word is one token. Default: stories-encoder, or words for a text with characters "
        "that it lacks.",
    ),
    mask_prob: float | None = options.DataOption(
        None,
        metavar="FRACTION",
        help="Fraction of tokens to mask, or to remove in denoising objectives. Default: "
        "that of the objective, usually 0.15.",
    ),
    data: str | None = options.DataOption(
        None,
        metavar="PATH",
        help="Shards of `firth prepare`, to show examples of their text. Default: none.",
    ),
    objective: list[str] | None = options.DataOption(
        None, metavar="NAME", help="Show only this objective; repeatable. Default: all."
    ),
    length: int | None = options.DataOption(
        None, min=1, help="Sequence length in tokens, with --data. Default: 32."
    ),
    seed: int = options.DataOption(0, help="Random seed: another one hides other tokens."),
) -> Output:
    """List the pre-training objectives; with --text or --data, show inputs and targets of each."""
    from firth.cli.views import objectives as view
    from firth.data.shards import Shards
    from firth.jobs.objective_examples import show_objectives
    from firth.objectives.registry import OBJECTIVES

    if data is not None and text is not None:
        raise UsageError("Give --text or --data, not both.")
    if data is None and text is None:
        if objective or tokenizer or mask_prob is not None or length is not None:
            raise UsageError("These options are for examples: add --text TEXT or --data SHARDS.")
        rows = [
            {"objective": name, "about": row.about, "source": row.source}
            | {"architectures": row.architectures}
            for name, row in OBJECTIVES.items()
        ]
        return Output({"objectives": rows}, [view.objective_table()])
    source = Shards(data) if data is not None else options.terminal_text(text or "")
    examples, reasons = show_objectives(
        source,
        objective or (),
        tokenizer=tokenizer,
        mask_prob=mask_prob,
        length=length,
        seed=seed,
    )
    values = {"examples": [asdict(example) for example in examples], "missing": reasons}
    return Output(values, view.objectives(examples, reasons))
