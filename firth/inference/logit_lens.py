"""The logit lens: what each layer would predict, through the model's final norm and language head.

nostalgebraist 2020, "interpreting GPT: the logit lens". The last layer's predictions are the
model's own.

L  layers     T  tokens     C  candidates     V  vocabulary size     W  hidden size
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.batching import nan_error
from firth.inference.scoring.token_scoring import ScoringRequest, check_language_head
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.display import display_tokens
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError
from firth.utils.figures import Figure, Heatmap, LineChart, Point
from firth.utils.rng import Floats, Longs

MAX_LOGITS = 1 << 22  # in memory at a time
MIN_LOG_PROB = -1e4  # exp of it is 0
MAX_COLUMNS = 48  # tokens in the figure
MAX_LINES = 4  # positions in the line chart
NOTES = {
    "next": "A cell is the most probable next token.",
    "token": "A cell is the most probable token at that position. An encoder reads the tokens that "
    "are not masked, so predictions matter at mask tokens.",
}


class LensPrediction(NamedTuple):
    """A layer's prediction at one position."""

    candidates: tuple[tuple[str, float], ...]  # tokens and probabilities, best first
    target: str  # the right token; if it is unknown, the model's own prediction
    probability: float  # of the target
    rank: int  # of the target; 1: the most probable
    entropy: float  # of all probabilities, in nats


