"""Cells that probe the layers of a model: examples, vectors, probes.

The vectors of a task are computed once for a model. Each seed has its own part of the training
examples: with common ones, the seeds would not be independent and their intervals too narrow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from firth.inspection.centre_of_gravity import centre_of_gravity, layer_weights
from firth.inspection.control_task import control_labels, probe_answers
from firth.inspection.layer_vectors import Vectors
from firth.inspection.probe_vectors import Word, pair_vectors, text_vectors, word_vectors
from firth.model import Model, load
from firth.study.cells.input_cells import File, stories, write_rows
from firth.study.engine.cell import Cell, CellFile
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.readers.conll import PREFIXED
from firth.tasks.readers.examples import LabelledExample, TaggedExample
from firth.tasks.registry import task_named
from firth.tasks.task import Example
from firth.utils.errors import InputError
from firth.utils.files import write_array, write_json

TEST_FRACTION = 1 / 3  # of the stories
WORDS_PER_SENTENCE = 3  # words of one sentence are too much alike
MIN_EXAMPLES = 20
VECTORS, TARGETS = "vectors.npy", "targets.json"
OUTSIDE = "O"


class StoryTask(NamedTuple):
    """A task of the stories: what `firth finetune --task` calls it, and its file."""

    task: str
    file: str
    about: str


STORY_TASKS = {
    "part of speech": StoryTask("tag", "pos/train.conll", "words"),
    "agreement": StoryTask("classify", "agreement/train.jsonl", "sentences, right or wrong"),
    "entities": StoryTask("tag", "entities/train.conll", "words"),
    "entailment": StoryTask("pair", "entailment/train.tsv", "pairs of sentences"),
    "sentiment": StoryTask("classify", "sentiment/train.tsv", "texts"),
    "topic": StoryTask("classify", "topic/train.tsv", "texts"),
}


def story_examples(context: CellContext, *, task: str, file: CellFile) -> Mapping[str, Any]:
    """Write train.jsonl and test.jsonl of a task; no story is in both."""
    path = context.path(file)
    if path.suffix == ".jsonl":
        examples = _minimal_pairs(path.read_text(encoding="utf-8"))
    else:
        examples = list(good_examples(task_named(task).read, TaskFile(path)))
    first = round(len(examples) * (1 - TEST_FRACTION))
    first -= first % 2  # both sentences of a minimal pair
    for name, part in {"train": examples[:first], "test": examples[first:]}.items():
        write_rows(context.folder / f"{name}.jsonl", part)
    return {"train": first, "test": len(examples) - first}


def _minimal_pairs(text: str) -> list[Example]:
    """Label the sentences of minimal pairs as grammatical or not."""
    rows = map(json.loads, text.splitlines())
    pairs = (
        (
            LabelledExample(text=row["sentence_good"], label="grammatical"),
            LabelledExample(text=row["sentence_bad"], label="ungrammatical"),
        )
        for row in rows
    )
    return list(chain.from_iterable(pairs))


def story_task(name: str, words: int) -> Cell:
    """Return the cell with the examples of a task of the stories."""
    task, file, _ = STORY_TASKS[name]
    settings = {"task": task, "file": stories(words) / file}
    return Cell(story_examples, settings, name=f"{name} examples")


# ---- vectors ------------------------------------------------------------------------------------


class ProbeExamples(NamedTuple):
    """The vectors of examples at every layer, their labels and types (words, or whole texts)."""

    vectors: Vectors  # (L + 1, n, W)
    labels: list[str]
    types: list[str]


def layer_features(
    context: CellContext,
    *,
    model: File,
    task: str,
    data: Cell,
    train_size: int,
    parts: int,
    test_size: int,
) -> Mapping[str, Any]:
    """Compute the vectors of the training examples of all seeds and of test examples.

    They are written to vectors.npy, for every layer.
    """
    loaded = load(context.path(model), device=context.device)
    both, folder = list[ProbeExamples](), context.path(data)
    for name, size in {"train": train_size * parts, "test": test_size}.items():
        rows = list(good_examples(task_named(task).read, TaskFile(folder / f"{name}.jsonl")))
        both.append(_vectors(loaded, rows, size))
    train, test = both
    if min(len(train.labels) // parts, len(test.labels)) < MIN_EXAMPLES:
        raise InputError(
            f"There are {len(train.labels):,} training and {len(test.labels):,} test examples: "
            f"probes with {parts} seeds need at least {parts * MIN_EXAMPLES} and {MIN_EXAMPLES}."
        )
    names = sorted(set(train.labels))
    if len(names) < 2:
        raise InputError(f"The {task} examples have one label, {', '.join(names)}: give two.")
    known = [place for place, label in enumerate(test.labels) if label in names]
    vectors = np.concatenate([train.vectors, test.vectors[:, known]], axis=1)
    labels = [*train.labels, *(test.labels[place] for place in known)]
    types = [*train.types, *(test.types[place] for place in known)]
    write_array(context.folder / VECTORS, vectors)
    targets = [names.index(label) for label in labels]
    write_json(context.folder / TARGETS, {"targets": targets, "types": types})
    return {
        "layers": len(vectors) - 1,
        "train": len(train.labels),
        "test": len(known),
        "labels": len(names),
    }


def _vectors(model: Model, examples: Sequence[Example], size: int) -> ProbeExamples:
    """Compute the vectors of at most `size` words, texts or pairs."""
    order = np.random.default_rng(0).permutation(len(examples))
    shuffled = [examples[place] for place in order]
    if isinstance(shuffled[0], TaggedExample):
        return _word_examples(model, shuffled, size)
    chosen = shuffled[:size]
    labels, types = [str(one.label) for one in chosen], ["\n".join(one.inputs) for one in chosen]
    if chosen[0].second is None:
        return ProbeExamples(text_vectors(model, types), labels, types)
    pairs = [(one.text, str(one.second)) for one in chosen]
    return ProbeExamples(pair_vectors(model, pairs), labels, types)


def _word_examples(model: Model, sentences: Sequence[TaggedExample], size: int) -> ProbeExamples:
    """Compute the vectors of words; at most half of them are in no entity."""
    tags = [[_label(tag) for tag in sentence.tags or ()] for sentence in sentences]
    outside = any(OUTSIDE in own for own in tags)
    words, rng = list[Word](), np.random.default_rng(0)
    balance = 0  # named words less the others
    for row, own in enumerate(tags):
        taken = 0
        for place in rng.permutation(len(own)).tolist():
            if len(words) == size or taken == WORDS_PER_SENTENCE:
                break
            if outside and own[place] == OUTSIDE and balance <= 0:
                continue
            balance += -1 if own[place] == OUTSIDE else 1
            words.append((row, place))
            taken += 1
    used = sentences[: words[-1][0] + 1] if words else []
    vectors, seen = word_vectors(model, [one.words for one in used], words)
    return ProbeExamples(
        vectors,
        [tags[row][place] for row, place in seen],
        [sentences[row].words[place] for row, place in seen],
    )


def _label(tag: str) -> str:
    """Return the type of an entity tag, or another tag as it is.

    >>> _label("B-PER"), _label("O"), _label("NOUN")
    ('PER', 'O', 'NOUN')
    """
    return tag[2:] if PREFIXED.match(tag) else tag


# ---- probes -------------------------------------------------------------------------------------


def training_part(available: int, train_size: int, part: int, parts: int) -> slice:
    """Return the training examples of one of several parts, which have none in common.

    >>> training_part(90, 40, 2, 3), training_part(900, 40, 2, 3)
    (slice(60, 90, None), slice(80, 120, None))
    """
    count = min(train_size, available // parts)
    return slice(part * count, (part + 1) * count)


def probed(
    context: CellContext,
    *,
    features: Cell,
    train_size: int,
    part: int,
    parts: int,
    strength: float,
) -> Mapping[str, Any]:
    """Probe every layer for the task and for its control, and learn the weights of the layers."""
    sizes, folder = context.result(features), context.path(features)
    stored = json.loads((folder / TARGETS).read_text(encoding="utf-8"))
    vectors, targets = np.load(folder / VECTORS), np.array(stored["targets"], dtype=np.int64)
    train = np.arange(sizes["train"])[training_part(sizes["train"], train_size, part, parts)]
    test = np.arange(sizes["train"], len(targets))
    control = control_labels(stored["types"], targets, context.seed)
    scores = {
        f"{name} {layer}": score_values(right)
        for name, labels in {"layer": targets, "control": control}.items()
        for layer, right in enumerate(probe_answers(vectors, labels, train, test, strength))
    }
    weights = layer_weights(vectors[:, train], targets[train], strength)
    return {
        "scores": scores,
        "train": len(train),
        "weights": weights.tolist(),
        "centre_of_gravity": centre_of_gravity(weights),
    }
