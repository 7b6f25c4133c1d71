"""Fine-tuning on running text and dialogues with causal language modelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from firth.data.windows import window_spans
from firth.metrics.bootstrap import Metric
from firth.metrics.language_modelling import perplexity
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import FramedSequence, InputTemplate, TokenizedText
from firth.tasks.readers.columns import TaskFile, place
from firth.tasks.readers.examples import PassageExample
from firth.tasks.readers.running_text import read_passages
from firth.tasks.task import (
    Answer,
    EncodedExample,
    Items,
    Task,
    TaskMetadata,
    prediction_targets,
)
from firth.training.losses import INFERENCE_BATCH_TOKENS, token_losses
from firth.utils.errors import InputError
from firth.utils.rng import Bools, Floats

ASSISTANT = ("assistant", "bot", "gpt", "model", "system reply")  # roles whose turns are trained on


class LanguageModelTask(Task):
    """Next-token prediction; in a dialogue, only on the assistant's turns."""

    name = "lm"
    about = "language modelling: text completion, dialogue"
    head = "language"
    metric = "loss"
    architectures = ("decoder",)
    columns = "plain text · text · messages"
    roles = ("text",)
    token_level = True
    unsupported_reason = (
        "An {architecture} is no causal language model: use a decoder, or continue pre-training "
        "with `firth pretrain --from`."
    )

    def read(self, file: TaskFile) -> Iterator[PassageExample]:
        return read_passages(file)

    def example(self, text: str) -> PassageExample:
        return PassageExample(text=text)

    def check(self, metadata: TaskMetadata, examples: Sequence[PassageExample], path: Path) -> None:
        for example in examples:
            if example.turns and not any(turn.role in ASSISTANT for turn in example.turns):
                roles = ", ".join(dict.fromkeys(turn.role for turn in example.turns))
                raise InputError(
                    f"{place(path, example.line)}: training uses the assistant's turns, and this "
                    f"dialogue has none ({roles:.60})."
                )

    def encode(
        self, examples: Sequence[PassageExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        offsets = any(example.turns for example in examples)
        texts = template.tokenize([example.text for example in examples], offsets=offsets)
        return [
            EncodedExample(*_rows(text, trainable_tokens(example, text), template))
            for example, text in zip(examples, texts, strict=True)
        ]

    def inputs(self, items: Items, config: ModelConfig) -> Batch:
        """Make one batch; a prefix LM reads what precedes the first trained token as its prompt."""
        batch = super().inputs(items, config)
        if not config.prefix_lm:
            return batch
        pairs = [pair for item in items for pair in zip(item.rows, item.target, strict=True)]
        trained = [np.flatnonzero(own[row.first :]) for row, own in pairs]
        first = [int(own[0]) if len(own) else 0 for own in trained]
        begins = [row.first for row, _ in pairs]
        return replace(batch, prefix=np.array(begins, np.int64) + np.array(first, np.int64))

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        learned = np.concatenate([own for item in items for own in item.target])
        last = np.zeros(len(learned), dtype=np.bool_)
        last[batch.inputs.starts[1:] - 1] = True  # has no next token
        positions = np.flatnonzero(np.roll(learned, -1) & ~last)
        return prediction_targets("causal", positions, batch.inputs.tokens[positions + 1])

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the summed loss of each item, in nats, and its number of tokens."""
        batch = self.batch(items, metadata, network.config)
        wanted = batch.predictions["causal"]
        parts = batch.split(INFERENCE_BATCH_TOKENS)
        losses = np.concatenate([token_losses(network, p, p.predictions["causal"]) for p in parts])
        owners = np.repeat(np.arange(len(items)), [item.size for item in items])[wanted.positions]
        sums = np.bincount(owners, losses, minlength=len(items))
        counts = np.bincount(owners, minlength=len(items))
        return list(np.stack([sums, counts], axis=1))

    def loss(self, items: Items, outputs: Sequence[Floats], metadata: TaskMetadata) -> float:
        losses, counts = np.stack(outputs).sum(0)
        return float(losses / max(1.0, counts))

    def answer(
        self, example: PassageExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        loss, count = output
        exp = float(np.exp(min(loss / max(count, 1.0), 700.0)))
        return {"loss": float(loss), "tokens": int(count), "perplexity": exp}

    def metrics(
        self, examples: Sequence[PassageExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        losses = [answer["loss"] for answer in answers]
        return perplexity(losses, [answer["tokens"] for answer in answers])


def trainable_tokens(example: PassageExample, text: TokenizedText) -> Bools:
    """Which tokens of a passage are trained on: all, or the assistant's turns."""
    if not example.turns:
        return np.ones(len(text.tokens), dtype=np.bool_)
    learned, begin = np.zeros(len(text.tokens), dtype=np.bool_), 0
    ends = np.array([end for _, end in text.spans], dtype=np.int64)
    for turn in example.turns:  # one line each, as in `user: Hello.`
        begin += len(f"{turn.role}: ")
        end = begin + len(turn.content) + 1  # with the newline after it
        if turn.role in ASSISTANT:
            learned |= (ends > begin) & (ends <= end)
        begin = end
    return learned


def _rows(
    text: TokenizedText, learned: Bools, template: InputTemplate
) -> tuple[tuple[FramedSequence, ...], tuple[Bools, ...]]:
    """Split a passage into sequences, with flags of the tokens that are trained on."""
    rows, flags, room = [], [], template.room()
    for begin, end in window_spans(len(text.tokens), room, room):
        row = template.one(text.part(begin, end))
        ends = end == len(text.tokens) and (not len(learned) or bool(learned[-1]))
        own = np.full(len(row.tokens), ends)  # EOS too, at the end of the passage
        own[row.first : row.first + end - begin] = learned[begin:end]
        rows.append(row)
        flags.append(own)
    return tuple(rows), tuple(flags)
