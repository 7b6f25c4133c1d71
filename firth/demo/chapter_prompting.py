"""Chapter: prompting, where a few examples in the input replace training."""

from __future__ import annotations

from typing import Any

from firth.demo.chapter_labels import interval
from firth.demo.workspace import DECODER, Findings, Workspace, command
from firth.inference.prompting.templates import BLANK
from firth.jobs.prompting import PromptResult, prompt
from firth.metrics.bootstrap import to_json
from firth.utils.figures import Bar, BarChart, Figure, MarkedText, Paragraph, Piece

SHOTS = (0, 2, 4)
TEMPLATE = "{text} I thought it was {label}."
LABELS = "negative=dull,positive=lovely"


def few_examples(workspace: Workspace) -> Findings:
    """Classify reviews with a decoder and no, two or four examples in its prompt."""
    folder = workspace.folder / "sentiment"
    shared: dict[str, Any] = {
        "task": "classify",
        "data": folder / "test.tsv",
        "limit": workspace.budget.prompted,
        "template": TEMPLATE,
        "labels": LABELS,
        "seed": workspace.seed,
    }
    runs: dict[int, PromptResult] = {}
    for shots in SHOTS:
        options = shared | ({"examples": folder / "train.tsv", "shots": shots} if shots else {})
        workspace.progress("prompting", len(runs), len(SHOTS))
        runs[shots] = prompt(workspace.model(DECODER), **options)
    workspace.progress("prompting", len(SHOTS), len(SHOTS))
    values = {
        "labels": LABELS,
        "rows": [
            {"shots": shots, "accuracy": to_json(run.metrics["accuracy"]), "guess": run.guess}
            for shots, run in runs.items()
        ],
    }
    figures: list[Figure] = [_prompt(runs[SHOTS[1]]), _chart(runs), _verdict(runs)]
    return Findings(figures, values, [command("prompt", DECODER, **options, show=True)])


def _prompt(run: PromptResult) -> MarkedText:
    before, _, after = run.prompt.rpartition(BLANK)
    return MarkedText(
        f"A prompt with {SHOTS[1]} examples",
        (Piece(before), Piece("___", "hidden"), Piece(after)),
        "The model says which word it expects in the gap: dull (negative) or lovely (positive).",
    )


def _chart(runs: dict[int, PromptResult]) -> BarChart:
    bars = []
    for shots, run in runs.items():
        found = run.metrics["accuracy"]
        bars.append(Bar(f"{shots} examples", found.value, found.low, found.high))
    guess = runs[0].guess or 0.0
    return BarChart(
        "Accuracy without any training",
        (*bars, Bar("always the same answer", guess)),
        caption=f"On {runs[0].n} unseen reviews; lines and ranges are 95 % intervals.",
    )


def _verdict(runs: dict[int, PromptResult]) -> Paragraph:
    """Say whether the model with most examples is better than guessing."""
    shots, guess = SHOTS[-1], runs[0].guess or 0.0
    found = runs[shots].metrics["accuracy"]
    size = f"{found.value:.0%} right (95 % interval {interval(found)}), guessing: {guess:.0%}"
    if found.low is not None and found.low > guess:
        return Paragraph(f"With {shots} examples and no training: {size}.")
    return Paragraph(
        f"This run does not show the lesson: with {shots} examples {size}. Prompting works best "
        "with models that are thousands of times larger than this one.",
        warning=True,
    )
