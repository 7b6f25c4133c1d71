"""Terminal output of `--explain`: one forward pass from the tokens to the loss, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import new_table
from firth.cli.views.tokenizers import readable

if TYPE_CHECKING:  # these need torch
    from torch import Tensor

    from firth.inference.forward_pass import (
        ForwardPass,
        PositionPrediction,
        StackValues,
        TokenProbability,
    )
    from firth.inference.text_model import TextModel
    from firth.models.transformer_config import TransformerConfig
    from firth.tokenizers.tokenizer import Tokenizer

VALUES = 4  # numbers shown of a vector
MAX_ROWS = 16  # tokens up to which all are shown
NEAR = 3  # else: tokens at both ends, and around the predicted position
MAX_DETAILED = 3  # positions whose softmax is worked out
ORDER = {
    "learned": "a learned vector for each position is added",
    "sinusoidal": "sine and cosine values of each position are added",
    "rotary": "rotary position embeddings rotate queries and keys in each attention layer",
    "bias": "each attention layer adds a learned number for the distance of two tokens",
    "disentangled": "each attention layer also compares the distances of tokens",
    "none": "the causal attention mask gives the only hint",
}
MARKS = {
    "##": "A token with ## continues the word before it.",
    "Ġ": "Ġ is the space before a word.",
    "Ċ": "Ċ is a line break.",
    "▁": "▁ is the space before a word.",
    "</w>": "</w> is the end of a word.",
}
ATTENTION = {
    "bidirectional": "each token attends to all tokens, on its left and on its right",
    "causal": "each token attends to itself and to the tokens before it, never to later ones",
    "prefix": "prompt tokens attend to the whole prompt, later tokens to the tokens before them",
}
GENERATED = Text("\nGeneration. ", "bold").append(
    "A token is chosen and appended to the text, and the next one is predicted in the same way. "
    "Its loss is -log P.",
    "not bold",
)


def explained(found: ForwardPass, model: TextModel) -> Iterator[RenderableType]:
    """Show all values of a forward pass, each step with a sentence."""
    numbers, several = count(1), len(found.stacks) > 1
    tokenizers = [model.require_tokenizer()] * len(found.stacks)
    configs = [model.transformer.config] * len(found.stacks)
    if several:
        tokenizers[0] = model.encoder_tokenizer or tokenizers[0]
        configs[0] = configs[0].input_config
    for stack, config, tokenizer in zip(found.stacks, configs, tokenizers, strict=True):
        where = f" of the {stack.name}" if several else ""
        yield _title(next(numbers), f"Tokens{where}", _tokens_sentence(stack, several, found))
        yield _tokens(stack, tokenizer)
        yield _title(next(numbers), f"Embeddings{where}", _embedding_sentence(stack, config))
        yield _title(next(numbers), f"Layers{where}", _layers_sentence(stack, several))
        yield _layers(stack, final_norm=config.norm_position != "post")
    last, tokenizer = found.stacks[-1], tokenizers[-1]
    size = len(found.predictions[0].logits)
    yield _title(next(numbers), "Logits and softmax", _softmax_sentence(size, configs[-1]))
    for prediction in found.predictions[:MAX_DETAILED]:
        yield from _softmax(prediction, last, tokenizer)
    if len(found.predictions) > MAX_DETAILED:
        rest = len(found.predictions) - MAX_DETAILED
        yield Text(f"… and {rest} more positions in the same way.", "dim")
    if found.loss is not None:
        yield from _loss(next(numbers), found, tokenizer)
    else:
        yield Text("\nAdd --answer with the right word to see its loss.", "dim")


def _title(number: int, name: str, sentence: str) -> Text:
    return Text(f"\n{number}. {name}. ", "bold").append(sentence, "not bold")


# ---- tokens, embeddings and layers --------------------------------------------------------------


def _tokens_sentence(stack: StackValues, several: bool, found: ForwardPass) -> str:
    if several and stack.name == "decoder":
        what = "the answer" if found.answer else "the output so far"
        return f"The decoder reads its start token and {what}, and predicts each next token."
    joined = "".join(stack.tokens)
    notes = [note for mark, note in MARKS.items() if mark in joined]
    return " ".join(
        ["The text is split into tokens of the vocabulary; each has a number, its id.", *notes]
    )


def _tokens(stack: StackValues, tokenizer: Tokenizer) -> Table:
    size = stack.token_embeddings.shape[-1]
    title = f"token embedding (first {min(VALUES, size)} of {size:,} numbers)"
    rows, before = list[list[RenderableType]](), -1
    for i in _shown_rows(len(stack.ids), stack.position):
        if i - 1 != before:
            rows.append(["…"] * 4)
        before, style = i, "bold" if i == stack.position else ""
        token = Text(readable(tokenizer.kind, stack.tokens[i]), style)
        rows.append([str(i), token, str(stack.ids[i]), _numbers(stack.token_embeddings[i])])
    return new_table("position", "token", "id", title, rows=rows, left=(1, 3), plain=True)


def _shown_rows(length: int, position: int) -> list[int]:
    """Return the positions to show: all, or those at the ends and near a position.

    >>> _shown_rows(3, 1), _shown_rows(99, 50)
    ([0, 1, 2], [0, 1, 2, 47, 48, 49, 50, 51, 52, 53, 96, 97, 98])
    """
    if length <= MAX_ROWS:
        return list(range(length))
    ends = {*range(NEAR), *range(length - NEAR, length)}
    return sorted(ends | {i for i in range(length) if abs(i - position) <= NEAR})


def _embedding_sentence(stack: StackValues, config: TransformerConfig) -> str:
    order = config.position_embedding
    if order == "none":
        order = config.relative_attention
    segments = ", and one for the segment (sentence A or B)" if config.num_segments else ""
    norm = " The result is normalized before the first layer." if config.embedding_norm else ""
    return (
        "Each id selects a row of the embedding matrix, a vector of numbers that were learned: "
        f"shape {_shape(stack.token_embeddings)}, tokens × embedding size. For the order of the "
        f"words, {ORDER[order]}{segments}.{norm}"
    )


def _layers_sentence(stack: StackValues, several: bool) -> str:
    cross = ", and to all outputs of the encoder" if several and stack.name == "decoder" else ""
    return (
        f"In each of the {len(stack.hidden_states) - 1} layers, {ATTENTION[stack.attention]}"
        f"{cross}; then a feed-forward network changes each vector. The table shows the vector of "
        f"position {stack.position} after each layer, and its length (norm)."
    )


def _layers(stack: StackValues, *, final_norm: bool) -> Table:
    last = len(stack.hidden_states) - 1
    size = stack.hidden_states.shape[-1]
    title = f"vector at position {stack.position} (first {min(VALUES, size)} of {size:,} numbers)"
    rows = [
        [
            "input" if i == 0 else f"{i}, final norm" if final_norm and i == last else str(i),
            _shape(layer),
            f"{float(layer[stack.position].double().norm()):.2f}",
            _numbers(layer[stack.position]),
        ]
        for i, layer in enumerate(stack.hidden_states)
    ]
    return new_table("layer", "shape", "norm", title, rows=rows, left=(0, 1, 3), plain=True)


# ---- predictions --------------------------------------------------------------------------------


def _softmax_sentence(size: int, config: TransformerConfig) -> str:
    head = "passes one more feed-forward layer and " if config.head_transform else ""
    matrix = "embedding matrix" if config.tie_embeddings else "output matrix"
    return (
        f"The last vector {head}is multiplied by the {matrix}: one number, the logit, for each of "
        f"the {size:,} tokens of the vocabulary, shape ({size},). Softmax turns logits into "
        "probabilities, which sum to 1: P = exp(logit) / sum of all exp(logit)."
    )


def _softmax(
    prediction: PositionPrediction, stack: StackValues, tokenizer: Tokenizer
) -> Iterator[RenderableType]:
    shown = list(prediction.candidates)
    if prediction.target is not None and prediction.target not in shown:
        shown.append(prediction.target)
    rows = [
        [_name(one, tokenizer), str(one.id), f"{one.logit:.3f}", _decimal(one.probability)]
        for one in shown
    ]
    read = readable(tokenizer.kind, stack.tokens[prediction.position])
    title = f"at position {prediction.position}, {read}"
    yield new_table(title, "id", "logit", "P", rows=rows, plain=True)
    best, total = prediction.candidates[0], prediction.log_sum_exp
    digits = 3 if best.probability < 0.99 else 6
    logit, sum_, gap = (f"{x:.{digits}f}" for x in (best.logit, total, best.logit - total))
    yield Text(
        f"P({_name(best, tokenizer)}) = exp({logit}) / sum of all exp(logit) = "
        f"exp({logit}) / exp({sum_}) = exp({gap}) = {_decimal(best.probability)}"
    )


def _loss(number: int, found: ForwardPass, tokenizer: Tokenizer) -> Iterator[RenderableType]:
    of = "right" if found.answer else "model's own"
    targets = [one.target for one in found.predictions if one.target is not None]
    yield _title(
        number,
        "Loss",
        f"-log P of the {of} token (cross-entropy, natural logarithm): 0 if P is 1, and larger the "
        "less probable the token is. Training changes the weights so that it falls.",
    )
    rows = [
        [_name(one, tokenizer), f"-log {_decimal(one.probability)}", f"{one.loss:.4f}"]
        for one in targets
    ]
    yield new_table("token", "-log P", "loss", rows=rows, plain=True)
    if len(targets) > 1:
        total = sum(one.loss for one in targets)
        yield Text(f"sum {total:.4f}; mean {found.loss:.4f}: the cross-entropy of these tokens")


def _decimal(probability: float) -> str:
    """Format a probability with at least two digits that are not zero.

    >>> _decimal(0.73215), _decimal(0.000042)
    ('0.7321', '4.2e-05')
    """
    return f"{probability:.4f}" if probability >= 0.001 else f"{probability:.2g}"


def _name(one: TokenProbability, tokenizer: Tokenizer) -> str:
    return readable(tokenizer.kind, one.token)


def _numbers(vector: Tensor) -> str:
    more = " …" if len(vector) > VALUES else ""
    return " ".join(f"{value:7.3f}" for value in vector[:VALUES].tolist()) + more


def _shape(values: Tensor) -> str:
    return str(tuple(values.shape))
