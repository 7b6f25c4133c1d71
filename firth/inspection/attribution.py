"""Attribution: how much each token of a text contributes to an output of a model.

Two methods. *Integrated gradients* (Sundararajan et al. 2017) follow the output while all tokens
change from a baseline to the text; the scores add up to the difference of the outputs.
*Leave-one-out* (Li et al. 2016, "erasure") computes the output again without each token or word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import tanh
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.data.cleaning import is_invisible
from firth.inference.batching import batch_by_length
from firth.inspection.explained_output import ExplainedOutput, InputRow, replaced_embeddings
from firth.inspection.integrated_gradients import (
    MIN_DIFFERENCE,
    PathIntegral,
    integrated_gradients,
)
from firth.inspection.task_outputs import Text, task_output
from firth.inspection.token_outputs import token_output
from firth.model import Model
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer
from firth.objectives.registry import infill_format
from firth.tokenizers.display import display_tokens
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.figures import (
    Bar,
    BarChart,
    Figure,
    KeyNumber,
    KeyNumbers,
    Paragraph,
    WeightedPiece,
    WeightedText,
)
from firth.utils.rng import Floats

TOLERANCE = 0.01  # of the difference of the outputs, for the sum of integrated gradients
BATCH_TOKENS = {"cpu": 1024, "cuda": 16_384}  # with gradients
MAX_ROWS = 64  # in a batch: each may need the logits of a whole vocabulary
MAX_BARS = 10
LOG_ODDS = "The log-odds of a probability p are ln(p / (1 - p)): 0 is 50 %, 3 is 95 %."


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The contribution of each token and word of a text to an output."""

    method: str  # integrated-gradients or leave-one-out
    output_name: str  # such as "log-odds of the label positive"
    output: float
    baseline: str  # what takes the place of a token: "the token [MASK]", "nothing", …
    baseline_output: float | None = None  # with all tokens replaced; None: leave-one-out
    steps: int = 0  # points at which gradients were computed
    tokens: tuple[str, ...]  # as shown, with special tokens
    scores: tuple[float, ...]  # of each token; 0 for special tokens
    words: tuple[str, ...]  # without special tokens
    word_scores: tuple[float, ...]
    num_truncated: int = 0  # tokens at the end of the text that the model did not read

    @property
    def sum(self) -> float:
        """The sum of the scores."""
        return sum(self.scores)

    @property
    def gap(self) -> float | None:
        """How far the sum is from the output's difference to the baseline, as a fraction of it."""
        if self.baseline_output is None:
            return None
        difference = self.output - self.baseline_output
        return abs(self.sum - difference) / max(abs(difference), MIN_DIFFERENCE)

    @property
    def converged(self) -> bool:
        """Whether the scores add up to the difference of the outputs, within 1 %."""
        return self.gap is None or self.gap <= TOLERANCE

    def values(self) -> dict[str, Any]:
        """Return JSON values; scores of special tokens are 0."""
        return {
            "method": self.method,
            "output_name": self.output_name,
            "output": self.output,
            "baseline": self.baseline,
            "baseline_output": self.baseline_output,
            "sum": self.sum,
            "gap": self.gap,
            "steps": self.steps,
            "tokens": list(self.tokens),
            "scores": list(self.scores),
            "words": list(self.words),
            "word_scores": list(self.word_scores),
            "num_truncated": self.num_truncated,
        }

    def figures(self) -> tuple[Figure, ...]:
        """Return the numbers, the coloured text, the strongest words, and what to beware of."""
        return (*self._warnings(), self._numbers(), self._text(), self._bars())

    def _warnings(self) -> list[Paragraph]:
        warnings = []
        if self.num_truncated:
            warnings.append(f"The text is {self.num_truncated} tokens too long and was cut.")
        if not self.converged:
            warnings.append(
                f"The attributions do not add up: after {self.steps} steps their sum is still "
                f"{self.gap:.1%} of the difference away from it. Read them with care."
            )
        return [Paragraph(text, warning=True) for text in warnings]

    def _numbers(self) -> KeyNumbers:
        rows = [KeyNumber(self._number(self.output), f"{self.output_name}, given the text")]
        if self.baseline_output is not None:
            replaced = f"the same with {self.baseline} in place of every token"
            summed = f"sum of the attributions, {self.gap:.2%} away from the difference of the two"
            rows.append(KeyNumber(self._number(self.baseline_output), replaced))
            rows.append(KeyNumber(f"{self.sum:+.2f}", f"{summed} ({self.steps} steps)"))
        return KeyNumbers(tuple(rows))

    def _number(self, output: float) -> str:
        """Show an output; the log-odds of one prediction also as its probability."""
        single = self.output_name.startswith("log-odds")
        return f"{output:+.2f} ({(1 + tanh(output / 2)) / 2:.1%})" if single else f"{output:+.2f}"

    def _text(self) -> WeightedText:
        title = f"{TITLES[self.method]}: {self.output_name}"
        pieces = map(WeightedPiece, separated(self.tokens), self.scores)
        return WeightedText(title, tuple(pieces), self._legend())

    def _legend(self) -> str:
        if self.baseline_output is not None:
            meaning = "A token's number is its part in the change of the output from the baseline "
            meaning += f"({self.baseline} in place of every token) to the text"
        else:
            how = "without it" if self.baseline == "nothing" else f"with {self.baseline} instead"
            meaning = f"A token's number is the output minus the output {how}"
        legend = f"{meaning}: positive for the output, negative against it."
        return f"{legend} {LOG_ODDS}" if "log-odds" in self.output_name else legend

    def _bars(self) -> BarChart:
        """Return the strongest words, as fractions of the sum of all absolute scores."""
        total = sum(map(abs, self.word_scores)) or 1.0
        order = np.argsort(-np.abs(self.word_scores), kind="stable")[:MAX_BARS]
        bars = tuple(
            Bar(
                f"{'+' if self.word_scores[i] >= 0 else '−'} {self.words[i]}",
                abs(self.word_scores[i]),
            )
            for i in order
        )
        caption = "+ for the output, − against it; as fractions of all absolute scores."
        return BarChart("The words with the largest scores", bars, scale=total, caption=caption)


