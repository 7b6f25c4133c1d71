"""A text to remember while a task is learned: steps on it, and the loss on it before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from firth.draws import derive, derive_one, uniform
from firth.errors import InputError, MismatchError
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Packed
from firth.objectives.causal import causal
from firth.objectives.denoising import infilling, span_corruption
from firth.objectives.masked import masked
from firth.tasks.frame import Frame, Framed, Text
from firth.tasks.reading.passages import read_passages
from firth.tasks.task import packed
from firth.text.tokenizer import Vocabulary
from firth.training.losses import Trainee

CHOOSE = 80  # what is drawn: the passages of a step
CHECKED = 8192  # tokens on which forgetting is measured


class Replay:
    """Passages of a text, as the model's own pre-training asked about them."""

    def __init__(self, path: str | Path, frame: Frame, size: int, seed: int) -> None:
        if frame.reader is not None:
            raise MismatchError("A model that reads and writes with two vocabularies replays none.")
        self.frame, self.size, self.seed = frame, size, seed
        texts = frame.texts([passage.text for passage in read_passages(path)])
        room = frame.room()
        self.rows = [
            self._row(text.part(begin, begin + room))
            for text in texts
            for begin in range(0, len(text.tokens), room)
        ]
        if not self.rows:
            raise InputError(f"{path} holds no text to replay.")

    def _row(self, text: Text) -> Framed:
        """A passage as pre-training reads it; denoising frames itself what it has damaged."""
        if self.predicts == "denoising":
            return Framed(text.tokens, np.zeros_like(text.tokens), 0, 0)
        return self.frame.one(text)

    @property
    def predicts(self) -> str:
        """What is predicted of the text."""
        kinds = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "denoising"}
        return kinds[self.frame.config.architecture]

    def check(self, network: Transformer) -> None:
        """Refuse a network that cannot be asked."""
        if "language" not in network.heads:
            raise MismatchError(
                "This model has no language head any more, so it can replay no text: begin with "
                "one that was only pre-trained."
            )

    def batch(self, step: int) -> Batch:
        """The passages of one step."""
        draws = uniform(derive(derive_one(self.seed, step), np.arange(self.size)), CHOOSE)
        return self._asked((draws * len(self.rows)).astype(int).tolist(), step)

    def _asked(self, chosen: list[int], step: int) -> Batch:
        stream = packed([self.rows[i] for i in chosen])
        keys = derive(derive_one(self.seed, step), np.arange(len(chosen)))
        return ask(
            Packed(stream.tokens, stream.starts, keys, stream.segments),
            self.predicts,
            self.frame.tokenizer.vocabulary,
        )

    @torch.no_grad()
    def loss(self, network: Transformer) -> float:
        """The language model's loss on the beginning of the text."""
        self.check(network)
        network.eval()
        trainee, sums, count, tokens = Trainee(network), 0.0, 0, 0
        for begin in range(0, len(self.rows), self.size):
            batch = self._asked(list(range(begin, min(len(self.rows), begin + self.size))), 0)
            for term in trainee(batch).values():
                sums, count = sums + float(term.sum), count + term.count
            tokens += batch.tokens
            if tokens > CHECKED:
                break
        return sums / max(1, count)


def ask(stream: Packed, predicts: str, vocabulary: Vocabulary) -> Batch:
    """Passages with something hidden in them."""
    if predicts == "causal":
        return causal(stream)
    if predicts == "masked":
        return masked(stream, vocabulary)
    if len(vocabulary.sentinels):
        return span_corruption(stream, vocabulary)
    return infilling(stream, vocabulary, shuffle=False)  # BART has masks alone
