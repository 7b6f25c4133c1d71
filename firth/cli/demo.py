"""`firth demo`: pre-train and fine-tune three small models on the built-in stories."""

from pathlib import Path
from typing import Annotated

from firth.cli.options import DataOption, OutputOption, TrainingOption
from firth.cli.verbs import Output

EXAMPLES = ("firth demo", "firth demo --minutes 1 --words 100000 --out runs/demo")


def demo(
    out: Annotated[Path, OutputOption(help="Directory for the results.")] = Path("firth-demo"),
    minutes: Annotated[
        float, TrainingOption(min=0.01, help="Pre-training time of the three models together.")
    ] = 3.6,
    words: Annotated[
        int, DataOption(min=1000, help="Approximate size of the corpus in words.")
    ] = 1_000_000,
    seed: Annotated[int, TrainingOption(help="Random seed.")] = 0,
) -> Output:
    """Pre-train an encoder, a decoder and an encoder-decoder, fine-tune one, show the results."""
    from firth.cli import terminal
    from firth.cli.views import demo as view
    from firth.demo.pretraining_demo import run_demo

    with terminal.progress(stages=True) as progress:
        result = run_demo(out, minutes=minutes, words=words, seed=seed, progress=progress)
    return Output(result.values(), view.demo(result))
