"""What people see of a model's answers: on a terminal as each task is best seen, else as lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from firth.commands.terminal import COLOURS
from firth.commands.verbs import Line

if TYPE_CHECKING:  # these need torch
    from firth.prediction import Predicted, Predicting, Predictions

AROUND = 60  # characters on each side of an answer
LONGEST = 300  # characters of a text


def predictions(found: Predictions) -> list[RenderableType]:
    """Answers, each as its task is best seen."""
    draw = DRAWN.get(found.task, _labelled)
    pairs = zip(found.examples, found.answers, strict=True)
    return [*(draw(example, answer) for example, answer in pairs), *found.notes]


def answers(stream: Predicting, found: Iterable[Predicted]) -> Iterator[RenderableType]:
    """Answers as they come; for another program, a line for each: the answer, a tab, the text.

    A row that is bad is an empty line there, so that lines stay beside each other.
    """
    people = sys.stdout.isatty()
    draw = DRAWN.get(stream.task.name, _labelled) if people else _line
    for example, answer in found:
        if example is not None:
            yield draw(example, answer)
        elif not people:
            yield Line()
    notes = stream.notes if stream.done else ["There are no examples."]
    if people:
        yield from notes
    else:
        sys.stderr.writelines(f"{note}\n" for note in notes)


def _line(example: Any, answer: Mapping[str, Any]) -> Line:
    """An answer, how sure it is, and what it is about, with tabs between them."""
    said = next(answer[name] for name in SAID if name in answer)
    parts = [" ".join(said) if isinstance(said, list) else str(said)]
    parts += [f"{answer['score']:.4f}"] if "score" in answer else []
    parts += [" ".join(answer["words"])] if "words" in answer else example.inputs
    return Line("\t".join(" ".join(part.split()) for part in parts))


def _labelled(example: Any, answer: Mapping[str, Any]) -> Text:
    """What is said of a text, beside the text."""
    line = Text(f"{_said(answer)}  ", "bold")
    for number, text in enumerate(example.inputs):
        line.append(" | " if number else "", "not bold dim").append(_shortened(text), "not bold")
    return line


def _said(answer: Mapping[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label']} {answer['score']:.0%}"
    if "labels" in answer:
        return ", ".join(answer["labels"]) or "–"
    if "number" in answer:
        return f"{answer['number']:.3f}"
    return f"perplexity {answer['perplexity']:.2f}"


def _shortened(text: str) -> str:
    """A text that fits on a few lines."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + "…"


def _chosen(example: Any, answer: Mapping[str, Any]) -> Text:
    line = Text(_shortened(example.text) + " → ")
    line.append(answer["text"], "bold " + COLOURS[0])
    return line.append(f" {max(answer['scores']):.0%}", "dim")


def _written(example: Any, answer: Mapping[str, Any]) -> Text:
    return Text(_shortened(example.source), "dim").append("\n  → " + answer["text"], "not dim bold")


def _tagged(example: Any, answer: Mapping[str, Any]) -> Text:
    """A sentence with its entities in colour, or with a tag behind every word."""
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
    """A question, and its answer where it stands in the text."""
    line = Text(f"{example.question}\n  ", "bold")
    if not answer["answer"]:
        return line.append("(the text has no answer)", "not bold dim")
    begin, end, text = answer["begin"], answer["end"], re.sub(r"\s", " ", example.context)
    left, right = max(0, begin - AROUND), min(len(text), end + AROUND)
    line.append(("…" if left else "") + text[left:begin], "not bold")
    line.append("[", "not bold dim").append(text[begin:end], COLOURS[2]).append("]", "not bold dim")
    return line.append(text[end:right] + ("…" if right < len(text) else ""), "not bold")


DRAWN = {"tag": _tagged, "span": _answered, "seq2seq": _written, "choice": _chosen}
# What an answer is, in short.
SAID = ("label", "labels", "tags", "number", "answer", "text", "perplexity")
