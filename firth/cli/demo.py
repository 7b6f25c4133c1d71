"""`firth demo`: the field's main ideas on small models, chapter by chapter."""

from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth demo", "firth demo --quick", "firth demo --chapter 5 --out runs/demo")


def demo(
    chapter: int = options.DataOption(
        0, min=0, help="Run only this chapter, and what it needs; 0: all chapters."
    ),
    quick: bool = options.TrainingOption(
        False, "--quick", help="Smaller budgets: about one minute on two cores."
    ),
    seed: int = options.TrainingOption(0, help="Random seed."),
    out: Path = options.OutputOption(
        Path("firth-demo"), help="Directory for the results and the page index.html."
    ),
) -> Output:
    """Show pre-training and adaptation on small models, chapter by chapter, and write a page."""
    from firth.cli.views import demo as view
    from firth.demo.chapters import prepare_demo

    made = prepare_demo(out, chapter=chapter, quick=quick, seed=seed)
    values = {"out": str(out), "page": str(made.page), "chapters": view.values(made)}
    return Output(values, view.demo(made))