def attribute(
    model: Model,
    text: Text,
    *,
    target: str | None = None,
    method: str = "integrated-gradients",
) -> Attribution:
    """Compute how much each token of a text contributes to an output of a model.

    The output is the log-odds of what the model predicts, or of `target`: the label of a
    classifier, the answer in a context (`text` is a question and its context), the tag of a word,
    the token in a blank of an encoder, the next token of a decoder, or the first token of an
    encoder-decoder's output; for a regression, the number. `method` is integrated-gradients or
    leave-one-out.

    >>> from firth.model import load
    >>> found = attribute(load("stories-encoder"), "The dog began to [MASK] at the cat.")
    >>> found.converged, len(found.tokens) == len(found.scores)
    (True, True)
    """
    if method not in METHODS:
        raise UsageError(f"The method is {' or '.join(METHODS)}, not {method!r}.")
    with eval_in_float32(model.network):
        return METHODS[method](model, find_output(model, text, target))


def methods_for(model: Model) -> tuple[str, ...]:
    """Return the methods that a model supports: without gradients, only leave-one-out."""
    unsupported = "integrated-gradients" if model.transformer.inference_only else None
    return tuple(method for method in METHODS if method != unsupported)


def explains(model: Model, text: Text) -> bool:
    """Tell whether `attribute` has an output to explain; this costs one prediction."""
    try:
        explained = find_output(model, text)
    except (InputError, MismatchError, UsageError):
        return False
    return _mask_token(model, explained) is not None or not _is_single_word(explained)


