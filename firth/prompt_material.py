"""What a prompt is made of: questions, examples and which are shown, words for labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path
from typing import Any

from firth.asking import open_model
from firth.errors import InputError, Misuse
from firth.inference.answering import Question, Shot
from firth.inference.prompt import FIELDS, LABELS, listed
from firth.inference.shots import (
    PICKS,
    balanced_shots,
    nearest_shots,
    random_shots,
    word_vectors,
)
from firth.model import Model
from firth.tasks.classify import labels_of
from firth.tasks.material import check_columns
from firth.tasks.reading.columns import place
from firth.tasks.reading.examples import Choice, Labelled, Translated
from firth.tasks.reading.files import read_translated
from firth.tasks.reading.sampling import overlap, stratified
from firth.tasks.table import task_named
from firth.tasks.task import Example
from firth.text.readers import Bad

Inline = Sequence[tuple[str, str]]  # texts with their answers
LABELLED = ("classify", "pair")
SHOTS = 4  # where a file of examples is given, and nobody says how many to show
INSTEAD = "--example"  # where an example stands that is in no file


@dataclass(frozen=True, kw_only=True)
class PromptJob:
    """What is asked, and how; what cannot be right is refused before anything is opened."""

    task: str = "seq2seq"  # classify, pair, choice or seq2seq
    queries: tuple[str, ...] = ()  # texts to answer, or
    data: str | Path | None = None  # a file of them
    examples: str | Path | Inline | None = None  # what may be shown
    shots: int | None = None  # how many are
    pick: str | None = None  # random, balanced or nearest
    near: str | Path | Model | None = None  # by whose vectors
    draws: int = 1  # choices of examples
    labels: Mapping[str, str] = field(default_factory=dict)  # label -> word
    template: str | None = None
    instruction: str = ""
    calibrate: bool | None = None  # allow for labels that are likely whatever the text
    mean: bool | None = None  # of a label's tokens, not their sum
    max_new_tokens: int = 32
    limit: int = 0  # questions of the file, in fair shares
    seed: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    format: str | None = None
    answers_needed: bool = True  # the file must say what is right

    def __post_init__(self) -> None:
        for wrong, why in self._complaints():
            if wrong:
                raise Misuse(why)

    @classmethod
    def of(
        cls, queries: Sequence[str] | str, given: Mapping[str, Any], *, known: bool
    ) -> PromptJob:
        """From what a caller gives; `known`: a file must say what is right.

        >>> PromptJob.of("fine", {"task": "classify", "labels": ["good", "bad"]}, known=True).labels
        {'good': 'good', 'bad': 'bad'}
        """
        names = {field.name for field in fields(cls)} - {"queries", "answers_needed"}
        if strange := sorted(given.keys() - names):
            raise Misuse(f"A prompt has no {strange[0]}; it has {', '.join(sorted(names))}.")
        texts = (queries,) if isinstance(queries, str) else tuple(queries)
        labels = given.get("labels") or {}
        if not isinstance(labels, Mapping):
            labels = {label: label for label in labels}
        own = {"queries": texts, "labels": labels, "columns": given.get("columns") or {}}
        return cls(**{**given, **own, "answers_needed": known})

    def _complaints(self) -> Iterator[tuple[bool, str]]:
        task, asked = self.task, len(self.queries)
        tasks = ", ".join(FIELDS)
        yield task not in FIELDS, f"A model is prompted for {tasks}, not for {task!r}."
        yield bool(asked) == (self.data is not None), "Give texts to answer, or a file with --data."
        yield task == "pair" and asked not in (0, 2), "For pair, give two texts that are compared."
        yield task == "choice" and 0 < asked < 3, "For choice, give a text and then its choices."
        yield self.draws < 1, f"There is at least 1 draw, not {self.draws}."
        yield self.draws > 1 and bool(asked), "Several draws are compared over a file: give --data."
        yield (self.shots or 0) < 0, f"A prompt shows 0 examples or more, not {self.shots}."
        yield (
            bool(self.shots) and self.examples is None,
            f"There is nothing to show {self.shots} of: give --examples FILE.",
        )
        yield bool(self.labels) and task not in LABELLED, f"There are no labels in {task}."
        yield (
            bool(self.calibrate) and task == "seq2seq",
            "Only answers that are scored are calibrated.",
        )
        yield (
            self.mean is not None and task not in LABELLED,
            f"--mean and --sum say how labels are scored; {task} has none.",
        )
        yield self.max_new_tokens < 1, "An answer has at least one token."
        picks = ", ".join(PICKS)
        yield self.picking not in PICKS, f"Examples are picked {picks}, not {self.pick!r}."
        yield (
            self.picking == "balanced" and task not in LABELLED,
            f"There are no labels in {task} to balance; pick random or nearest.",
        )
        yield (
            self.near is not None and self.picking != "nearest",
            "--near measures what is nearest: take it with --pick nearest.",
        )

    @property
    def picking(self) -> str:
        """How examples are picked: as many of each label, unless something else is asked for."""
        usual = "balanced" if self.task in LABELLED else "random"
        return self.pick or ("nearest" if self.near is not None else usual)

    @property
    def calibrates(self) -> bool:
        """Whether labels are calibrated: yes, but where every question would need its own.

        That is four prompts for one: behind its nearest examples, or among choices of its own.
        """
        usual = self.task in LABELLED and self.picking != "nearest"
        return usual if self.calibrate is None else self.calibrate


@dataclass(frozen=True)
class Material:
    """The questions and the examples, before a model is opened."""

    asked: list[Example]
    shown: list[Example]
    shots: int
    words: dict[str, str]  # label -> the word that is scored
    notes: list[str]


def gather(job: PromptJob, bad: Bad | None = None) -> Material:
    """Read the files, find a word for each label, and settle how many examples are shown.

    A question to be answered in writing that cannot be read is told to `bad`; the others follow.
    """
    shown = _examples(job)
    asked, notes = _asked(job, bad), []
    words = _words(job, shown, asked) if job.task in LABELLED else {}
    shots = _shots(job, len(shown))
    if job.data is not None and shots and (same := overlap(shown, asked)):
        notes.append(
            f"{same:,} of the {len(asked):,} questions stand among the examples as well: figures "
            "on them say too much."
        )
    if words and not job.labels and all(label.lstrip("-").isdigit() for label in words):
        first, second = list(words)[:2]
        notes.append(
            f"The labels are numbers, which say little to a model: --labels {first}=WORD,"
            f"{second}=WORD gives them words."
        )
    return Material(asked, shown, shots, words, notes)


# ---- examples and questions ---------------------------------------------------------------------


def _examples(job: PromptJob) -> list[Example]:
    """What may be shown: of a file, or given in words."""
    if job.examples is None:
        return []
    if isinstance(job.examples, str | Path):
        return _one_label(_read(job, job.examples, labelled=True), job.examples)
    if job.task not in ("classify", "seq2seq"):
        raise Misuse(f"Examples of {job.task} have more than a text and an answer: give a file.")
    kind: Any = Labelled if job.task == "classify" else Translated
    names = ("text", "label") if job.task == "classify" else ("source", "target")
    pairs = [[part.strip() for part in pair] for pair in job.examples]
    if not all(all(pair) for pair in pairs):
        raise Misuse("An example has a text and an answer, and neither is empty.")
    return [kind(**dict(zip(names, pair, strict=True))) for pair in pairs]


def _asked(job: PromptJob, bad: Bad | None) -> list[Example]:
    """What is to be answered: of a file, or given in words."""
    if job.data is not None:
        found = _one_label(_read(job, job.data, labelled=job.answers_needed, bad=bad), job.data)
        if not found:
            raise InputError(f"{job.data} holds no examples.")
        if job.limit and job.limit < len(found):
            strata = task_named(job.task).strata(found)
            found = [found[i] for i in stratified(strata, count=job.limit, seed=job.seed)[0]]
        return found
    first, *rest = job.queries
    made: dict[str, list[Example]] = {
        "classify": [Labelled(text=text) for text in job.queries],
        "pair": [Labelled(text=first, second=(*rest, "")[0])],
        "choice": [Choice(text=first, choices=tuple(rest))],
        "seq2seq": [Translated(source=text) for text in job.queries],
    }
    return made[job.task]


def _read(
    job: PromptJob, path: str | Path, *, labelled: bool, bad: Bad | None = None
) -> list[Example]:
    task = task_named(job.task)
    check_columns(task.name, task.roles, job.columns)
    if job.task == "seq2seq" and bad is not None:
        return read_translated(
            path,
            need_target=labelled,
            format=job.format,
            bad=bad,
            source=job.columns.get("source"),
            target=job.columns.get("target"),
        )
    return task.read(path, labelled=labelled, format=job.format, columns=job.columns)


def _one_label(examples: list[Example], path: str | Path) -> list[Example]:
    for example in examples:
        if isinstance(getattr(example, "label", None), tuple):
            raise InputError(
                f"{place(path, example.line)} has several labels; a prompt asks for one."
            )
    return examples


def _shots(job: PromptJob, there: int) -> int:
    """How many examples are shown."""
    inline = not isinstance(job.examples, str | Path)
    shots = job.shots if job.shots is not None else there if inline else min(SHOTS, there)
    if shots > there:
        where = "there are" if inline else f"{job.examples} has"
        raise Misuse(f"{shots} examples are to be shown, but {where} only {there}; ask for fewer.")
    alike = "without examples" if not shots else "with the nearest examples"
    if job.draws > 1 and (not shots or job.picking == "nearest"):
        raise Misuse(f"Every draw is the same {alike}: leave --draws out.")
    return shots


# ---- labels -------------------------------------------------------------------------------------


def _words(job: PromptJob, shown: list[Example], asked: list[Example]) -> dict[str, str]:
    """The word for each label: as it is given, or the label itself."""
    words = dict(job.labels) or {label: label for label in labels_of([*shown, *asked])}
    for path, examples in ((job.examples, shown), (job.data, asked)):
        for example in examples:
            if example.label is not None and example.label not in words:
                where = place(path, example.line) if isinstance(path, str | Path) else INSTEAD
                raise InputError(
                    f"{where}: the label {example.label!r} has no word; add it to --labels."
                )
    if len(words) < 2:
        raise Misuse("There must be two labels to choose from: --labels negative,positive.")
    doubled = [word for word, times in Counter(words.values()).items() if times > 1]
    if doubled:
        raise Misuse(f"Two labels have the word {doubled[0]!r}; each needs its own.")
    return words


# ---- prompts ------------------------------------------------------------------------------------


def questions(
    job: PromptJob, material: Material, shown: Iterator[Sequence[int]]
) -> Iterator[Question]:
    """Every question with the examples that are shown before it."""
    labels = {LABELS: listed(list(material.words.values()))}
    for example, chosen in zip(material.asked, shown, strict=False):
        shots = tuple(_shot(job.task, material, labels, i) for i in chosen)
        answers = tuple(material.words.values()) or getattr(example, "choices", ())
        yield Question(_values(job.task, example) | labels, shots, answers)


def _values(task: str, example: Example) -> dict[str, str]:
    return dict(zip(FIELDS[task], example.inputs, strict=False))


def _shot(task: str, material: Material, labels: dict[str, str], number: int) -> Shot:
    """An example, and the words that answer it."""
    example = material.shown[number]
    if task == "seq2seq":
        answer = example.target
    elif task == "choice":
        answer = example.choices[example.label]
    else:
        answer = material.words[example.label]
    return _values(task, example) | labels, answer


def drawn(job: PromptJob, material: Material, draw: int) -> Iterator[Sequence[int]]:
    """Which examples are shown before each question."""
    there, shots = len(material.shown), material.shots
    if not shots:
        return repeat(())
    if job.picking == "nearest":
        asked, shown = (
            [" ".join(_values(job.task, example).values()) for example in examples]
            for examples in (material.asked, material.shown)
        )
        if job.near is None:
            return nearest_shots(*word_vectors(asked, shown), shots)
        near = open_model(job.near, None)
        return nearest_shots(
            near.embed(asked, normalize=True), near.embed(shown, normalize=True), shots
        )
    if job.picking == "balanced":
        labels = [example.label for example in material.shown]
        return repeat(balanced_shots(labels, shots, seed=job.seed, draw=draw))
    if not isinstance(job.examples, str | Path):
        return repeat(range(there)[:shots])  # as they were given
    return repeat(random_shots(there, shots, seed=job.seed, draw=draw))
