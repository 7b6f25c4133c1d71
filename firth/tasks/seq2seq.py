"""Sequence-to-sequence tasks: translation, summarization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from firth.adapt.prompt_tuning import max_stack_length
from firth.data.packing import PackedSequences
from firth.data.readers import Bad
from firth.inference.generation.token_generation import greedy_decode
from firth.metrics.bootstrap import Metric
from firth.metrics.rouge import rouge_metrics
from firth.metrics.translation import translation_metrics
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.inputs import FramedSequence, InputTemplate, TokenizedText
from firth.tasks.readers.examples import Seq2SeqExample
from firth.tasks.readers.table_files import each_source, read_translated
from firth.tasks.task import (
    NO_COLUMNS,
    Answer,
    Columns,
    EncodedExample,
    Task,
    TaskMetadata,
    input_batch,
    on_empty,
    prediction_targets,
    without_roles,
)
from firth.utils.errors import UsageError
from firth.utils.rng import Longs

BATCH_SIZE = 64  # of generation: each row needs a key/value cache of full length
MAX_TARGET_TOKENS = 128
ARROW = "\n→ "  # separates source and target in a decoder's sequence


class Seq2SeqTask(Task):
    """Generate a target: with an encoder-decoder, or as a decoder's continuation of the source."""

    name = "seq2seq"
    about = "text to text: translation, summarization"
    head = "language"
    metric = "loss"
    architectures = ("decoder", "encoder-decoder")
    columns = "source, target"
    roles = ("source", "target")
    needs_encoder_decoder = True
    generates = True
    unsupported_reason = (
        "An {architecture} cannot generate text: use a decoder or an encoder-decoder, or join this "
        "encoder to a decoder with --decoder MODEL."
    )
    options = MappingProxyType({"prefix": "str", "arrow": "str", "written": "int"})

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
    ) -> list[Seq2SeqExample]:
        empty = on_empty(labelled)
        return read_translated(path, need_target=labelled, format=format, on_empty=empty, **columns)

    def iter_examples(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
        bad: Bad | None = None,
    ) -> Iterator[Seq2SeqExample]:
        return each_source(path, format=format, bad=bad, **without_roles(columns, "target"))

    def example(self, text: str) -> Seq2SeqExample:
        return Seq2SeqExample(source=text)

    def metadata(
        self, examples: Sequence[Seq2SeqExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        usual = {"prefix": "", "arrow": ARROW, "written": MAX_TARGET_TOKENS}
        if int(options.get("written", 1)) < 1:
            raise UsageError("task.written is the maximum number of target tokens: at least 1.")
        return super().metadata(examples, length, {**usual, **options})

    def encode(
        self, examples: Sequence[Seq2SeqExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        decoder, options = template.config.architecture == "decoder", metadata.options
        source_template = template.source
        sources = source_template.tokenize(
            [f"{options['prefix']}{example.source}" for example in examples]
        )
        targets = template.tokenize([example.target or "" for example in examples])
        arrow = _arrow(options["arrow"], template)
        written = min(int(options["written"]), template.length // 2)
        room = source_template.room() - (written + len(arrow) if decoder else 0)
        if room < 1:
            raise UsageError(
                f"max_length {template.length} leaves no room for the source; increase it."
            )
        items = []
        for example, source, target in zip(examples, sources, targets, strict=True):
            truncated = source.part(0, room)
            row = (
                _prompt(truncated.tokens, arrow, template)
                if decoder
                else source_template.one(truncated)
            )
            target_ids = (
                None if example.target is None else _target(target.part(0, written), template)
            )
            cut = max(0, len(source.tokens) - room) + max(0, len(target.tokens) - written)
            items.append(EncodedExample((row,), target_ids, cut))
        return items

    def batch(
        self, items: Sequence[EncodedExample], metadata: TaskMetadata, config: ModelConfig
    ) -> Batch:
        rows, all_target_ids = [item.rows[0] for item in items], [item.target for item in items]
        if config.architecture == "decoder":
            batch = input_batch(
                [_joined(*pair) for pair in zip(rows, all_target_ids, strict=True)], config
            )
            begins = batch.inputs.starts[:-1] + [len(row.tokens) - 1 for row in rows]
            ranges = [
                np.arange(b, b + len(target_ids))
                for b, target_ids in zip(begins, all_target_ids, strict=True)
            ]
            positions = np.concatenate(ranges)
        else:
            start, keys = (
                np.array([config.decoder_start_token_id or 0]),
                np.zeros(len(rows), dtype=np.uint64),
            )
            target = PackedSequences.join(
                [np.concatenate([start, target_ids[:-1]]) for target_ids in all_target_ids], keys
            )
            batch = replace(input_batch(rows, config), target=target)
            positions = np.arange(len(target.tokens))
        return replace(
            batch,
            predictions=prediction_targets("target", positions, np.concatenate(all_target_ids)),
        )

    def outputs(
        self, network: Transformer, items: Sequence[EncodedExample], metadata: TaskMetadata
    ) -> list[list[int]]:
        """Generate the target tokens."""
        parts = [items[i : i + BATCH_SIZE] for i in range(0, len(items), BATCH_SIZE)]
        return [row for part in parts for row in self._generate(network, part, metadata)]

    def _generate(
        self, network: Transformer, items: Sequence[EncodedExample], metadata: TaskMetadata
    ) -> list[list[int]]:
        prompts = [item.rows[0].tokens.tolist() for item in items]
        config, longest = network.config, max(map(len, prompts))
        room = max_stack_length(network.stack) - (0 if config.has_encoder else longest)
        most = max(1, min(int(metadata.options["written"]) + 2, room))
        return greedy_decode(
            network, prompts, max_new_tokens=most, eos_token_id=config.eos_token_id
        )

    def answers(
        self,
        examples: Sequence[Seq2SeqExample],
        items: Sequence[EncodedExample],
        outputs: Sequence[list[int]],
        metadata: TaskMetadata,
        template: InputTemplate,
    ) -> list[Answer]:
        decode = partial(template.tokenizer.decode, skip_specials=True)
        return [{"text": decode(tokens).strip()} for tokens in outputs]

    def metrics(
        self, examples: Sequence[Seq2SeqExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold = [example.target or "" for example in examples]
        predicted = [answer["text"] for answer in answers]
        return {**translation_metrics(gold, predicted), **rouge_metrics(gold, predicted)}


def _arrow(text: str, template: InputTemplate) -> Longs:
    """Tokenize the separator; one with unknown tokens is replaced by EOS."""
    tokens, end = template.tokenize([text])[0].tokens, template.config.eos_token_id
    unknown = len(tokens) == 0 or template.tokenizer.unknown_id in tokens.tolist()
    return np.array([end]) if unknown and end is not None else tokens


def _prompt(source: Longs, arrow: Longs, template: InputTemplate) -> FramedSequence:
    """Make a decoder's prompt: BOS, source and separator."""
    begin = template.config.bos_token_id
    tokens = np.concatenate([[] if begin is None else [begin], source, arrow]).astype(np.int64)
    return FramedSequence(tokens, np.zeros_like(tokens), 0, 0)


def _target(target: TokenizedText, template: InputTemplate) -> Longs:
    """Add EOS to the target."""
    if template.config.architecture != "decoder" and template.encoder is None:
        return template.one(target).tokens
    end = template.config.eos_token_id
    return np.concatenate([target.tokens, [] if end is None else [end]]).astype(np.int64)


def _joined(row: FramedSequence, target_ids: Longs) -> FramedSequence:
    """Concatenate prompt and target, without the last token, for training a decoder."""
    tokens = np.concatenate([row.tokens, target_ids[:-1]])
    return FramedSequence(tokens, np.zeros_like(tokens), 0, 0)
