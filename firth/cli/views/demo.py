"""Terminal output of `demo`: the results, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import heading, new_table
from firth.cli.views.data import prepared
from firth.cli.views.objectives import objectives
from firth.cli.views.predictions import predictions
from firth.cli.views.tokenizers import tokenizers
from firth.training.run_directory import read_metrics

if TYPE_CHECKING:  # these need torch
    from firth.demo.adaptation_demo import AdaptationResult, AdaptationRun
    from firth.demo.pretraining_demo import DemoResult, RestoredText
    from firth.inference.infilling.fill_methods import FillCandidate


def demo(result: DemoResult) -> list[RenderableType]:
    """Show the results of the demo, section by section."""
    from firth.demo.pretraining_demo import PROMPT, TEXTS

    stories = result.stories
    size = f"{stories.stories:,} stories, {stories.words:,} words, {stories.vocabulary:,} different"
    return [
        heading("The corpus"),
        f"{size}, in {result.out / 'stories'}. The first one:\n",
        Text(result.opening, "italic"),
        heading("Two tokenizers trained on it"),
        *tokenizers(result.tokenizers, TEXTS),
        heading("Token shards"),
        *prepared(result.prepared),
        heading("Pre-training objectives: inputs and targets"),
        *objectives(result.objectives, {}),
        f"\nThe attention masks of the three architectures are drawn in {result.picture}.",
        heading("Pre-training three architectures"),
        _pretrained(result),
        f"The loss curves are in {result.curves}.",
        heading("The encoder predicts masked words"),
        _fills(result.fills),
        heading("The decoder continues a prompt"),
        Text(PROMPT, "bold").append(" ").append(result.continuation, "italic green"),
        heading("The encoder-decoder restores spans removed from a validation story"),
        _passage(result.passage, result.restored),
        *_adapted(result.adapted),
    ]


def _adapted(result: AdaptationResult) -> list[RenderableType]:
    """Show the encoder fine-tuned for three tasks."""
    columns = ("sentiment", "labels", "accuracy", "95 % interval", "seconds")
    return [
        heading("Fine-tuning the encoder: sentiment"),
        new_table(*columns, rows=[(run.name, *_cells(run)) for run in result.sentiment]),
        *predictions(result.opinions),
        heading("Fine-tuning the encoder: named entities"),
        _summary("entity F1", result.entities),
        *predictions(result.named),
        heading("Fine-tuning the encoder: question answering"),
        _summary("F1", result.questions),
        *predictions(result.answered),
    ]


def _cells(run: AdaptationRun) -> list[str]:
    metric = run.metric
    return [f"{run.labels:,}", f"{metric.value:.4f}", metric.interval, f"{run.seconds:.0f}"]


def _summary(metric: str, run: AdaptationRun) -> str:
    labels, value, interval, seconds = _cells(run)
    return f"{metric} {value} ({interval}) after {labels} examples and {seconds} s.\n"


def _pretrained(result: DemoResult) -> Table:
    """Show one row for each pre-trained model."""
    table = new_table("model", "parameters", "tokens", "tokens/s", "first loss", "validation loss")
    for name, run in result.trained.items():
        first = next(line for line in read_metrics(run.path) if line["kind"] == "step")
        table.add_row(
            name,
            f"{run.model.num_parameters:,}",
            f"{run.tokens:,}",
            f"{run.tokens / max(run.seconds, 1e-9):,.0f}",
            f"{first['loss']:.2f}",
            f"{run.loss:.2f}",
        )
    return table


def _fills(fills: Mapping[str, Sequence[FillCandidate]]) -> Table:
    """Show sentences with a masked word, and the most probable words."""
    table = new_table("sentence", "most probable words", left=(0, 1))
    for text, candidates in fills.items():
        words = Text()
        for i, candidate in enumerate(candidates):
            words.append(f"{candidate.token} ", "bold green" if i == 0 else "")
            words.append(f"{candidate.score:.0%}  ", "dim")
        table.add_row(text, words)
    return table


def _passage(passage: RestoredText, restored: float) -> Text:
    """Show restored spans: correct ones in green, others in red with the original."""
    text = Text()
    for was, now in passage.pieces:
        if now is None:
            text.append(f"{was} ")
        elif now == was:
            text.append(now, "bold green").append(" ")
        else:
            text.append(now or "…", "bold red").append(f" ({was}) ", "dim")
    accuracy = (
        f"{passage.right:.0%} of the removed words here, {restored:.0%} of the removed tokens"
    )
    return text.append(f"\nCorrect: {accuracy} of all validation stories.", "dim")
