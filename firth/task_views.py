"""What people see of tasks in a terminal: tables of figures, highlighted answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.terminal import COLOURS, new_table

if TYPE_CHECKING:  # these need torch
    from firth.evaluation import Evaluation, Predictions
    from firth.finetuning import Tuned
    from firth.metrics.bootstrap import Figure
    from firth.sweep import Sweep

SHOWN = 20  # answers on a screen
AROUND = 60  # characters on each side of an answer
LONGEST = 300  # characters of a text


def tasks(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every task with its files, metric and recipes."""
    found = new_table("task", "what it is", "files", "chosen by", "recipes")
    found.box = box.SIMPLE_HEAD
    for column in found.columns:
        column.justify = "left"
    for row in rows:
        words = (row["task"], row["about"], row["files"], row["metric"], ", ".join(row["recipes"]))
        found.add_row(*words)
    return found


def figures(found: Mapping[str, Figure]) -> Table:
    """Figures with their intervals."""
    shown = new_table("figure", "value", "95 % interval")
    for name, figure in found.items():
        shown.add_row(name, f"{figure.value:.4f}", f"{figure.low:.4f} to {figure.high:.4f}")
    return shown


def tuned(made: Tuned) -> list[RenderableType]:
    """A finished run."""
    values = made.values()
    about = (
        f"{values['trained']:,} of {values['parameters']:,} parameters were trained "
        f"({values['share']:.2%}) by {made.job.strategy}, in {made.seconds:.0f} s and "
        f"{made.steps:,} steps, with at most {made.memory / 2**20:,.0f} MiB."
    )
    learned, checked = made.examples
    return [
        figures(made.figures),
        f"Learned from {learned:,} examples; the figures are of {checked:,} others.",
        about,
        f"The model is in {made.path} ({made.family}); `firth predict {made.path} --data FILE` "
        "asks it.",
    ]


def evaluation(found: Evaluation) -> list[RenderableType]:
    """What a model's answers are worth."""
    parts: list[RenderableType] = []
    if found.parts:
        by_type = new_table("type", "precision", "recall", "f1", "95 % interval")
        for name, row in found.parts.items():
            f1 = row["f1"]
            cells = [f"{row[key].value:.4f}" for key in ("precision", "recall", "f1")]
            by_type.add_row(name, *cells, f"{f1.low:.4f} to {f1.high:.4f}")
        parts = [by_type]
    said = f"{found.n:,} examples in {found.seconds:.1f} s."
    return [figures(found.figures), *parts, said, *found.notes]


def sweep(made: Sweep, out: Path) -> list[RenderableType]:
    """Several runs side by side, and what they say together."""
    rest = () if made.kind == "search" else ("trained", "share", "RAM", "disk")
    shown = new_table(made.kind, made.metric, "interval", "s", *rest)
    shown.box = box.SIMPLE_HEAD
    for trial, own in made.done:
        style = "bold" if trial.name == made.best else ""
        shown.add_row(*_trial(trial.name, own, made.metric)[: len(shown.columns)], style=style)
    failed = [f"{trial.name}: {trial.why}" for trial in made.trials if trial.tuned is None]
    means = new_table("figure", "mean", "deviation")
    for name, (mean, deviation) in made.mean().items():
        means.add_row(name, f"{mean:.4f}", f"± {deviation:.4f}")
    units = "RAM and disk are in MiB. " if rest else ""
    last = f"{units}The best is {made.best}; everything is in {out}."
    return [shown, *([means] if made.kind == "seeds" else []), *failed, *made.notes, last]


def _trial(name: str, own: Tuned, metric: str) -> list[str]:
    figure = own.figures[metric]
    return [
        name,
        f"{figure.value:.4f}",
        f"{figure.low:.2f}–{figure.high:.2f}",
        f"{own.seconds:.0f}",
        f"{own.trained:,}",
        f"{own.values()['share']:.1%}",
        f"{own.memory / 2**20:,.0f}",
        f"{own.size / 2**20:,.2f}",
    ]


def predictions(found: Predictions, out: Path | None) -> list[RenderableType]:
    """The first answers, each as its task is best seen."""
    if out is not None:
        return [f"{len(found.answers):,} answers are in {out}.", *found.notes]
    show = {"tag": _tagged, "span": _answered, "seq2seq": _written, "choice": _chosen}
    draw = show.get(found.task)
    pairs = list(zip(found.examples, found.answers, strict=True))
    lines: list[RenderableType] = ["There are no examples."] if not pairs else []
    if draw is None:
        lines.append(_labelled(pairs[:SHOWN]))
    else:
        lines += [draw(example, answer) for example, answer in pairs[:SHOWN]]
    if len(pairs) > SHOWN:
        lines.append(f"… and {len(pairs) - SHOWN:,} more: --json or --out FILE gives all of them.")
    return [*lines, *found.notes]


def _labelled(pairs: Sequence[tuple[Any, Mapping[str, Any]]]) -> Table:
    """What is said of each text, beside the text."""
    shown = Table.grid(padding=(0, 2))
    shown.add_column(justify="right", style="bold")
    shown.add_column()
    for example, answer in pairs:
        texts = (Text(_shortened(text)) for text in example.inputs)
        shown.add_row(_said(answer), Text(" | ", "dim").join(texts))
    return shown


def _said(answer: Mapping[str, Any]) -> Text:
    if "label" in answer:
        return Text(f"{answer['label']} {answer['score']:.0%}")
    if "labels" in answer:
        return Text(", ".join(answer["labels"]) or "–")
    if "number" in answer:
        return Text(f"{answer['number']:.3f}")
    return Text(f"perplexity {answer['perplexity']:.2f}")


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
