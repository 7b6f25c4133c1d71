"""Tasks of heads that were trained in pre-training: sentence pairs (NSP, SOP), replaced tokens.

They need no fine-tuning; `firth predict` and `firth evaluate` use the heads as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, ClassVar, NamedTuple

import numpy as np

from firth.data.windows import window_spans
from firth.metrics.bootstrap import Metric
from firth.metrics.entities import detection_metrics, token_accuracy
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.classify import ClassifyTask, PairTask
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import LabelledExample
from firth.tasks.task import Answer, EncodedExample, Items, Task, TaskMetadata, prediction_targets
from firth.training.losses import hidden_states, pair_logits, replaced_logits
from firth.utils.rng import Bools, Floats, Longs


class NextSentenceTask(PairTask):
    """Whether the second text follows the first (BERT; Devlin et al. 2019, section 3.1)."""

    name = "next-sentence"
    about = "does the second text follow the first? the head of BERT's pre-training (NSP)"
    head = "pair"
    columns = "text_a, text_b, label (is_next, not_next)"
    architectures = ("encoder",)
    prediction: ClassVar[str] = "next sentence"  # of its objective
    classes: ClassVar[tuple[str, str]] = ("is_next", "not_next")  # in the order of the head

    def read(self, file: TaskFile) -> Iterator[LabelledExample]:
        """Yield pairs; 0 and 1 are other names of the labels, as in `transformers`."""
        numbers = dict(zip("01", self.classes, strict=True))
        for example in super().read(file):
            yield replace(example, label=numbers.get(str(example.label), example.label))

    def metadata(
        self, examples: Sequence[LabelledExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        return replace(super().metadata((), length, options), labels=self.classes)

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability of each label."""
        batch = self.inputs(items, network.config)
        logits = pair_logits(network, hidden_states(network, batch), batch.inputs.starts[:-1])
        return list(logits.softmax(-1).double().cpu().numpy())


class SentenceOrderTask(NextSentenceTask):
    """Whether two consecutive texts are swapped (ALBERT; Lan et al. 2020, section 3.1)."""

    name = "sentence-order"
    about = "are two consecutive texts in their order? the head of ALBERT's pre-training (SOP)"
    columns = "text_a, text_b, label (in_order, swapped)"
    prediction = "sentence order"
    classes = ("in_order", "swapped")


class TextTokens(NamedTuple):
    """The tokens of a text as strings, and how many of them each sequence has."""

    tokens: list[str]
    sizes: list[int]


class ReplacedTask(Task):
    """Which tokens of a text were replaced (ELECTRA's discriminator; Clark et al. 2020)."""

    name = "replaced"
    about = "which tokens of a text were replaced? ELECTRA's discriminator"
    head = "replaced"
    metric = "f1"
    columns = "text, original (the text before tokens were replaced)"
    roles = ("text", "original")
    architectures = ("encoder",)
    token_level = True
    prediction: ClassVar[str] = "replaced"

    def read(self, file: TaskFile) -> Iterator[LabelledExample]:
        """Yield texts, with the original text as the label."""
        columns = {role: name for role, name in file.columns.items() if role != "original"}
        columns["label"] = file.columns.get("original", "original")
        return ClassifyTask().read(replace(file, columns=columns))

    def example(self, text: str) -> LabelledExample:
        return LabelledExample(text=text)

    def strata(self, examples: Sequence[LabelledExample]) -> list[Any]:
        return [None] * len(examples)

    def encode(
        self, examples: Sequence[LabelledExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        texts = template.tokenize([example.text for example in examples], offsets=True)
        originals = template.tokenize([str(example.label or "") for example in examples])
        items, room = [], template.room()
        for example, text, original in zip(examples, texts, originals, strict=True):
            windows = list(window_spans(len(text.tokens), room, room))
            rows = tuple(template.one(text.part(begin, end)) for begin, end in windows)
            target = None
            if example.label is not None:
                target = replaced_tokens(text.tokens, original.tokens)
            tokens = [example.text[begin:end] for begin, end in text.spans]
            detail = TextTokens(tokens, [end - begin for begin, end in windows])
            items.append(EncodedExample(rows, target, detail=detail))
        return items

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        wanted = np.concatenate([item.target for item in items])
        return prediction_targets(self.prediction, self._positions(items, batch), wanted)

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability that each token was replaced."""
        batch = self.inputs(items, network.config)
        hidden = hidden_states(network, batch)
        logits = replaced_logits(network, hidden, self._positions(items, batch))
        probs = logits.sigmoid().double().cpu().numpy()
        return np.split(probs, np.cumsum([len(item.detail.tokens) for item in items])[:-1])

    def _positions(self, items: Items, batch: Batch) -> Longs:
        """Return the positions of all text tokens, without special tokens, in a batch."""
        starts = iter(batch.inputs.starts.tolist())
        found = [
            next(starts) + row.first + np.arange(size)
            for item in items
            for row, size in zip(item.rows, item.detail.sizes, strict=True)
        ]
        return np.concatenate(found)

    def answer(
        self, example: LabelledExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        pairs = zip(item.detail.tokens, output, strict=True)
        answer: Answer = {
            "replaced": [token for token, prob in pairs if prob > 0.5],
            "tokens": item.detail.tokens,
            "scores": output.tolist(),
        }
        return answer if item.target is None else {**answer, "gold": item.target.tolist()}

    def metrics(
        self, examples: Sequence[LabelledExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold = [answer["gold"] for answer in answers]
        predicted = [[score > 0.5 for score in answer["scores"]] for answer in answers]
        return {**detection_metrics(gold, predicted), **token_accuracy(gold, predicted)}


def replaced_tokens(tokens: Longs, original: Longs) -> Bools:
    """Tell which tokens are not those of the original text, which may have more or fewer.

    >>> replaced_tokens(np.array([5, 6, 9, 8]), np.array([5, 6, 7, 7, 8])).tolist()
    [False, False, True, False]
    """
    found = np.ones(len(tokens), dtype=np.bool_)
    matcher = SequenceMatcher(None, tokens.tolist(), original.tolist(), autojunk=False)
    for begin, _, size in matcher.get_matching_blocks():
        found[begin : begin + size] = False
    return found
