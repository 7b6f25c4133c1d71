"""Replay of pre-training text during fine-tuning, against catastrophic forgetting."""

from __future__ import annotations

import numpy as np
import torch

from firth.data.memory import Source
from firth.data.packing import PackedSequences
from firth.data.windows import window_spans
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch
from firth.objectives.causal import causal, prefix
from firth.objectives.denoising import infilling, span_corruption
from firth.objectives.masked import masked
from firth.tasks.inputs import FramedSequence, InputTemplate, TokenizedText
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.running_text import read_passages
from firth.tasks.task import pack_sequences
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.losses import TrainingModule
from firth.utils.errors import InputError, MismatchError
from firth.utils.rng import derive_key, derive_keys, uniform

CHOOSE = 80  # random stream: the passages of a step
MAX_LOSS_TOKENS = 8192  # on which forgetting is measured


class TextReplay:
    """Batches of a text with the objective of the model's pre-training."""

    def __init__(self, path: Source, template: InputTemplate, size: int, seed: int) -> None:
        if template.encoder is not None:
            raise MismatchError("A model with two tokenizers cannot replay text: remove replay.")
        self.template, self.size, self.seed = template, size, seed
        texts = template.tokenize([passage.text for passage in read_passages(TaskFile(path))])
        room = template.room()
        self.rows = [
            self._row(text.part(*ends))
            for text in texts
            for ends in window_spans(len(text.tokens), room, room)
            if len(text.tokens)
        ]
        if not self.rows:
            raise InputError(f"{path} has no text to replay.")

    def _row(self, text: TokenizedText) -> FramedSequence:
        """Add special tokens, except for denoising, which adds them itself."""
        if self.predicts == "denoising":
            return FramedSequence(text.tokens, np.zeros_like(text.tokens), 0, 0)
        return self.template.one(text)

    @property
    def predicts(self) -> str:
        """The pre-training objective."""
        kinds = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "denoising"}
        config = self.template.config
        return "prefix" if config.prefix_lm else kinds[config.architecture]

    def batch(self, step: int) -> Batch:
        """Sample the batch of one step."""
        draws = uniform(derive_keys(derive_key(self.seed, step), np.arange(self.size)), CHOOSE)
        return self._make_batch((draws * len(self.rows)).astype(int).tolist(), step)

    def _make_batch(self, chosen: list[int], step: int) -> Batch:
        stream = pack_sequences([self.rows[i] for i in chosen])
        keys = derive_keys(derive_key(self.seed, step), np.arange(len(chosen)))
        return make_objective_batch(
            PackedSequences(stream.tokens, stream.starts, keys, stream.segments),
            self.predicts,
            self.template.tokenizer.vocabulary,
        )

    @torch.no_grad()
    def loss(self, network: LanguageNetwork) -> float:
        """Compute the language modelling loss on the beginning of the text."""
        _check_head(network)
        network.eval()
        trainee, sums, count, tokens = TrainingModule(network), 0.0, 0, 0
        for ends in window_spans(len(self.rows), self.size, self.size):
            batch = self._make_batch(list(range(*ends)), 0)
            for term in trainee(batch).values():
                sums, count = sums + float(term.sum), count + term.count
            tokens += batch.tokens
            if tokens > MAX_LOSS_TOKENS:
                break
        return sums / max(1, count)

    @torch.no_grad()
    def row_losses(self, network: LanguageNetwork) -> list[tuple[float, int]]:
        """Compute the sum of losses and the number of predicted tokens of each row."""
        _check_head(network)
        network.eval()
        trainee, found = TrainingModule(network), []
        for i in range(len(self.rows)):
            terms = trainee(self._make_batch([i], i)).values()
            found.append(
                (sum(float(term.sum) for term in terms), sum(term.count for term in terms))
            )
        return found


def _check_head(network: LanguageNetwork) -> None:
    if "language" not in network.heads:
        raise MismatchError(
            "This model has no language head, which replay needs: use a model that was only "
            "pre-trained."
        )


def make_objective_batch(stream: PackedSequences, predicts: str, vocabulary: Vocabulary) -> Batch:
    """Apply the pre-training objective to packed passages."""
    if predicts in ("causal", "prefix"):
        return {"causal": causal, "prefix": prefix}[predicts](stream)
    if predicts == "masked":
        return masked(stream, vocabulary)
    if len(vocabulary.sentinels):
        return span_corruption(stream, vocabulary)
    return infilling(stream, vocabulary, shuffle=False)  # BART has no sentinels
