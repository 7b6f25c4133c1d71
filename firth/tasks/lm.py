"""Going on with a text: completion and dialogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from firth.draws import Bools, Floats
from firth.errors import InputError
from firth.metrics.bootstrap import Figure
from firth.metrics.labels import perplexity
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.frame import Frame, Framed, Text
from firth.tasks.reading.columns import place
from firth.tasks.reading.examples import Passage
from firth.tasks.reading.passages import read_passages
from firth.tasks.task import NONE, Answer, Columns, Facts, Item, Task, asked, on_empty, reading
from firth.text.readers import Bad
from firth.training.losses import AT_ONCE, token_losses

ASSISTANT = ("assistant", "bot", "gpt", "model", "system reply")  # whose turns are learned


class Continue(Task):
    """Every token from those before it; in a dialogue, only what the assistant says is learned."""

    name = "lm"
    about = "going on with a text: completion; answering in a dialogue"
    head = "language"
    metric = "loss"
    architectures = ("decoder",)
    columns = "plain text · text · messages"
    roles = ("text",)
    tokenwise = True
    why = (
        "An {architecture} cannot go on with a text one token at a time; that takes a decoder. To "
        "learn more text, use `firth pretrain --from`."
    )

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Passage]:
        return list(read_passages(path, format=format, on_empty=on_empty(labelled), **columns))

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Passage]:
        return read_passages(path, format=format, on_empty="keep", bad=bad, **columns)

    def example(self, text: str) -> Passage:
        return Passage(text=text)

    def check(self, facts: Facts, examples: Sequence[Passage], path: Path) -> None:
        for example in examples:
            if example.turns and not any(turn.role in ASSISTANT for turn in example.turns):
                roles = ", ".join(dict.fromkeys(turn.role for turn in example.turns))
                raise InputError(
                    f"{place(path, example.line)}: only what an assistant says is learned, and in "
                    f"this dialogue there is none ({roles:.60})."
                )

    def encode(self, examples: Sequence[Passage], frame: Frame, facts: Facts) -> list[Item]:
        places = any(example.turns for example in examples)
        texts = frame.texts([example.text for example in examples], places=places)
        return [
            Item(*_rows(text, learned_tokens(example, text), frame))
            for example, text in zip(examples, texts, strict=True)
        ]

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        batch = reading([row for item in items for row in item.rows], config)
        learned = np.concatenate([own for item in items for own in item.target])
        last = np.zeros(len(learned), dtype=np.bool_)
        last[batch.inputs.starts[1:] - 1] = True  # nothing comes behind it
        positions = np.flatnonzero(np.roll(learned, -1) & ~last)
        wanted = asked("causal", positions, batch.inputs.tokens[positions + 1])
        return replace(batch, predictions=wanted)

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Floats]:
        """The loss of each item, in nats, and how many tokens it is of."""
        batch = self.batch(items, facts, network.config)
        wanted = batch.predictions["causal"]
        parts = batch.split(AT_ONCE)
        losses = np.concatenate([token_losses(network, p, p.predictions["causal"]) for p in parts])
        owners = np.repeat(np.arange(len(items)), [item.size for item in items])[wanted.positions]
        sums = np.bincount(owners, losses, minlength=len(items))
        counts = np.bincount(owners, minlength=len(items))
        return list(np.stack([sums, counts], axis=1))

    def loss(self, items: Sequence[Item], outputs: Sequence[Floats], facts: Facts) -> float:
        losses, counts = np.stack(outputs).sum(0)
        return float(losses / max(1.0, counts))

    def answers(
        self,
        examples: Sequence[Passage],
        items: Sequence[Item],
        outputs: Sequence[Floats],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        return [
            {"loss": float(loss), "tokens": int(count), "perplexity": _exp(loss, count)}
            for loss, count in outputs
        ]

    def figures(
        self, examples: Sequence[Passage], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        losses = [answer["loss"] for answer in answers]
        return perplexity(losses, [answer["tokens"] for answer in answers])


def _exp(loss: float, count: float) -> float:
    return float(np.exp(min(loss / max(count, 1.0), 700.0)))


def learned_tokens(example: Passage, text: Text) -> Bools:
    """Which tokens of a passage are learned."""
    if not example.turns:
        return np.ones(len(text.tokens), dtype=np.bool_)
    learned, begin = np.zeros(len(text.tokens), dtype=np.bool_), 0
    ends = np.array([end for _, end in text.spans], dtype=np.int64)
    for turn in example.turns:  # one line each, as in `user: Hello.`
        begin += len(f"{turn.role}: ")
        end = begin + len(turn.content) + 1  # and the line's end behind it
        if turn.role in ASSISTANT:
            learned |= (ends > begin) & (ends <= end)
        begin = end
    return learned


def _rows(text: Text, learned: Bools, frame: Frame) -> tuple[tuple[Framed, ...], tuple[Bools, ...]]:
    """A passage in sequences that fit, and which of their tokens are learned."""
    rows, flags, room = [], [], frame.room()
    for begin in range(0, max(1, len(text.tokens)), room):
        part = text.part(begin, begin + room)
        row = frame.one(part)
        ends = begin + room >= len(text.tokens) and (not len(learned) or bool(learned[-1]))
        own = np.full(len(row.tokens), ends)  # the end token, too, where the passage really ends
        own[row.first : row.first + len(part.tokens)] = learned[begin : begin + room]
        rows.append(row)
        flags.append(own)
    return tuple(rows), tuple(flags)
