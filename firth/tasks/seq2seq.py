"""Sequence-to-sequence tasks: translation, summarization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from firth.data.packing import PackedSequences
from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.inference.generation.token_generation import greedy_decode
from firth.metrics.bootstrap import Metric
from firth.metrics.rouge import rouge_metrics
from firth.metrics.translation import translation_metrics
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig
from firth.models.transformer import max_output_length
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import FramedSequence, InputTemplate, TokenizedText
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import Seq2SeqExample
from firth.tasks.readers.table_files import read_translated
from firth.tasks.task import (
    Answer,
    EncodedExample,
    Items,
    Task,
    TaskMetadata,
    input_batch,
    prediction_targets,
)
from firth.tokenizers.open_vocabulary import extended_pair
from firth.tokenizers.tokenizer import Tokenizer
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
        "encoder to a decoder with `firth finetune --decoder`."
    )
    options = MappingProxyType({"prefix": "str", "arrow": "str", "written": "int"})

    def read(self, file: TaskFile) -> Iterator[Seq2SeqExample]:
        return read_translated(file)

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
            row = source_template.one(truncated)
            if decoder:
                row = _prompt(truncated.tokens, arrow, template)
            target_ids = None
            if example.target is not None:
                target_ids = _target(target.part(0, written), template)
            cut = max(0, len(source.tokens) - room) + max(0, len(target.tokens) - written)
            items.append(EncodedExample((row,), target_ids, cut, detail=template.tokenizer))
        return items

    def batch(self, items: Items, metadata: TaskMetadata, config: ModelConfig) -> Batch:
        if not isinstance(config, PointerGeneratorConfig):
            return super().batch(items, metadata, config)
        items = [_with_copied_ids(item, config) for item in items]
        batch = super().batch(items, metadata, config)
        if not (config.coverage and batch.predictions):
            return batch
        positions = batch.predictions["target"].positions
        coverage = prediction_targets("coverage", positions, np.zeros_like(positions))
        return replace(batch, predictions=batch.predictions | coverage)

    def inputs(self, items: Items, config: ModelConfig) -> Batch:
        if config.architecture == "decoder":
            batch = input_batch([_joined(item.rows[0], item.target) for item in items], config)
            prefix = [config.prefix_length(len(item.rows[0].tokens)) for item in items]
            return replace(batch, prefix=np.array(prefix))
        start = np.array([config.decoder_start_token_id or 0])
        shifted = [np.concatenate([start, item.target[:-1]]) for item in items]
        target = PackedSequences.join(shifted, np.zeros(len(items), dtype=np.uint64))
        return replace(super().inputs(items, config), target=target)

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        targets = [item.target for item in items]
        begins = batch.output.starts[:-1]
        if batch.target is None:  # a decoder predicts the target after its prompt
            begins = begins + np.array([len(item.rows[0].tokens) - 1 for item in items])
        pairs = zip(begins, targets, strict=True)
        positions = [np.arange(begin, begin + len(ids)) for begin, ids in pairs]
        return prediction_targets("target", np.concatenate(positions), np.concatenate(targets))

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[list[int]]:
        """Generate the target tokens."""
        config, found = network.config, []
        for begin in range(0, len(items), BATCH_SIZE):
            prompts = [item.rows[0].tokens.tolist() for item in items[begin : begin + BATCH_SIZE]]
            longest = 0 if config.has_encoder else max(map(len, prompts))
            room = max_output_length(network) - longest
            most = max(1, min(int(metadata.options["written"]) + 2, room))
            found += greedy_decode(
                network, prompts, max_new_tokens=most, eos_token_id=config.eos_token_ids
            )
        return found

    def answer(
        self,
        example: Seq2SeqExample,
        item: EncodedExample,
        output: list[int],
        metadata: TaskMetadata,
    ) -> Answer:
        tokenizer: Tokenizer = item.detail
        return {"text": tokenizer.decode(output, skip_specials=True).strip()}

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
    """Make a decoder's prompt: special tokens, source and separator."""
    begin, _ = prompt_special_tokens(template.config, template.tokenizer)
    tokens = np.concatenate([begin, source, arrow]).astype(np.int64)
    return FramedSequence(tokens, np.zeros_like(tokens), 0, 0)


def _target(target: TokenizedText, template: InputTemplate) -> Longs:
    """Add EOS to the target, unless the special tokens of the tokenizer's family do."""
    tokens, end = target.tokens, template.config.eos_token_id
    if template.config.architecture != "decoder" and template.encoder is None:
        tokens = template.one(target).tokens
        if len(tokens) and tokens[-1] in template.config.eos_token_ids:
            return tokens
    return np.concatenate([tokens, [] if end is None else [end]]).astype(np.int64)


def _with_copied_ids(item: EncodedExample, config: PointerGeneratorConfig) -> EncodedExample:
    """Number the source's unknown words from the end of the vocabulary on, also in the target."""
    [row], target = item.rows, np.zeros(0, np.int64) if item.target is None else item.target
    source, copied = extended_pair(row.tokens, target, config.vocab_size, config.unk_token_id)
    return replace(
        item, rows=(row._replace(tokens=source),), target=None if item.target is None else copied
    )


def _joined(row: FramedSequence, target_ids: Longs) -> FramedSequence:
    """Concatenate prompt and target, without the last token, for training a decoder."""
    tokens = np.concatenate([row.tokens, target_ids[:-1]])
    return FramedSequence(tokens, np.zeros_like(tokens), 0, 0)
