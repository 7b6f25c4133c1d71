"""Terminal output of `predict`: highlighted text in a terminal, tab-separated lines in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from firth.cli.terminal import COLOURS
from firth.cli.verbs import OutputLine

if TYPE_CHECKING:  # these need torch
    from firth.jobs.prediction import PredictedRow, PredictionResult, PredictionStream

CONTEXT_CHARACTERS = 60  # on each side of an answer
MAX_CHARACTERS = 300  # of a text


def predictions(found: PredictionResult) -> list[RenderableType]:
    """Show predictions in the form of their task."""
    render = RENDERERS.get(found.task, _labelled)
    pairs = zip(found.examples, found.answers, strict=True)
    shown = (render(example, answer) for example, answer in pairs if answer is not None)
    return [*shown, *found.notes]


def stream_predictions(
    stream: PredictionStream, found: Iterable[PredictedRow]
) -> Iterator[RenderableType]:
    """Show predictions as they come; in a pipe, one line each: prediction, score, text.

    There a bad row is an empty line, so that line numbers match those of the input.
    """
    interactive = sys.stdout.isatty()
    render = RENDERERS.get(stream.task.name, _labelled) if interactive else _line
    for example, answer in found:
        if answer is not None:
            yield render(example, answer)
        elif not interactive:
            yield OutputLine()
    notes = stream.notes if stream.done else ["There are no examples."]
    if interactive:
        yield from notes
    else:
        sys.stderr.writelines(f"{note}\n" for note in notes)


def _line(example: Any, answer: Mapping[str, Any]) -> OutputLine:
    """Join a prediction, its score and its text with tabs."""
    value = next(answer[name] for name in VALUE_FIELDS if name in answer)
    parts = [" ".join(value) if isinstance(value, list) else str(value)]
    parts += [f"{answer['score']:.4f}"] if "score" in answer else []
    parts += [" ".join(answer["words"])] if "words" in answer else example.inputs
    return OutputLine("\t".join(" ".join(part.split()) for part in parts))


def _labelled(example: Any, answer: Mapping[str, Any]) -> Text:
    """Show a label, or a number, before its text."""
    line = Text(f"{_label(answer)}  ", "bold")
    for number, text in enumerate(example.inputs):
        line.append(" | " if number else "", "not bold dim").append(_shortened(text), "not bold")
    return line


def _label(answer: Mapping[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label']} {answer['score']:.0%}"
    if "labels" in answer:
        return ", ".join(answer["labels"]) or "–"
    if "number" in answer:
        return f"{answer['number']:.3f}"
    return f"perplexity {answer['perplexity']:.2f}"


def _shortened(text: str) -> str:
    """Truncate a text to a few lines."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS].rstrip() + "…"


def _chosen(example: Any, answer: Mapping[str, Any]) -> Text:
    line = Text(_shortened(example.text) + " → ")
    line.append(answer["text"], "bold " + COLOURS[0])
    return line.append(f" {max(answer['scores']):.0%}", "dim")


def _written(example: Any, answer: Mapping[str, Any]) -> Text:
    return Text(_shortened(example.source), "dim").append("\n  → " + answer["text"], "not dim bold")


def _tagged(example: Any, answer: Mapping[str, Any]) -> Text:
    """Highlight the entities of a sentence, or append its tag to every word."""
    line, at = Text(), 0
    found = answer.get("entities")
    if found is None:
        pairs = zip(answer["words"], answer["tags"], strict=True)
        for word, tag in pairs:
            line.append(word).append(f"/{tag} ", "dim")
        return line
    types = sorted({entity["type"] for entity in found})
    for entity in found:
        line.append(" ".join(answer["words"][at : entity["begin"]]) + " " * (entity["begin"] > at))
        line.append("[", "dim")
        line.append(entity["text"], COLOURS[types.index(entity["type"]) % len(COLOURS)])
        line.append(f" {entity['type']}] ", "dim")
        at = entity["end"]
    return line.append(" ".join(answer["words"][at:]))


def _answered(example: Any, answer: Mapping[str, Any]) -> Text:
    """Show a question, and its answer highlighted in the text."""
    line = Text(f"{example.question}\n  ", "bold")
    if not answer["answer"]:
        return line.append("(the text has no answer)", "not bold dim")
    begin, end, text = answer["begin"], answer["end"], re.sub(r"\s", " ", example.context)
    left, right = max(0, begin - CONTEXT_CHARACTERS), min(len(text), end + CONTEXT_CHARACTERS)
    line.append(("…" if left else "") + text[left:begin], "not bold")
    line.append("[", "not bold dim").append(text[begin:end], COLOURS[2]).append("]", "not bold dim")
    return line.append(text[end:right] + ("…" if right < len(text) else ""), "not bold")


def _replaced(example: Any, answer: Mapping[str, Any]) -> Text:
    """Highlight the tokens of a text that were replaced, each with its probability."""
    line, at = Text(), 0
    for token, score in zip(answer["tokens"], answer["scores"], strict=True):
        begin = example.text.find(token, at)
        line.append(example.text[at:begin])
        line.append(token, COLOURS[0] if score > 0.5 else "")
        line.append(f" {score:.0%}" if score > 0.5 else "", "dim")
        at = begin + len(token)
    return line.append(example.text[at:])


RENDERERS = {
    "tag": _tagged,
    "span": _answered,
    "seq2seq": _written,
    "choice": _chosen,
    "replaced": _replaced,
}
# The field with the value of a prediction, for each task.
VALUE_FIELDS = ("label", "labels", "tags", "replaced", "number", "answer", "text", "perplexity")
