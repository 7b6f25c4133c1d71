"""A tag for each word: entities, parts of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from firth.draws import Floats, Longs
from firth.errors import InputError, Misuse
from firth.metrics.bootstrap import Figure
from firth.metrics.entities import (
    entities,
    entities_by_type,
    read_entities,
    split_tag,
    token_accuracy,
)
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.classify import TINY
from firth.tasks.frame import Frame, Text
from firth.tasks.reading.columns import place
from firth.tasks.reading.conll import each_sentence, read_tagged
from firth.tasks.reading.examples import Tagged
from firth.tasks.reading.plain import split_words
from firth.tasks.task import (
    NONE,
    Answer,
    Columns,
    Facts,
    Item,
    Task,
    asked,
    on_empty,
    reading,
    without,
)
from firth.text.readers import Bad
from firth.training.losses import label_scores

OUTSIDE = "O"
LISTS = {".jsonl", ".parquet"}  # a sentence is one line of these, in others a word is


class Aligned(NamedTuple):
    """The words of one sequence, and the first token of each."""

    words: Longs  # their numbers in the sentence
    places: Longs  # in the sequence


class Sentence(NamedTuple):
    """How many words a sentence has, and which stand in each of its sequences."""

    size: int
    rows: list[Aligned]


class Tag(Task):
    """The first token of each word carries its tag (Devlin et al. 2019, section 5.3)."""

    name = "tag"
    about = "a tag for each word: names of people and places, parts of speech"
    head = "tag"
    metric = "f1"
    columns = "CoNLL: a word and its tag on each line · words, tags"
    roles = ("words", "tags", "text")
    options = MappingProxyType({"entities": "bool"})
    tells_apart = "words"

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Tagged]:
        if "text" in columns:
            raise Misuse("A tagger learns from words and their tags: text=NAME is for `predict`.")
        empty = on_empty(labelled)
        return read_tagged(path, need_tags=labelled, format=format, on_empty=empty, **columns)

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Tagged]:
        return each_sentence(path, format=format, bad=bad, **without(columns, "tags"))

    def example(self, text: str) -> Tagged:
        return Tagged(words=split_words(text))

    def facts(self, examples: Sequence[Tagged], length: int, options: Mapping[str, Any]) -> Facts:
        tags = {tag for example in examples for tag in example.tags or ()}
        plain = super().facts(examples, length, options)
        ordered = sorted(tags, key=lambda tag: (tag != OUTSIDE, tag))
        named = {"entities": are_entities(tags), **plain.options}
        return replace(plain, labels=tuple(ordered), options=named)

    def check(self, facts: Facts, examples: Sequence[Tagged], path: Path) -> None:
        known, lists = set(facts.labels), LISTS & set(path.suffixes)
        for example in examples:
            for number, tag in enumerate(example.tags or ()):
                if tag not in known:
                    where = place(path, example.line + (0 if lists else number))
                    raise InputError(
                        f"{where}: the tag {tag!r} of {example.words[number]!r:.40} does not stand "
                        f"in the training data, which has {', '.join(facts.labels)}."
                    )

    def encode(self, examples: Sequence[Tagged], frame: Frame, facts: Facts) -> list[Item]:
        texts = frame.texts([" ".join(example.words) for example in examples], places=True)
        index = {tag: id for id, tag in enumerate(facts.labels)}
        items = []
        for example, text in zip(examples, texts, strict=True):
            rows, aligned = [], []
            for begin, end, words in _windows(text, _words(example.words, text), frame.room()):
                row = frame.one(text.part(begin, end))
                numbers, first = np.unique(words, return_index=True)
                real = numbers >= 0
                rows.append(row)
                aligned.append(Aligned(numbers[real], first[real] + row.first))
            tags = None if example.tags is None else [index[tag] for tag in example.tags]
            items.append(Item(tuple(rows), tags, detail=Sentence(len(example.words), aligned)))
        return items

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        batch = reading([row for item in items for row in item.rows], config)
        if any(item.target is None for item in items):
            return batch
        targets = [
            np.array(i.target, dtype=np.int64)[a.words] for i in items for a in i.detail.rows
        ]
        wanted = asked("tags", _positions(items, batch), np.concatenate(targets))
        return replace(batch, predictions=wanted)

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Floats]:
        """The probability of each tag for each word; a word without tokens is outside."""
        batch = self.batch(items, facts, network.config)
        shares = label_scores(network, batch).softmax(-1).double().cpu().numpy()
        chosen = iter(shares[_positions(items, batch)])
        found = []
        for item in items:
            rows = np.zeros((item.detail.size, len(facts.labels)))
            rows[:, 0] = 1.0
            for aligned in item.detail.rows:
                for word in aligned.words:
                    rows[word] = next(chosen)
            found.append(rows)
        return found

    def answers(
        self,
        examples: Sequence[Tagged],
        items: Sequence[Item],
        outputs: Sequence[Floats],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        answers = []
        for example, shares in zip(examples, outputs, strict=True):
            tags = [facts.labels[id] for id in shares.argmax(-1)]
            answer: Answer = {"words": list(example.words), "tags": tags}
            if facts.options["entities"]:
                answer["entities"] = [
                    {
                        "type": entity.type,
                        "text": " ".join(example.words[entity.begin : entity.end]),
                        "begin": entity.begin,
                        "end": entity.end,
                        "score": float(shares[entity.begin : entity.end].max(-1).mean()),
                    }
                    for entity in read_entities(tags)
                ]
            answers.append(answer)
        return answers

    def figures(
        self, examples: Sequence[Tagged], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold = [example.tags or () for example in examples]
        said = [answer["tags"] for answer in answers]
        found = entities(gold, said) if facts.options["entities"] else {}
        return {**found, **token_accuracy(gold, said)}

    def loss(self, items: Sequence[Item], outputs: Sequence[Floats], facts: Facts) -> float:
        right = [
            said[np.arange(len(said)), item.target]
            for said, item in zip(outputs, items, strict=True)
        ]
        return float(-np.log(np.maximum(np.concatenate(right), TINY)).mean())

    def best(self, facts: Facts) -> str:
        return "f1" if facts.options["entities"] else "accuracy"

    def labels(self, example: Tagged) -> tuple[str, ...]:
        return tuple(example.tags or ())

    def parts(
        self, examples: Sequence[Tagged], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, dict[str, Figure]]:
        if not facts.options["entities"]:
            return {}
        gold = [example.tags or () for example in examples]
        return entities_by_type(gold, [answer["tags"] for answer in answers])

    def usual_options(self, config: ModelConfig) -> dict[str, Any]:
        return {"entities": are_entities(set(config.labels))}


def are_entities(tags: set[str]) -> bool:
    """Whether tags mark entities (B-PER), or say something of every word (NOUN)."""
    try:
        return any(split_tag(tag)[0] != OUTSIDE for tag in tags if "-" in tag)
    except InputError:
        return False


def _words(words: Sequence[str], text: Text) -> Longs:
    """The word that each token belongs to; -1: none."""
    lengths = np.array([len(word) for word in words])
    begins = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    last = np.array([end - 1 for _, end in text.spans], dtype=np.int64)
    owners = np.searchsorted(begins, last, side="right") - 1
    inside = (owners >= 0) & (last < begins[owners] + lengths[owners])
    return np.where(inside, owners, -1)


def _windows(text: Text, words: Longs, room: int) -> list[tuple[int, int, Longs]]:
    """The parts of a sentence that fit, each beginning with a word: where, and whose tokens."""
    parts: list[tuple[int, int, Longs]] = []
    begin, size = 0, len(text.tokens)
    while begin < size or not parts:
        end = min(size, begin + room)
        while begin < end < size and words[end] == words[end - 1]:
            end -= 1
        if end <= begin:  # one word longer than a window
            end = min(size, begin + room)
        seen = words[begin:end].copy()
        if begin and len(seen) and words[begin] == words[begin - 1]:
            seen[seen == words[begin]] = -1  # the rest of a word: it has its tag already
        parts.append((begin, end, seen))
        begin = end
    return parts


def _positions(items: Sequence[Item], batch: Batch) -> Longs:
    """Where the first tokens of all words stand in the stream."""
    starts = iter(batch.inputs.starts.tolist())
    places = [aligned.places + next(starts) for item in items for aligned in item.detail.rows]
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)
