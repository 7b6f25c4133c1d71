"""What people see of tasks in a terminal: tables of figures, highlighted answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.terminal import COLOURS, new_table

if TYPE_CHECKING:  # these need torch
    from firth.evaluation import Evaluation, Predictions
    from firth.finetuning import Tuned
    from firth.sweep import Sweep, Trial
    from firth.tasks.bootstrap import Figure

SHOWN = 20  # answers on a screen
AROUND = 60  # characters on each side of an answer


def tasks(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every task with its files, metric and recipes."""
    found = new_table("task", "what it is", "files", "chosen by", "recipes")
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
    shown = new_table(
        *(made.kind, made.metric, "95 % interval", "trained", "share", "MiB", "seconds", "size")
    )
    for trial in made.trials:
        shown.add_row(*_trial(trial, made.metric), style="bold" if trial.name == made.best else "")
    means = "  ".join(f"{name} {m:.4f} ± {d:.4f}" for name, (m, d) in made.mean().items())
    last = f"The best is {made.best}; everything is in {out}."
    return [shown, *([means] if made.kind == "seeds" else []), *made.notes, last]


def _trial(trial: Trial, metric: str) -> list[str]:
    if trial.tuned is None:
        return [trial.name, "–", trial.why, "", "", "", "", ""]
    own, figure = trial.tuned, trial.tuned.figures[metric]
    return [
        trial.name,
        f"{figure.value:.4f}",
        f"{figure.low:.4f} to {figure.high:.4f}",
        f"{own.trained:,}",
        f"{own.values()['share']:.2%}",
        f"{own.memory / 2**20:,.0f}",
        f"{own.seconds:.0f}",
        f"{own.size / 2**20:,.2f} MiB",
    ]


def predictions(found: Predictions, out: Path | None) -> list[RenderableType]:
    """The first answers, each as its task is best seen."""
    if out is not None:
        return [f"{len(found.answers):,} answers are in {out}.", *found.notes]
    show = {"tag": _tagged, "span": _answered, "seq2seq": _written, "choice": _chosen}
    draw = show.get(found.task, _labelled)
    pairs = list(zip(found.examples, found.answers, strict=True))
    lines: list[RenderableType] = [draw(example, answer) for example, answer in pairs[:SHOWN]]
    if len(pairs) > SHOWN:
        lines.append(f"… and {len(pairs) - SHOWN:,} more: --json or --out FILE gives all of them.")
    return [*lines, *found.notes]


def _labelled(example: Any, answer: Mapping[str, Any]) -> Text:
    if "label" in answer:
        said = f"{answer['label']} {answer['score']:.0%}"
    elif "labels" in answer:
        said = ", ".join(answer["labels"]) or "–"
    elif "number" in answer:
        said = f"{answer['number']:.3f}"
    else:
        said = f"perplexity {answer['perplexity']:.2f}"
    line = Text(f"{said:>16}  ", "bold")
    return line.append(" | ".join(example.inputs), "not bold")


def _chosen(example: Any, answer: Mapping[str, Any]) -> Text:
    line = Text(f"{example.text} ", "not bold")
    return line.append(answer["text"], "bold " + COLOURS[0])


def _written(example: Any, answer: Mapping[str, Any]) -> Text:
    return Text(example.source, "dim").append("\n  " + answer["text"], "not dim bold")


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
        line.append(f" {entity['text']} ", COLOURS[types.index(entity["type"]) % len(COLOURS)])
        line.append(f"{entity['type']} ", "dim")
        at = entity["end"]
    return line.append(" ".join(answer["words"][at:]))


def _answered(example: Any, answer: Mapping[str, Any]) -> Text:
    """A question, and its answer where it stands in the text."""
    line = Text(f"{example.question}\n  ", "bold")
    if not answer["answer"]:
        return line.append("(the text has no answer)", "not bold dim")
    begin, end = answer["begin"], answer["end"]
    left = max(0, begin - AROUND)
    line.append(("…" if left else "") + example.context[left:begin], "not bold")
    line.append(answer["answer"], COLOURS[2])
    right = example.context[end : end + AROUND]
    return line.append(right + ("…" if end + AROUND < len(example.context) else ""), "not bold")
