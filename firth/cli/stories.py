"""`firth stories`: write the built-in corpus."""

from dataclasses import asdict
from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth stories runs/stories", "firth stories runs/stories --words 200000 --seed 100")


def stories(
    out: Path = options.Argument(..., metavar="OUT", help="Directory to write."),
    words: int = options.DataOption(
        1_000_000, min=1, help="Approximate size of the corpus in words."
    ),
    seed: int = options.DataOption(
        0, help="Random seed; 1 to 48 are the pre-training text of the embedded models."
    ),
    overwrite: bool = options.OVERWRITE,
) -> Output:
    """Write the built-in corpus: English stories, and labelled examples for each task."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.data.stories import write_stories

    with terminal.progress() as progress:
        summary = write_stories(out, words=words, seed=seed, overwrite=overwrite, progress=progress)
    return Output(asdict(summary), view.stories(summary))