def find_output(model: Model, text: Text, target: str | None = None) -> ExplainedOutput:
    """Decide from the model what is explained; `target` names another label, answer or word."""
    if any(map(is_invisible, [text] if isinstance(text, str) else text)):
        raise InputError("The text is empty: there is nothing to explain.")
    if model.config.label_head in model.network.heads:
        found = task_output(model, text, target)
    elif "language" not in model.network.heads:
        raise MismatchError(
            f"{model.source or model.path} has neither the head of a task nor a language head, so "
            "there is no output to explain: fine-tune it first (`firth finetune`), or use a model "
            "saved with its language head."
        )
    elif not isinstance(text, str):
        raise UsageError("This language model reads one text, not two.")
    else:
        found = token_output(model, text, target)
    if not found.is_text.any():
        raise InputError("The text has special tokens only: there is nothing to explain.")
    return found


@contextmanager
def eval_in_float32(network: LanguageNetwork) -> Iterator[None]:
    """Switch a network to eval mode and float32, and restore it afterwards.

    In bfloat16 the scores would not add up: its numbers have three decimal digits.
    """
    with ExitStack() as undo:
        undo.callback(network.train, network.training)
        network.eval()
        for tensor in [*network.parameters(), *network.buffers()]:
            if tensor.dtype in (torch.bfloat16, torch.float16):
                undo.callback(setattr, tensor, "data", tensor.data)
                tensor.data = tensor.data.float()
        yield


# ---- integrated gradients -----------------------------------------------------------------------


def _integrated_gradients(model: Model, explained: ExplainedOutput) -> Attribution:
    network, mask = model.transformer, _mask_token(model, explained)
    if network.inference_only:
        raise MismatchError(
            "A model with int8 weights has no gradients: load it without int8, or use the method "
            "leave-one-out."
        )
    matrix = network.token_embeddings(network.stacks[0]).weight.detach()  # (V, E)
    neutral = matrix[: len(explained.tokenizer)].mean(0) if mask is None else matrix[mask]
    found = token_gradients(network, explained, neutral)
    return _result(
        explained,
        found.scores,
        [float(found.scores[word].sum()) for word in _words(explained)],
        method="integrated-gradients",
        output=found.output,
        baseline_output=found.baseline_output,
        baseline=_replacement(explained, mask, "the mean of all token embeddings"),
        steps=found.steps,
    )


def token_gradients(
    network: Transformer, explained: ExplainedOutput, neutral: Tensor
) -> PathIntegral:
    """Integrate the gradients of an output from a neutral embedding (E,) of the text's tokens.

    Special tokens have their own embedding in the baseline, too.
    """
    row = explained.row
    matrix = network.token_embeddings(network.stacks[0]).weight.detach()  # (V, E)
    inputs = matrix[torch.from_numpy(row.tokens).to(matrix.device)]  # (T, E)
    changed = torch.from_numpy(explained.is_text).to(matrix.device)
    baseline = torch.where(changed[:, None], neutral, inputs)

    def outputs(embeddings: Tensor) -> Tensor:  # (P, T, E) -> (P,)
        with replaced_embeddings(network, embeddings.flatten(0, 1)):
            return explained.outputs(network, [row] * len(embeddings))

    size = _batch_rows(network, row)
    return integrated_gradients(outputs, inputs, baseline, tolerance=TOLERANCE, batch_size=size)