@dataclass(frozen=True, kw_only=True)
class LogitLens:
    """What each layer predicts at each position; layer 0 is the embeddings.

    The first dimension of arrays is the layer, the second the position, counted from `first`.
    """

    text: str
    first: int  # the position of the first row: 0, unless `max_positions` is less than `length`
    length: int  # tokens of the text
    predicts: str  # "next": the next token; "token": the token at the position itself
    tokens: tuple[str, ...]  # (T,) that the network reads; of the decoder, if there are two stacks
    ids: tuple[int, ...]  # (T,)
    source: tuple[str, ...]  # the encoder's tokens of an encoder-decoder
    targets: tuple[int, ...]  # (T,) right tokens; where unknown, the model's own prediction
    known: tuple[bool, ...]  # (T,) whether the right token is known
    candidates: Longs  # (L + 1, T, C) the most probable tokens, best first
    probabilities: Floats  # (L + 1, T, C) of the candidates
    target_probabilities: Floats  # (L + 1, T)
    target_ranks: Longs  # (L + 1, T) 1: the most probable
    entropies: Floats  # (L + 1, T) in nats
    names: dict[int, str]  # the readable text of all tokens above

    @property
    def num_layers(self) -> int:
        """The number of layers, without the embeddings."""
        return len(self.candidates) - 1

    def prediction(self, layer: int, position: int) -> LensPrediction:
        """Return a layer's prediction at one position; layer 0 is the embeddings."""
        at = layer, position
        tokens = [self.names[id] for id in self.candidates[at].tolist()]
        return LensPrediction(
            candidates=tuple(zip(tokens, self.probabilities[at].tolist(), strict=True)),
            target=self.names[self.targets[position]],
            probability=float(self.target_probabilities[at]),
            rank=int(self.target_ranks[at]),
            entropy=float(self.entropies[at]),
        )

    def values(self) -> dict[str, Any]:
        """Return JSON values: the predictions of each layer at each position."""
        positions = range(len(self.tokens))
        rows = [
            {"layer": layer, "predictions": [self._values(layer, i) for i in positions]}
            for layer in range(self.num_layers + 1)
        ]
        targets = [self.names[id] for id in self.targets]
        return {
            "text": self.text,
            "predicts": self.predicts,
            "first": self.first,
            "length": self.length,
            "tokens": list(self.tokens),
            "ids": list(self.ids),
            **({"source": list(self.source)} if self.source else {}),
            "targets": targets,
            "known": list(self.known),
            "layers": rows,
        }

    def _values(self, layer: int, position: int) -> dict[str, Any]:
        found = self.prediction(layer, position)
        candidates = [{"token": token, "probability": p} for token, p in found.candidates]
        numbers = {"probability": found.probability, "rank": found.rank, "entropy": found.entropy}
        return {"candidates": candidates, **numbers}

    def figures(self) -> tuple[Figure, ...]:
        """Return a heat map of all predictions, and the target's probability over the layers."""
        predicts = self.predicts == "next" or self._blanks()
        return (self._heatmap(), self._line_chart()) if predicts else (self._heatmap(),)

    def _heatmap(self) -> Heatmap:
        """Draw the last layer at the top, next to the tokens."""
        layers, shown = range(self.num_layers, -1, -1), self._shown_positions()
        cells = [[self.prediction(layer, i) for i in shown] for layer in layers]
        part = ""
        if len(shown) < self.length:
            begin, end = self.first + shown[0], self.first + shown[-1]
            part = f" Positions {begin:,} to {end:,} of {self.length:,} are shown."
        return Heatmap(
            title="What each layer would predict",
            rows=tuple(str(layer or "embeddings") for layer in layers),
            columns=tuple(self.tokens[i] for i in shown),
            values=tuple(tuple(cell.candidates[0][1] for cell in row) for row in cells),
            texts=tuple(tuple(cell.candidates[0][0] for cell in row) for row in cells),
            details=tuple(
                tuple(self._detail(layer, i, cell) for i, cell in zip(shown, row, strict=True))
                for layer, row in zip(layers, cells, strict=True)
            ),
            row_title="layer",
            column_title="token",
            caption=f"{NOTES[self.predicts]} Its probability is the colour.{part}",
        )

    def _detail(self, layer: int, position: int, cell: LensPrediction) -> str:
        place = "after" if self.predicts == "next" else "at"
        best = ", ".join(f"{token} {probability:.1%}" for token, probability in cell.candidates)
        name = "right token" if self.known[position] else "the model's prediction"
        return (
            f"{_layer_name(layer)}, {place} {self.tokens[position]}: {best}; {name}: {cell.target} "
            f"{cell.probability:.1%}, rank {cell.rank:,}; entropy {cell.entropy:.2f} nats"
        )

    def _shown_positions(self) -> range:
        return _window(len(self.tokens), (self._blanks() or [len(self.tokens)])[0], MAX_COLUMNS)

    def _blanks(self) -> list[int]:
        rows = zip(self.known, self.targets, strict=True)
        right = {i: target for i, (known, target) in enumerate(rows) if known}
        return _blanks(self.ids, right) if self.predicts == "token" else []

    def _line_chart(self) -> LineChart:
        lines = dict[str, Floats]()
        last = [] if self.predicts == "token" else [len(self.tokens) - 1]
        for i in (self._blanks() or last)[:MAX_LINES]:
            name = f"{self.names[self.targets[i]]} at position {self.first + i}"
            lines[name] = self.target_probabilities[:, i]
        if self.predicts == "next":  # an encoder reads the other tokens
            lines["mean of all positions"] = self.target_probabilities.mean(1)
        return LineChart(
            title="Probability of the right token",
            x_label="layer",
            y_label="probability",
            lines={name: _points(values) for name, values in lines.items()},
            caption="Layer 0 is the embeddings. Where the right token is unknown, the model's own "
            "prediction counts as right.",
        )


