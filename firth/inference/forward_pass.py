"""The values of one forward pass: token ids, embeddings, layers, logits, probabilities and loss.

T  tokens     E  embedding size     W  hidden size     P  predicted positions     V  vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import torch
from torch import Tensor

from firth.inference.batching import nan_error
from firth.inference.scoring.token_scoring import ScoringRequest, check_language_head
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer

FIRST_VALUES = 4  # of each vector, in JSON and in a terminal


@dataclass(frozen=True, kw_only=True)
class TokenProbability:
    """A token of the vocabulary with its logit, softmax of the logits, and -log of that."""

    token: str  # as in the vocabulary
    id: int
    logit: float
    probability: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class StackValues:
    """The values of one stack: the encoder or the decoder."""

    name: str
    attention: str  # bidirectional, causal or prefix
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    position: int  # the token whose vectors a terminal shows
    token_embeddings: Tensor  # (T, E) rows of the embedding matrix
    hidden_states: Tensor  # (layers + 1, T, W) the input of the first layer, each layer's output

    def values(self) -> dict[str, Any]:
        """Return JSON values: of each vector its norm and its first numbers."""
        names = ("name", "attention", "ids", "tokens", "position")
        return {
            **{name: getattr(self, name) for name in names},
            "token_embeddings": _matrix(self.token_embeddings),
            "layers": [_matrix(layer) for layer in self.hidden_states],
        }


@dataclass(frozen=True, kw_only=True)
class PositionPrediction:
    """The prediction at one position of the last stack."""

    position: int
    logits: Tensor  # (V,)
    log_sum_exp: float  # of the logits: P(token) = exp(logit - log_sum_exp)
    candidates: tuple[TokenProbability, ...]  # the most probable tokens, best first
    target: TokenProbability | None  # the right token, if it is known

    def values(self) -> dict[str, Any]:
        """Return JSON values, with the logits of the candidates and the target only."""
        target = None if self.target is None else asdict(self.target)
        return {
            "position": self.position,
            "logits": {"shape": list(self.logits.shape), "log_sum_exp": self.log_sum_exp},
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "target": target,
        }


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """All values of one forward pass on a text."""

    text: str
    answer: tuple[str, ...]  # the words whose tokens are the targets; none: the model's own output
    stacks: tuple[StackValues, ...]  # encoder, decoder, or both
    predictions: tuple[PositionPrediction, ...]

    @property
    def loss(self) -> float | None:
        """The cross-entropy: the mean loss of the targets; None without targets."""
        losses = [one.target.loss for one in self.predictions if one.target is not None]
        return sum(losses) / len(losses) if losses else None

    def values(self) -> dict[str, Any]:
        """Return all values for JSON."""
        return {
            "text": self.text,
            "answer": list(self.answer),
            "stacks": [stack.values() for stack in self.stacks],
            "predictions": [one.values() for one in self.predictions],
            "loss": self.loss,
        }


@torch.no_grad()
def run_forward_pass(
    network: Transformer,
    tokenizer: Tokenizer,
    request: ScoringRequest,
    *,
    encoder_tokenizer: Tokenizer | None = None,
    bidirectional: bool = False,
    text: str = "",
    answer: Sequence[str] = (),
    top: int = 5,
) -> ForwardPass:
    """Run a network on the tokens of a request, and keep the values of all layers.

    Positions of the request without a target are predicted too, but have no loss.
    """
    if request.positions:
        check_language_head(network)
    stacks, inputs = list[StackValues](), dict[str, Any]()
    if request.source:
        source = Mask([len(request.source)], device=network.device)
        names = encoder_tokenizer or tokenizer
        position = _blank_position(names, request.source)
        stack, memory = run_stack(network, names, request.source, source, position)
        stacks, inputs = [stack], {"memory": memory, "memory_mask": source}
    prefix = None if bidirectional else [request.prefix]
    mask = Mask([len(request.tokens)], prefix=prefix, device=network.device)
    position = _blank_position(tokenizer, request.tokens)
    if request.positions and not request.source:
        position = request.positions[0]
    stack, hidden = run_stack(network, tokenizer, request.tokens, mask, position, **inputs)
    return ForwardPass(
        text=text,
        answer=tuple(answer),
        stacks=(*stacks, stack),
        predictions=_predictions(network, tokenizer, hidden, request, top),
    )


ATTENTION = {"full": "bidirectional", "causal": "causal", "prefix": "prefix"}


def run_stack(
    network: Transformer,
    tokenizer: Tokenizer,
    ids: tuple[int, ...],
    mask: Mask,
    position: int,
    **inputs: Any,
) -> tuple[StackValues, Tensor]:
    """Run the decoder if there is an encoder's output (`memory`), else the first stack."""
    decodes = "memory" in inputs
    stack, run = (network.stack, network) if decodes else (network.stacks[0], network.encode)
    tokens, layers = torch.tensor(ids, device=network.device), list[Tensor]()
    hidden = run(tokens, mask, layers=layers, **inputs)  # (T, W)
    values = StackValues(
        name="encoder" if stack is network.encoder else "decoder",
        attention=ATTENTION[mask.pattern],
        ids=ids,
        tokens=tuple(str(tokenizer.backend.id_to_token(id)) for id in ids),
        position=position,
        token_embeddings=network.token_embeddings(stack)(tokens),
        hidden_states=torch.stack(layers),
    )
    return values, hidden


def _blank_position(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Return the position of the first blank, or else of the last token."""
    marks = {*tokenizer.sentinel_ids, tokenizer.special_ids.get("mask")}
    return next((i for i, id in enumerate(ids) if id in marks), len(ids) - 1)


def _predictions(
    network: Transformer, tokenizer: Tokenizer, hidden: Tensor, request: ScoringRequest, top: int
) -> tuple[PositionPrediction, ...]:
    found = []
    for i, position in enumerate(request.positions):
        logits = network.logits(hidden[position : position + 1])[0].double()  # (V,)
        log_sum_exp = float(logits.logsumexp(-1))
        if log_sum_exp != log_sum_exp:
            raise nan_error()
        best = logits.topk(min(top, len(logits))).indices.tolist()
        targets = [request.targets[i]] if i < len(request.targets) else []
        tokens = [
            _token_probability(tokenizer, id, float(logits[id]), log_sum_exp)
            for id in (*best, *targets)
        ]
        one = PositionPrediction(
            position=position,
            logits=logits,
            log_sum_exp=log_sum_exp,
            candidates=tuple(tokens[: len(best)]),
            target=tokens[-1] if targets else None,
        )
        found.append(one)
    return tuple(found)


def _token_probability(
    tokenizer: Tokenizer, id: int, logit: float, log_sum_exp: float
) -> TokenProbability:
    log_prob = logit - log_sum_exp
    return TokenProbability(
        token=str(tokenizer.backend.id_to_token(id)),
        id=id,
        logit=logit,
        probability=exp(log_prob),
        loss=-log_prob,
    )


def _matrix(rows: Tensor) -> dict[str, Any]:
    """Return the shape of a matrix, and the norm and first numbers of each row."""
    return {
        "shape": list(rows.shape),
        "norms": rows.double().norm(dim=-1).tolist(),
        "first_values": rows[:, :FIRST_VALUES].double().tolist(),
    }
