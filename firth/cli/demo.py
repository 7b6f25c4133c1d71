"""`firth demo`: pre-train and fine-tune three small models on the built-in stories."""

from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth demo", "firth demo --minutes 1 --words 100000 --out runs/demo")


def demo(
    words: int = options.DataOption(
        1_000_000, min=1000, help="Approximate size of the corpus in words."
    ),
    minutes: float = options.TrainingOption(
        3.6, min=0.01, help="Pre-training time of the three models together, in minutes."
    ),
    seed: int = options.TrainingOption(0, help="Random seed."),
    out: Path = options.OutputOption(Path("firth-demo"), help="Directory for the results."),
) -> Output:
    """Pre-train an encoder, a decoder and an encoder-decoder, fine-tune one, show the results."""
    from firth.cli import terminal
    from firth.cli.views import demo as view
    from firth.demo.pretraining_demo import run_demo

    with terminal.progress(stages=True) as progress:
        result = run_demo(out, minutes=minutes, words=words, seed=seed, progress=progress)
    return Output(result.values(), view.demo(result))
