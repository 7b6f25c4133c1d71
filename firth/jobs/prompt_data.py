"""Data of few-shot prompting: queries, demonstrations and label words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from firth.data.memory import Source, as_source
from firth.inference.prompting.demonstrations import (
    balanced_shots,
    nearest_shots,
    random_shots,
    tfidf_vectors,
)
from firth.inference.prompting.prompt_scorer import PromptQuestion, Shot
from firth.inference.prompting.templates import FIELDS, LABELS, join_labels
from firth.jobs.prompt_config import LABELLED, PromptConfig
from firth.model import load_if_needed
from firth.tasks.classify import labels_of
from firth.tasks.dataset import check_columns
from firth.tasks.readers.columns import LabelUse, TaskFile, good_examples, place
from firth.tasks.readers.examples import ChoiceExample, LabelledExample, Seq2SeqExample
from firth.tasks.readers.subsampling import overlap, stratified_sample
from firth.tasks.registry import task_named
from firth.tasks.task import Example
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.errors import InputError, UsageError

DEFAULT_SHOTS = 4  # demonstrations from a file or table


@dataclass(frozen=True)
class PromptDataset:
    """Queries, demonstrations and label words."""

    queries: list[Example]
    shown: list[Example]
    shots: int
    words: dict[str, str]  # label -> the word that is scored
    notes: list[str]


def load_prompt_dataset(config: PromptConfig) -> PromptDataset:
    """Read queries and demonstrations, and find a word for each label; bad rows are skipped."""
    bad = BadRows(SKIPPED, strict=config.strict)
    shown, queries = _examples(config, bad), _queries(config, bad)
    notes = bad.notes
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


def _examples(config: PromptConfig, bad: BadRows) -> list[Example]:
    """The pool of demonstrations."""
    return [] if config.examples is None else _read(config, "examples", bad, labelled=True)


def _queries(config: PromptConfig, bad: BadRows) -> list[Example]:
    """The queries: texts, or examples."""
    if config.data is not None:
        found = _read(config, "data", bad, labelled=config.out is None)
        if not found:
            raise InputError(f"{_source(config, 'data')} has no examples.")
        if config.limit and config.limit < len(found):
            strata = task_named(config.task).strata(found)
            found = [
                found[i] for i in stratified_sample(strata, count=config.limit, seed=config.seed)[0]
            ]
        return found
    first, *rest = config.texts
    made: dict[str, list[Example]] = {
        "classify": [LabelledExample(text=text) for text in config.texts],
        "pair": [LabelledExample(text=first, second=(*rest, "")[0])],
        "choice": [ChoiceExample(text=first, choices=tuple(rest))],
        "seq2seq": [Seq2SeqExample(source=text) for text in config.texts],
    }
    return made[config.task]


def _source(config: PromptConfig, name: str) -> Source:
    """Return the file or table of an argument."""
    return as_source(getattr(config, name), name, task_named(config.task).columns)


def _read(config: PromptConfig, name: str, bad: BadRows, *, labelled: bool) -> list[Example]:
    task, columns, source = task_named(config.task), config.columns or {}, _source(config, name)
    check_columns(task.name, task.roles, columns)
    labels: LabelUse = "required" if labelled else "optional"
    file = TaskFile(source, config.format, columns, labels=labels, bad=bad)
    examples = list(good_examples(task.read, file))
    for example in examples:
        if isinstance(getattr(example, "label", None), tuple):
            raise InputError(
                f"{place(source, example.line)} has several labels; prompting supports one."
            )
    return examples


def _shots(config: PromptConfig, there: int) -> int:
    """The number of demonstrations in a prompt."""
    usual = there if config.lists_examples else min(DEFAULT_SHOTS, there)
    shots = usual if config.shots is None else config.shots
    if shots > there:
        where = "there are" if config.examples is None else f"{_source(config, 'examples')} has"
        raise UsageError(f"--shots is {shots}, but {where} only {there} examples; use fewer.")
    reason = "without examples" if not shots else "with the nearest examples"
    if config.draws > 1 and (not shots or config.picking == "nearest"):
        raise UsageError(f"All draws are the same {reason}: remove --draws.")
    return shots


# ---- labels -------------------------------------------------------------------------------------


def _words(config: PromptConfig, shown: list[Example], queries: list[Example]) -> dict[str, str]:
    """The word of each label: as given, or the label itself."""
    words = config.words or {label: label for label in labels_of([*shown, *queries])}
    for name, examples in (("examples", shown), ("data", queries)):
        for example in examples:
            if example.label is not None and example.label not in words:
                where = place(_source(config, name), example.line)
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
    if config.lists_examples and config.pick is None and config.near is None and config.draws == 1:
        return repeat(range(shots))
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
    return repeat(random_shots(there, shots, seed=config.seed, draw=draw))
