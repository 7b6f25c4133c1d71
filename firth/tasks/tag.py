"""Sequence labelling: a tag for each word, as in NER and POS tagging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from firth.data.memory import is_in_memory
from firth.metrics.bootstrap import Metric
from firth.metrics.entities import (
    entity_metrics,
    entity_metrics_by_type,
    may_follow,
    read_entities,
    split_tag,
    token_accuracy,
)
from firth.models.config import ModelConfig
from firth.models.label_heads import LabelHead
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile, place
from firth.tasks.readers.conll import read_sentences, read_tagged
from firth.tasks.readers.examples import TaggedExample
from firth.tasks.readers.plain_words import split_words
from firth.tasks.task import (
    Answer,
    EncodedExample,
    Items,
    Task,
    TaskMetadata,
    log_loss,
    prediction_targets,
)
from firth.tokenizers.word_alignment import token_words, word_windows
from firth.training.losses import label_logits
from firth.utils.device_transfer import to_device
from firth.utils.errors import InputError
from firth.utils.rng import Bools, Floats, Longs

OUTSIDE = "O"
LIST_FORMATS = {".jsonl", ".parquet"}  # one sentence per line; in others, one word


class AlignedWords(NamedTuple):
    """The words of one sequence and the position of the first token of each."""

    words: Longs  # indices in the sentence
    places: Longs  # positions in the sequence


class SentenceLayout(NamedTuple):
    """The number of words of a sentence, and the words of each of its sequences."""

    size: int
    rows: list[AlignedWords]


class TagTask(Task):
    """The first token of each word carries its tag (Devlin et al. 2019, section 5.3)."""

    name = "tag"
    about = "a tag for each word: named entities, parts of speech"
    head = "tag"
    metric = "f1"
    columns = "CoNLL: a word and its tag on each line · words, tags"
    roles = ("words", "tags", "text")
    options = MappingProxyType({"entities": "bool", "bio": "bool"})
    label_unit = "words"

    def read(self, file: TaskFile) -> Iterator[TaggedExample]:
        return read_tagged(file) if file.labels == "required" else read_sentences(file)

    def example(self, text: str) -> TaggedExample:
        return TaggedExample(words=split_words(text))

    def metadata(
        self, examples: Sequence[TaggedExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        tags = {tag for example in examples for tag in example.tags or ()}
        plain = super().metadata(examples, length, options)
        ordered = sorted(tags, key=lambda tag: (tag != OUTSIDE, tag))
        entities = are_entities(tags)
        obeys_bio = entities and not any(map(_without_begin, examples))
        named = {"entities": entities, "bio": obeys_bio, **plain.options}
        return replace(plain, labels=tuple(ordered), options=named)

    def check(self, metadata: TaskMetadata, examples: Sequence[TaggedExample], path: Path) -> None:
        known = set(metadata.labels)
        for example in examples:
            for number, tag in enumerate(example.tags or ()):
                if tag not in known:
                    where = _place(path, example, number)
                    raise InputError(
                        f"{where}: the tag {tag!r} of {example.words[number]!r:.40} is not in the "
                        f"training data, which has {', '.join(metadata.labels)}."
                    )

    def data_notes(self, examples: Sequence[TaggedExample], path: Path) -> list[str]:
        """Name the first tag that breaks BIO, and the rule by which such tags are read."""
        if not are_entities({tag for example in examples for tag in example.tags or ()}):
            return []
        broken = [(example, number) for example in examples for number in _without_begin(example)]
        if not broken:
            return []
        example, number = broken[0]
        tags = example.tags or ()
        before = f"follows {tags[number - 1]}" if number else "begins a sentence"
        count = "1 tag breaks" if len(broken) == 1 else f"{len(broken):,} tags break"
        return [
            f"{_place(path, example, number)}: {tags[number]} {before}, not the B- or I- of its "
            f"type: {count} BIO so. Each begins an entity, as in IOB1 and by the rule of conlleval."
        ]

    def encode(
        self, examples: Sequence[TaggedExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        texts = template.tokenize([" ".join(example.words) for example in examples], offsets=True)
        index = {tag: id for id, tag in enumerate(metadata.labels)}
        items = []
        for example, text in zip(examples, texts, strict=True):
            rows, aligned = [], []
            owners = token_words(example.words, text.spans)
            for begin, end, words in word_windows(owners, template.room()):
                row = template.one(text.part(begin, end))
                numbers, first = np.unique(words, return_index=True)
                real = numbers >= 0
                rows.append(row)
                aligned.append(AlignedWords(numbers[real], first[real] + row.first))
            tags = None if example.tags is None else [index[tag] for tag in example.tags]
            items.append(
                EncodedExample(
                    tuple(rows), tags, detail=SentenceLayout(len(example.words), aligned)
                )
            )
        return items

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        tags = [np.array(i.target, dtype=np.int64)[a.words] for i in items for a in i.detail.rows]
        return prediction_targets("tags", _positions(items, batch), np.concatenate(tags))

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability of each tag for each word; a word without tokens gets O."""
        batch = self.batch(items, metadata, network.config)
        head, positions = network.heads[self.head], _positions(items, batch)
        assert isinstance(head, LabelHead)
        logits = label_logits(network, batch)
        logits = logits[to_device(positions, logits.device)]  # of words
        lengths = batch.inputs.count_in_sequences(positions).tolist()
        allowed = bio_transitions(metadata)
        chosen = iter(head.tag_probabilities(logits, lengths, allowed).double().cpu().numpy())
        found = []
        for item in items:
            rows = np.zeros((item.detail.size, len(metadata.labels)))
            rows[:, 0] = 1.0
            for aligned in item.detail.rows:
                for word in aligned.words:
                    rows[word] = next(chosen)
            found.append(rows)
        return found

    def answer(
        self, example: TaggedExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        tags = [metadata.labels[id] for id in output.argmax(-1)]
        answer: Answer = {"words": list(example.words), "tags": tags}
        if metadata.options["entities"]:
            answer["entities"] = [
                {
                    "type": entity.type,
                    "text": " ".join(example.words[entity.begin : entity.end]),
                    "begin": entity.begin,
                    "end": entity.end,
                    "score": float(output[entity.begin : entity.end].max(-1).mean()),
                }
                for entity in read_entities(tags)
            ]
        return answer

    def metrics(
        self, examples: Sequence[TaggedExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold = [example.tags or () for example in examples]
        predicted = [answer["tags"] for answer in answers]
        found = entity_metrics(gold, predicted) if metadata.options["entities"] else {}
        return {**found, **token_accuracy(gold, predicted)}

    def loss(self, items: Items, outputs: Sequence[Floats], metadata: TaskMetadata) -> float:
        pairs = zip(outputs, items, strict=True)
        right = [probs[np.arange(len(probs)), item.target] for probs, item in pairs]
        return log_loss(np.concatenate(right))

    def best(self, metadata: TaskMetadata) -> str:
        return "f1" if metadata.options["entities"] else "accuracy"

    def labels(self, example: TaggedExample) -> tuple[str, ...]:
        return tuple(example.tags or ())

    def parts(
        self, examples: Sequence[TaggedExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, dict[str, Metric]]:
        if not metadata.options["entities"]:
            return {}
        gold = [example.tags or () for example in examples]
        return entity_metrics_by_type(gold, [answer["tags"] for answer in answers])

    def default_options(self, config: ModelConfig) -> dict[str, Any]:
        return {"entities": are_entities(set(config.labels)), "bio": False}


def are_entities(tags: set[str]) -> bool:
    """Whether tags mark entities (B-PER) rather than classify every word (NOUN)."""
    try:
        return any(split_tag(tag)[0] != OUTSIDE for tag in tags if "-" in tag)
    except InputError:
        return False


def _without_begin(example: TaggedExample) -> list[int]:
    """Return the places of tags that continue an entity of which there is no beginning.

    >>> _without_begin(TaggedExample(words=("a", "b", "c"), tags=("I-X", "I-X", "I-Y")))
    [0, 2]
    """
    pairs = pairwise([OUTSIDE, *(example.tags or ())])
    return [place for place, (before, tag) in enumerate(pairs) if not may_follow(before, tag)]


def bio_transitions(metadata: TaskMetadata) -> Bools | None:
    """Tell which tag (column) may follow which (row); the last row is that of first words.

    None: all may. With these, an answer obeys BIO as the training data does.

    >>> options = {"bio": True}
    >>> bio_transitions(TaskMetadata(task="tag", labels=("O", "B-X", "I-X"), options=options))
    array([[ True,  True, False],
           [ True,  True,  True],
           [ True,  True,  True],
           [ True,  True, False]])
    """  # (K + 1, K)
    if not metadata.options.get("bio"):
        return None
    rows = [*metadata.labels, OUTSIDE]
    return np.array([[may_follow(before, tag) for tag in metadata.labels] for before in rows])


def _place(path: Path, example: TaggedExample, number: int) -> str:
    """Name the file and the line of a word."""
    lists = LIST_FORMATS & set(path.suffixes) or is_in_memory(path)
    return place(path, example.line + (0 if lists else number))


def _positions(items: Items, batch: Batch) -> Longs:
    """The positions of the first tokens of all words in the packed batch."""
    starts = iter(batch.inputs.starts.tolist())
    places = [aligned.places + next(starts) for item in items for aligned in item.detail.rows]
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)
