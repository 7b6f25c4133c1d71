"""Config and data of few-shot prompting: queries, demonstrations and label words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path
from typing import Any

from firth.data.readers import Bad
from firth.inference.prompting.demonstrations import (
    SELECTION_METHODS,
    balanced_shots,
    nearest_shots,
    random_shots,
    tfidf_vectors,
)
from firth.inference.prompting.prompt_scorer import PromptQuestion, Shot
from firth.inference.prompting.templates import FIELDS, LABELS, join_labels
from firth.jobs.ensembles import load_if_needed
from firth.model import Model
from firth.tasks.classify import labels_of
from firth.tasks.dataset import check_columns
from firth.tasks.readers.columns import place
from firth.tasks.readers.examples import ChoiceExample, LabelledExample, Seq2SeqExample
from firth.tasks.readers.subsampling import overlap, stratified_sample
from firth.tasks.readers.table_files import read_translated
from firth.tasks.registry import task_named
from firth.tasks.task import Example
from firth.utils.errors import InputError, UsageError

Inline = Sequence[tuple[str, str]]  # pairs of text and answer
LABELLED = ("classify", "pair")
DEFAULT_SHOTS = 4  # demonstrations from a file
INLINE_PLACE = "--example"  # the place of a demonstration that is in no file


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """The config of prompting; invalid combinations raise UsageError before anything is loaded."""

    task: str = "seq2seq"  # classify, pair, choice or seq2seq
    queries: tuple[str, ...] = ()  # input texts, or
    data: str | Path | None = None  # a file with them
    examples: str | Path | Inline | None = None  # pool of demonstrations
    shots: int | None = None  # demonstrations in a prompt
    pick: str | None = None  # selection: random, balanced or nearest
    near: str | Path | Model | None = None  # embedding model for nearest; default TF-IDF
    draws: int = 1  # sets of demonstrations to compare
    labels: Mapping[str, str] = field(default_factory=dict)  # label -> word
    template: str | None = None
    instruction: str = ""
    calibrate: bool | None = None  # correct for labels that are likely for any input
    mean: bool | None = None  # score by the mean log-probability of tokens, not the sum
    max_new_tokens: int = 32
    limit: int = 0  # examples of the file, a stratified sample
    seed: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    format: str | None = None
    answers_needed: bool = True  # the file must have gold answers

    def __post_init__(self) -> None:
        for wrong, why in self._complaints():
            if wrong:
                raise UsageError(why)

    @classmethod
    def of(
        cls, queries: Sequence[str] | str, given: Mapping[str, Any], *, known: bool
    ) -> PromptConfig:
        """Build the config from keyword arguments; `known`: the file must have gold answers.

        >>> given = {"task": "classify", "labels": ["good", "bad"]}
        >>> PromptConfig.of("fine", given, known=True).labels
        {'good': 'good', 'bad': 'bad'}
        """
        names = {field.name for field in fields(cls)} - {"queries", "answers_needed"}
        if unknown := sorted(given.keys() - names):
            raise UsageError(
                f"There is no option {unknown[0]}; there are {', '.join(sorted(names))}."
            )
        texts = (queries,) if isinstance(queries, str) else tuple(queries)
        labels = given.get("labels") or {}
        if not isinstance(labels, Mapping):
            labels = {label: label for label in labels}
        own = {"queries": texts, "labels": labels, "columns": given.get("columns") or {}}
        return cls(**{**given, **own, "answers_needed": known})

    def _complaints(self) -> Iterator[tuple[bool, str]]:
        task, count = self.task, len(self.queries)
        tasks = ", ".join(FIELDS)
        yield task not in FIELDS, f"Prompting supports the tasks {tasks}, not {task!r}."
        yield bool(count) == (self.data is not None), "Give either texts or a file with --data."
        yield task == "pair" and count not in (0, 2), "For pair, give two texts."
        yield (
            task == "choice" and 0 < count < 3,
            "For choice, give a text and at least two choices.",
        )
        yield self.draws < 1, f"--draws must be at least 1, not {self.draws}."
        yield self.draws > 1 and bool(count), "Several --draws are compared on a file: give --data."
        yield (self.shots or 0) < 0, f"--shots must be at least 0, not {self.shots}."
        yield (
            bool(self.shots) and self.examples is None,
            f"--shots {self.shots} needs examples: give --examples FILE.",
        )
        yield (
            bool(self.labels) and task not in LABELLED,
            f"--labels is for classify and pair; {task} has no labels.",
        )
        yield (
            bool(self.calibrate) and task == "seq2seq",
            "--calibrate is for scored answers, not for generated ones (seq2seq).",
        )
        yield (
            self.mean is not None and task not in LABELLED,
            f"--mean and --sum are for label words; {task} has none.",
        )
        yield self.max_new_tokens < 1, "--max-new-tokens must be at least 1."
        picks = ", ".join(SELECTION_METHODS)
        yield (
            self.picking not in SELECTION_METHODS,
            f"--pick is one of {picks}, not {self.pick!r}.",
        )
        yield (
            self.picking == "balanced" and task not in LABELLED,
            f"--pick balanced needs labels, which {task} has not; use random or nearest.",
        )
        yield (
            self.near is not None and self.picking != "nearest",
            "--near is for --pick nearest.",
        )

    @property
    def picking(self) -> str:
        """How demonstrations are selected: by default, balanced over labels."""
        usual = "balanced" if self.task in LABELLED else "random"
        return self.pick or ("nearest" if self.near is not None else usual)

    @property
    def calibrates(self) -> bool:
        """Whether to calibrate: by default, if one calibration serves all queries.

        With nearest demonstrations or choices, every query needs its own, four prompts for one.
        """
        usual = self.task in LABELLED and self.picking != "nearest"
        return usual if self.calibrate is None else self.calibrate


@dataclass(frozen=True)
class PromptDataset:
    """Queries, demonstrations and label words."""

    queries: list[Example]
    shown: list[Example]
    shots: int
    words: dict[str, str]  # label -> the word that is scored
    notes: list[str]


def load_prompt_dataset(config: PromptConfig, bad: Bad | None = None) -> PromptDataset:
    """Read queries and demonstrations, and find a word for each label.

    Errors of single rows of a seq2seq file are passed to `bad`, and reading continues.
    """
    shown = _examples(config)
    queries, notes = _queries(config, bad), []
    words = _words(config, shown, queries) if config.task in LABELLED else {}
    shots = _shots(config, len(shown))
    if config.data is not None and shots and (same := overlap(shown, queries)):
        notes.append(
            f"{same:,} of the {len(queries):,} queries are among the demonstrations as well, so "
            "metrics are too optimistic."
        )
    if words and not config.labels and all(label.lstrip("-").isdigit() for label in words):
        first, second = list(words)[:2]
        notes.append(
            f"The labels are numbers, which mean little to a model: name them with --labels "
            f"{first}=WORD,{second}=WORD."
        )
    return PromptDataset(queries, shown, shots, words, notes)


# ---- demonstrations and queries -----------------------------------------------------------------


def _examples(config: PromptConfig) -> list[Example]:
    """The pool of demonstrations, from a file or inline."""
    if config.examples is None:
        return []
    if isinstance(config.examples, str | Path):
        return _one_label(_read(config, config.examples, labelled=True), config.examples)
    if config.task not in ("classify", "seq2seq"):
        raise UsageError(
            f"Examples of {config.task} need more than a text and an answer: give a file."
        )
    kind: Any = LabelledExample if config.task == "classify" else Seq2SeqExample
    names = ("text", "label") if config.task == "classify" else ("source", "target")
    pairs = [[part.strip() for part in pair] for pair in config.examples]
    if not all(all(pair) for pair in pairs):
        raise UsageError("An example needs a text and an answer that are not empty.")
    return [kind(**dict(zip(names, pair, strict=True))) for pair in pairs]


def _queries(config: PromptConfig, bad: Bad | None) -> list[Example]:
    """The queries, from a file or inline."""
    if config.data is not None:
        found = _one_label(
            _read(config, config.data, labelled=config.answers_needed, bad=bad), config.data
        )
        if not found:
            raise InputError(f"{config.data} has no examples.")
        if config.limit and config.limit < len(found):
            strata = task_named(config.task).strata(found)
            found = [
                found[i] for i in stratified_sample(strata, count=config.limit, seed=config.seed)[0]
            ]
        return found
    first, *rest = config.queries
    made: dict[str, list[Example]] = {
        "classify": [LabelledExample(text=text) for text in config.queries],
        "pair": [LabelledExample(text=first, second=(*rest, "")[0])],
        "choice": [ChoiceExample(text=first, choices=tuple(rest))],
        "seq2seq": [Seq2SeqExample(source=text) for text in config.queries],
    }
    return made[config.task]


def _read(
    config: PromptConfig, path: str | Path, *, labelled: bool, bad: Bad | None = None
) -> list[Example]:
    task = task_named(config.task)
    check_columns(task.name, task.roles, config.columns)
    if config.task == "seq2seq" and bad is not None:
        return read_translated(
            path,
            need_target=labelled,
            format=config.format,
            bad=bad,
            source=config.columns.get("source"),
            target=config.columns.get("target"),
        )
    return task.read(path, labelled=labelled, format=config.format, columns=config.columns)


def _one_label(examples: list[Example], path: str | Path) -> list[Example]:
    for example in examples:
        if isinstance(getattr(example, "label", None), tuple):
            raise InputError(
                f"{place(path, example.line)} has several labels; prompting supports one."
            )
    return examples


def _shots(config: PromptConfig, there: int) -> int:
    """The number of demonstrations in a prompt."""
    inline = not isinstance(config.examples, str | Path)
    shots = (
        config.shots if config.shots is not None else there if inline else min(DEFAULT_SHOTS, there)
    )
    if shots > there:
        where = "there are" if inline else f"{config.examples} has"
        raise UsageError(f"--shots is {shots}, but {where} only {there} examples; use fewer.")
    reason = "without examples" if not shots else "with the nearest examples"
    if config.draws > 1 and (not shots or config.picking == "nearest"):
        raise UsageError(f"All draws are the same {reason}: remove --draws.")
    return shots


# ---- labels -------------------------------------------------------------------------------------


def _words(config: PromptConfig, shown: list[Example], queries: list[Example]) -> dict[str, str]:
    """The word of each label: as given, or the label itself."""
    words = dict(config.labels) or {label: label for label in labels_of([*shown, *queries])}
    for path, examples in ((config.examples, shown), (config.data, queries)):
        for example in examples:
            if example.label is not None and example.label not in words:
                where = place(path, example.line) if isinstance(path, str | Path) else INLINE_PLACE
                raise InputError(
                    f"{where}: the label {example.label!r} has no word; add it to --labels."
                )
    if len(words) < 2:
        raise UsageError("There must be at least two labels, such as --labels negative,positive.")
    doubled = [word for word, times in Counter(words.values()).items() if times > 1]
    if doubled:
        raise UsageError(f"Two labels have the word {doubled[0]!r}; each needs its own.")
    return words


# ---- prompts ------------------------------------------------------------------------------------


def build_questions(
    config: PromptConfig, dataset: PromptDataset, shown: Iterator[Sequence[int]]
) -> Iterator[PromptQuestion]:
    """Yield each query with its demonstrations."""
    labels = {LABELS: join_labels(list(dataset.words.values()))}
    for example, chosen in zip(dataset.queries, shown, strict=False):
        shots = tuple(_shot(config.task, dataset, labels, i) for i in chosen)
        answers = tuple(dataset.words.values()) or getattr(example, "choices", ())
        yield PromptQuestion(_values(config.task, example) | labels, shots, answers)


def _values(task: str, example: Example) -> dict[str, str]:
    return dict(zip(FIELDS[task], example.inputs, strict=False))


def _shot(task: str, dataset: PromptDataset, labels: dict[str, str], number: int) -> Shot:
    """Make a demonstration: field values and answer."""
    example = dataset.shown[number]
    if task == "seq2seq":
        answer = example.target
    elif task == "choice":
        answer = example.choices[example.label]
    else:
        answer = dataset.words[example.label]
    return _values(task, example) | labels, answer


def select_demonstrations(
    config: PromptConfig, dataset: PromptDataset, draw: int
) -> Iterator[Sequence[int]]:
    """Yield the indices of the demonstrations of each query."""
    there, shots = len(dataset.shown), dataset.shots
    if not shots:
        return repeat(())
    if config.picking == "nearest":
        queries, shown = (
            [" ".join(_values(config.task, example).values()) for example in examples]
            for examples in (dataset.queries, dataset.shown)
        )
        if config.near is None:
            return nearest_shots(*tfidf_vectors(queries, shown), shots)
        near = load_if_needed(config.near, None)
        return nearest_shots(
            near.embed(queries, normalize=True), near.embed(shown, normalize=True), shots
        )
    if config.picking == "balanced":
        labels = [example.label for example in dataset.shown]
        return repeat(balanced_shots(labels, shots, seed=config.seed, draw=draw))
    if not isinstance(config.examples, str | Path):
        return repeat(range(there)[:shots])  # in the given order
    return repeat(random_shots(there, shots, seed=config.seed, draw=draw))