def _window(size: int, middle: int, limit: int) -> range:
    """Return at most `limit` positions of `size`, around one of them.

    >>> _window(5, 2, 9), _window(100, 50, 4), _window(100, 99, 4)
    (range(0, 5), range(48, 52), range(96, 100))
    """
    first = max(0, min(middle - limit // 2, size - limit))
    return range(first, min(size, first + limit))


def _blanks(ids: Sequence[int], right: Mapping[int, int]) -> list[int]:
    """Return the positions of an encoder's text where another token is right, or none is known."""
    return [i for i, id in enumerate(ids) if right.get(i) != id]


def _points(values: Floats) -> tuple[Point, ...]:
    return tuple(Point(layer, float(value)) for layer, value in enumerate(values))


def _layer_name(layer: int) -> str:
    return f"layer {layer}" if layer else "embeddings"


@torch.no_grad()
def logit_lens(
    network: Transformer,
    tokenizer: Tokenizer,
    request: ScoringRequest,
    *,
    bidirectional: bool = False,
    encoder_tokenizer: Tokenizer | None = None,
    text: str = "",
    top: int = 5,
    max_positions: int | None = None,
) -> LogitLens:
    """Compute the predictions of all layers for the tokens of a request, at every position.

    The request's targets are the right tokens at its positions; at other positions the model's own
    prediction counts as right. `max_positions` are those around an encoder's first blank, or the
    last ones.
    """
    check_language_head(network)
    if not request.tokens:
        raise UsageError("The text is empty: there is no position to predict; add a word.")
    right = dict(zip(request.positions, request.targets, strict=False))
    encoder, size = network.config.architecture == "encoder", len(request.tokens)
    blanks = _blanks(request.tokens, right) if encoder else []
    shown = _window(size, blanks[0] if blanks else size, max_positions or size)
    part = slice(shown.start, shown.stop)
    layers = [layer[part] for layer in _layer_outputs(network, request, bidirectional)]
    own = _final_predictions(network, layers[-1]).tolist()
    targets = [right.get(i, id) for i, id in zip(shown, own, strict=True)]
    ids = torch.tensor(targets, device=network.device)
    rows = [_predictions(network, hidden, ids, top) for hidden in layers]
    candidates, probabilities, target_probabilities, ranks, entropies = (
        np.stack(each) for each in zip(*rows, strict=True)
    )
    read, names = request.tokens[part], list({*candidates.ravel().tolist(), *targets})
    return LogitLens(
        text=text,
        first=shown[0],
        length=size,
        predicts="token" if encoder else "next",
        tokens=tuple(display_tokens(tokenizer, read)),
        ids=read,
        source=tuple(display_tokens(encoder_tokenizer or tokenizer, request.source)),
        targets=tuple(targets),
        known=tuple(i in right for i in shown),
        candidates=candidates,
        probabilities=probabilities,
        target_probabilities=target_probabilities,
        target_ranks=ranks,
        entropies=entropies,
        names=dict(zip(names, display_tokens(tokenizer, names), strict=True)),
    )


def _layer_outputs(
    network: Transformer, request: ScoringRequest, bidirectional: bool
) -> list[Tensor]:
    """Return the input of the language head for the embeddings and each layer: (T, W) each.

    The last hidden states have passed the final norm already; post-norm models have none.
    """
    device, inputs = network.device, dict[str, Any]()
    if request.source:
        source_mask = Mask([len(request.source)], device=device)
        source = torch.tensor(request.source, device=device)
        inputs = {"memory": network.encode(source, source_mask), "memory_mask": source_mask}
    prefix = None if bidirectional else [request.prefix]
    mask, layers = Mask([len(request.tokens)], prefix=prefix, device=device), list[Tensor]()
    network(torch.tensor(request.tokens, device=device), mask, layers=layers, **inputs)
    return [*map(network.stack.final_norm, layers[:-1]), layers[-1]]


def _chunks(network: Transformer, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield positions and their logits, for a limited number of positions at a time."""  # (P, V)
    size = max(1, MAX_LOGITS // network.config.vocab_size)
    for begin in range(0, len(hidden), size):
        part = slice(begin, begin + size)
        yield part, network.logits(hidden[part]).float()


def _final_predictions(network: Transformer, hidden: Tensor) -> Tensor:
    return torch.cat([logits.argmax(-1) for _, logits in _chunks(network, hidden)])  # (T,)


def _predictions(network: Transformer, hidden: Tensor, targets: Tensor, top: int) -> list[Any]:
    """Return candidates, their probabilities, and the targets' probability, rank and entropy."""
    parts = []
    for part, logits in _chunks(network, hidden):
        own = logits.gather(1, targets[part, None])  # (P, 1)
        ranks = 1 + (logits > own).sum(-1)
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(min(top, log_probs.shape[-1]))
        target = log_probs.gather(1, targets[part, None])[:, 0]
        # A token that a model excludes has the logit -inf, and adds nothing.
        entropy = -(log_probs.exp() * log_probs.clamp(min=MIN_LOG_PROB)).sum(-1)
        if bool(entropy.isnan().any()):
            raise nan_error()
        parts.append((best.indices, best.values.exp(), target.exp(), ranks, entropy))
    return [torch.cat(values).cpu().numpy() for values in zip(*parts, strict=True)]
