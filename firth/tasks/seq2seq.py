"""A text out of another: translation, summarisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from firth.adapt.prompts import room_in
from firth.draws import Longs
from firth.errors import Misuse
from firth.inference.generate import greedy
from firth.metrics.bootstrap import Figure
from firth.metrics.summaries import summaries
from firth.metrics.translation import translation
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Packed
from firth.tasks.frame import Frame, Framed, Text
from firth.tasks.reading.examples import Translated
from firth.tasks.reading.files import each_source, read_translated
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

ROWS = 64  # texts that are written at once: each needs room for all it may write
WRITTEN = 128  # tokens of a target, at most
ARROW = "\n→ "  # between what a decoder reads and what it is to write


class Rewrite(Task):
    """An encoder-decoder reads and writes; a decoder goes on from what it was given to read."""

    name = "seq2seq"
    about = "a text out of another: translation, summary"
    head = "language"
    metric = "loss"
    architectures = ("decoder", "encoder-decoder")
    columns = "source, target"
    roles = ("source", "target")
    joins = True
    writes = True
    why = (
        "An {architecture} alone cannot write: each token of it sees the whole text. A decoder or "
        "an encoder-decoder can, or this encoder joined to a decoder with --decoder MODEL."
    )
    options = MappingProxyType({"prefix": "str", "arrow": "str", "written": "int"})

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Translated]:
        empty = on_empty(labelled)
        return read_translated(path, need_target=labelled, format=format, on_empty=empty, **columns)

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Translated]:
        return each_source(path, format=format, bad=bad, **without(columns, "target"))

    def example(self, text: str) -> Translated:
        return Translated(source=text)

    def facts(
        self, examples: Sequence[Translated], length: int, options: Mapping[str, Any]
    ) -> Facts:
        usual = {"prefix": "", "arrow": ARROW, "written": WRITTEN}
        if int(options.get("written", 1)) < 1:
            raise Misuse("task.written counts the tokens of a target: at least 1.")
        return super().facts(examples, length, {**usual, **options})

    def encode(self, examples: Sequence[Translated], frame: Frame, facts: Facts) -> list[Item]:
        decoder, options = frame.config.architecture == "decoder", facts.options
        reads = frame.source
        sources = reads.texts([f"{options['prefix']}{example.source}" for example in examples])
        targets = frame.texts([example.target or "" for example in examples])
        arrow = _arrow(options["arrow"], frame)
        written = min(int(options["written"]), frame.length // 2)
        room = reads.room() - (written + len(arrow) if decoder else 0)
        if room < 1:
            raise Misuse(f"A length of {frame.length} leaves no room to read in; set more.")
        items = []
        for example, source, target in zip(examples, sources, targets, strict=True):
            read = source.part(0, room)
            row = _prompt(read.tokens, arrow, frame) if decoder else reads.one(read)
            aim = None if example.target is None else _aim(target.part(0, written), frame)
            cut = max(0, len(source.tokens) - room) + max(0, len(target.tokens) - written)
            items.append(Item((row,), aim, cut))
        return items

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        rows, aims = [item.rows[0] for item in items], [item.target for item in items]
        if config.architecture == "decoder":
            batch = reading([_joined(*pair) for pair in zip(rows, aims, strict=True)], config)
            begins = batch.inputs.starts[:-1] + [len(row.tokens) - 1 for row in rows]
            ranges = [np.arange(b, b + len(aim)) for b, aim in zip(begins, aims, strict=True)]
            positions = np.concatenate(ranges)
        else:
            start, keys = np.array([config.start_id or 0]), np.zeros(len(rows), dtype=np.uint64)
            target = Packed.join([np.concatenate([start, aim[:-1]]) for aim in aims], keys)
            batch = replace(reading(rows, config), target=target)
            positions = np.arange(len(target.tokens))
        return replace(batch, predictions=asked("target", positions, np.concatenate(aims)))

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[list[int]]:
        """The tokens that are written."""
        parts = [items[i : i + ROWS] for i in range(0, len(items), ROWS)]
        return [row for part in parts for row in self._written(network, part, facts)]

    def _written(
        self, network: Transformer, items: Sequence[Item], facts: Facts
    ) -> list[list[int]]:
        prompts = [item.rows[0].tokens.tolist() for item in items]
        config, longest = network.config, max(map(len, prompts))
        room = room_in(network.stack) - (0 if config.has_encoder else longest)
        most = max(1, min(int(facts.options["written"]) + 2, room))
        return greedy(network, prompts, most=most, end=config.end_id)

    def answers(
        self,
        examples: Sequence[Translated],
        items: Sequence[Item],
        outputs: Sequence[list[int]],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        decode = partial(frame.tokenizer.decode, skip_specials=True)
        return [{"text": decode(tokens).strip()} for tokens in outputs]

    def figures(
        self, examples: Sequence[Translated], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold = [example.target or "" for example in examples]
        said = [answer["text"] for answer in answers]
        return {**translation(gold, said), **summaries(gold, said)}


def _arrow(text: str, frame: Frame) -> Longs:
    """The sign that it is a decoder's turn; one it cannot spell becomes the end of a text."""
    tokens, end = frame.texts([text])[0].tokens, frame.config.end_id
    unknown = len(tokens) == 0 or frame.tokenizer.unknown_id in tokens.tolist()
    return np.array([end]) if unknown and end is not None else tokens


def _prompt(source: Longs, arrow: Longs, frame: Frame) -> Framed:
    """What a decoder is given: the text, and a sign that it is its turn."""
    begin = frame.config.begin_id
    tokens = np.concatenate([[] if begin is None else [begin], source, arrow]).astype(np.int64)
    return Framed(tokens, np.zeros_like(tokens), 0, 0)


def _aim(target: Text, frame: Frame) -> Longs:
    """What is to be written, with the token that ends it."""
    if frame.config.architecture != "decoder" and frame.reader is None:
        return frame.one(target).tokens
    end = frame.config.end_id
    return np.concatenate([target.tokens, [] if end is None else [end]]).astype(np.int64)


def _joined(row: Framed, aim: Longs) -> Framed:
    """What a decoder reads while it learns: all but the last token."""
    tokens = np.concatenate([row.tokens, aim[:-1]])
    return Framed(tokens, np.zeros_like(tokens), 0, 0)