def _batch_rows(network: LanguageNetwork, row: InputRow) -> int:
    tokens = BATCH_TOKENS.get(network.device.type, BATCH_TOKENS["cpu"])
    return min(max(1, tokens // len(row.tokens)), MAX_ROWS)


def _mask_token(model: Model, explained: ExplainedOutput) -> int | None:
    """Return the mask token, if the model has seen it in pre-training."""
    tokenizer, architecture = explained.tokenizer, model.config.architecture
    trained = not model.reads_left_context_only
    if architecture == "encoder-decoder":  # one with sentinels replaces spans (T5)
        trained = not tokenizer.sentinel_ids or infill_format(model.objective) == "whole"
    return tokenizer.special_ids.get("mask") if trained else None


def _replacement(explained: ExplainedOutput, mask: int | None, otherwise: str) -> str:
    if mask is None:
        return otherwise
    return f"the token {explained.tokenizer.backend.id_to_token(mask)}"


# ---- leave-one-out ------------------------------------------------------------------------------


def _leave_one_out(model: Model, explained: ExplainedOutput) -> Attribution:
    mask, words = _mask_token(model, explained), _words(explained)
    places = [*({(i,) for word in words for i in word} | {tuple(word) for word in words})]
    if mask is None and _is_single_word(explained):
        raise UsageError(
            "The method leave-one-out removes each word, and this text is a single one: add words."
        )
    rows = [
        explained.without(place) if mask is None else explained.replaced(place, mask)
        for place in places
    ]
    output, *others = _outputs(model.network, explained, [explained.row, *rows])
    effects = {place: output - other for place, other in zip(places, others, strict=True)}
    scores = [effects.get((i,), 0.0) for i in range(len(explained.row.tokens))]
    return _result(
        explained,
        np.array(scores),
        [effects[tuple(word)] for word in words],
        method="leave-one-out",
        output=output,
        baseline=_replacement(explained, mask, "nothing"),
    )


def _is_single_word(explained: ExplainedOutput) -> bool:
    """Tell whether nothing is left of the input without one of its words."""
    return max(map(len, _words(explained))) == explained.context_length


@torch.no_grad()
def _outputs(
    network: LanguageNetwork, explained: ExplainedOutput, rows: list[InputRow]
) -> list[float]:
    found = [0.0] * len(rows)
    for batch in batch_by_length([(len(row.tokens),) for row in rows]):
        for begin in range(0, len(batch), MAX_ROWS):
            part = batch[begin : begin + MAX_ROWS]
            outputs = explained.outputs(network, [rows[i] for i in part]).tolist()
            for i, output in zip(part, outputs, strict=True):
                found[i] = output
    return found


METHODS: dict[str, Callable[[Model, ExplainedOutput], Attribution]] = {
    "integrated-gradients": _integrated_gradients,
    "leave-one-out": _leave_one_out,
}
TITLES = {"integrated-gradients": "Integrated gradients", "leave-one-out": "Leave-one-out"}


# ---- tokens and words ---------------------------------------------------------------------------


def _words(explained: ExplainedOutput) -> list[list[int]]:
    """Group the tokens of the text to words, as whole-word masking does."""
    vocabulary, ids = explained.tokenizer.vocabulary, explained.row.tokens
    words: list[list[int]] = []
    for i in np.flatnonzero(explained.is_text).tolist():
        follows = bool(words) and words[-1][-1] == i - 1
        if not follows or vocabulary.begins[ids[i]] or vocabulary.ends[ids[i - 1]]:
            words.append([])
        words[-1].append(i)
    return words


def separated(tokens: Sequence[str]) -> list[str]:
    """Put spaces between tokens of WordPiece, whose tokens have none.

    >>> separated(["[CLS]", "play", "##ing"]), separated(["<s>", "·The", "·dog"])
    (['[CLS]', ' play', '##ing'], ['<s>', '·The', '·dog'])
    """
    if any("·" in token for token in tokens):
        return list(tokens)
    return [f" {t}" if i and not t.startswith("##") else t for i, t in enumerate(tokens)]


def _result(
    explained: ExplainedOutput, scores: Floats, word_scores: list[float], **values: Any
) -> Attribution:
    tokenizer, ids = explained.tokenizer, explained.row.tokens
    tokens = display_tokens(tokenizer, ids.tolist())
    words = [
        tokenizer.decode(ids[word].tolist()).strip() or "".join(tokens[i] for i in word)
        for word in _words(explained)
    ]
    return Attribution(
        output_name=explained.name,
        tokens=tuple(tokens),
        scores=tuple(float(score) for score in scores),
        words=tuple(words),
        word_scores=tuple(word_scores),
        num_truncated=explained.num_truncated,
        **values,
    )
