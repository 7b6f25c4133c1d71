"""Chapters: the same encoder finds names, and answers questions about a text."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.data.sentences import sentence_starts
from firth.demo.chapter_labels import interval, once_evaluated
from firth.demo.workspace import Findings, Workspace, command
from firth.jobs.finetuning import FinetuneResult
from firth.jobs.prediction import PredictionResult, predict
from firth.metrics.bootstrap import Metric, to_json
from firth.utils.figures import Figure, KeyNumber, KeyNumbers, MarkedText, Piece

ENTITY_TYPES = {"PER": "person", "LOC": "place", "ORG": "organization", "MISC": "other name"}
COLOURS = dict(zip(ENTITY_TYPES, "abcd", strict=True))
SENTENCES = (
    "Zoe and Kenji took the train from Westport to Rome to hear the Paper Kites.",
    "On Monday Grace Hart sent a letter to the City Museum in Oslo.",
    "Simon found a wallet in front of the bank in Summerton and gave it back to Nora White.",
)
NUM_SHOWN = 3
PUNCTUATION = ".,;:!?"
NUM_AROUND = 1  # sentences on each side of an answer


def names(workspace: Workspace) -> Findings:
    """Fine-tune the encoder to tag names, and tag three new sentences."""
    folder = workspace.folder / "entities"
    options = {
        "task": "tag",
        "train": folder / "train.conll",
        "dev": folder / "test.conll",
        "limit": workspace.budget.sentences,
        "overrides": once_evaluated(workspace.budget.name_steps),
    }
    run = workspace.finetune("names", options)
    tagged = predict(run.model, list(SENTENCES)).answers
    meaning = f"F1 on {run.examples[1]} unseen sentences: 100 % if every name is found whole"
    figures: list[Figure] = [
        _facts(run, meaning, f"labelled sentences, with {_types(run)}"),
        *(_entities(answer) for answer in tagged if answer is not None),
    ]
    commands = [
        workspace.finetune_command("names", options),
        command("predict", workspace.out / "names", SENTENCES[0]),
    ]
    return Findings(figures, {**_values(run), "sentences": tagged}, commands)


def questions(workspace: Workspace) -> Findings:
    """Fine-tune the encoder to find the answer of a question in a text."""
    budget, folder = workspace.budget, workspace.folder / "questions"
    files = {"train": budget.questions, "test": budget.test_questions}
    train, few = (workspace.out / f"questions-{split}.json" for split in files)
    for split, count in files.items():
        _short_questions(folder / f"{split}.json", workspace.out / f"questions-{split}.json", count)
    options = {
        "task": "span",
        "train": train,
        "dev": few,
        "recipe": "qa",
        "overrides": once_evaluated(budget.question_steps),
    }
    run = workspace.finetune("questions", options)
    found = predict(run.model, data=few)
    meaning = f"F1 on {run.examples[1]} unseen questions: 100 % if the words of all answers agree"
    shown = _shown(found)
    figures: list[Figure] = [
        _facts(run, meaning, "questions with their answers, to learn from"),
        *(_answer(*pair) for pair in shown),
    ]
    commands = [
        workspace.finetune_command("questions", options),
        command("predict", workspace.out / "questions", data=few),
    ]
    return Findings(figures, {**_values(run), "answers": [one for _, one in shown]}, commands)


def _f1(run: FinetuneResult) -> Metric:
    """Return F1 as a fraction; that of question answering is in per cent, as in SQuAD."""
    score, scale = run.metrics["f1"], 100.0 if run.config.task == "span" else 1.0
    low, high = (None if end is None else end / scale for end in (score.low, score.high))
    return replace(score, value=score.value / scale, low=low, high=high)


def _facts(run: FinetuneResult, meaning: str, data: str) -> KeyNumbers:
    score = _f1(run)
    return KeyNumbers(
        (
            KeyNumber(f"{score.value:.0%}", f"{meaning} (95 % interval {interval(score)})"),
            KeyNumber(f"{run.examples[0]:,}", data),
            KeyNumber(f"{run.seconds:.0f} s", "of training, with the same pre-trained encoder"),
        )
    )


def _types(run: FinetuneResult) -> str:
    known = [
        name for name in ENTITY_TYPES if any(name in tag for tag in run.config.metadata.labels)
    ]
    return ", ".join(f"{ENTITY_TYPES[name]} ({name})" for name in known)


def _values(run: FinetuneResult) -> dict[str, Any]:
    return {
        "f1": to_json(_f1(run)),
        "train": run.examples[0],
        "test": run.examples[1],
        "seconds": run.seconds,
    }


def _entities(answer: Any) -> MarkedText:
    """Highlight the entities of a sentence."""
    pieces, at, words = [], 0, answer["words"]
    for entity in answer["entities"]:
        before = _joined(words[at : entity["begin"]])
        pieces.append(Piece(before if at else before.lstrip()))
        pieces.append(Piece(" " if at or entity["begin"] else ""))
        pieces.append(Piece(entity["text"], COLOURS.get(entity["type"], "a"), entity["type"]))
        at = entity["end"]
    return MarkedText("", (*pieces, Piece(_joined(words[at:]))))


def _joined(words: list[str]) -> str:
    """Join words, each with a space before it unless it is a punctuation mark.

    >>> _joined(["in", "Oslo", "."])
    ' in Oslo.'
    """
    return "".join(word if word in PUNCTUATION else f" {word}" for word in words)


def _shown(found: PredictionResult) -> list[tuple[Any, Any]]:
    """Select a few questions that have an answer, evenly spaced."""
    pairs = [
        (example, answer)
        for example, answer in zip(found.examples, found.answers, strict=True)
        if example is not None and answer is not None and answer["answer"]
    ]
    step = max(1, len(pairs) // NUM_SHOWN)
    return pairs[::step][:NUM_SHOWN]


def _answer(example: Any, answer: Any) -> MarkedText:
    """Highlight the answer of a question in its text."""
    begin, end, text = answer["begin"], answer["end"], example.context
    pieces = Piece(text[:begin]), Piece(text[begin:end], "c", "answer"), Piece(text[end:])
    return MarkedText(example.question, pieces)


def _short_questions(source: Path, out: Path, count: int) -> None:
    """Write one question of each story, with the sentences around its answer: short texts."""
    articles = json.loads(source.read_text(encoding="utf-8"))["data"]
    few = [_short_question(article, number) for number, article in enumerate(articles[:count])]
    out.write_text(json.dumps({"version": "1.1", "data": few}), encoding="utf-8")


def _short_question(article: dict[str, Any], number: int) -> dict[str, Any]:
    (paragraph,) = article["paragraphs"]
    question, text = paragraph["qas"][number % len(paragraph["qas"])], paragraph["context"]
    (answer,) = question["answers"]
    starts = [*sentence_starts(text), len(text)]
    place = bisect_right(starts, answer["answer_start"]) - 1
    left = starts[max(0, place - NUM_AROUND)]
    right = starts[min(len(starts) - 1, place + NUM_AROUND + 1)]
    left += len(text[left:right]) - len(text[left:right].lstrip())
    moved = {**answer, "answer_start": answer["answer_start"] - left}
    short = {"context": text[left:right].rstrip(), "qas": [{**question, "answers": [moved]}]}
    return {**article, "paragraphs": [short]}
