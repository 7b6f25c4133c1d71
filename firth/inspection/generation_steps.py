"""Generation token by token: the candidates of each step, and attention on earlier tokens.

Steps are computed in one forward pass over the prompt and all generated tokens, which gives the
same values as generation with its key/value cache.

S  steps (generated tokens)     T  tokens that the decoder reads     M  tokens of the encoder
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from firth.inference.attention_maps import attention_maps, resolve_numbers, virtual_tokens
from firth.inference.explanation import require_transformer
from firth.inference.generation.explain import ExplainedToken
from firth.inference.generation.generation_config import GenerationOptions, one_completion
from firth.inference.generation.text_generation import EncodedPrompt, TextGenerator
from firth.inference.text_model import TextModel
from firth.tokenizers.display import display_tokens
from firth.utils.errors import UsageError
from firth.utils.figures import (
    Bar,
    BarChart,
    Figure,
    Heatmap,
    Paragraph,
    Tabs,
    WeightedPiece,
    WeightedText,
)

MAX_COLUMNS = 64  # tokens of a heat map
MAX_PIECES = 256  # tokens of a coloured text
MAX_TABS = 60  # generated tokens with a tab of their own
PARTS = {"decoder": "earlier tokens", "cross": "the encoder's tokens"}
Weights = NDArray[np.float32]


class Candidate(NamedTuple):
    """One of the most probable tokens of a step."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class GenerationStep:
    """A generated token with its candidates."""

    token: str
    id: int
    probability: float  # before temperature, top-k and the like
    rank: int  # 1: the most probable
    sampling_probability: float | None  # when sampling: after temperature, top-k and the like
    candidates: tuple[Candidate, ...]  # the most probable tokens, best first

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        names = ("token", "id", "probability", "rank", "sampling_probability")
        candidates = [candidate._asdict() for candidate in self.candidates]
        return {**{name: getattr(self, name) for name in names}, "candidates": candidates}

    def figure(self) -> BarChart:
        """Return a bar chart of the candidates and the generated token."""
        own = Candidate(self.token, self.id, self.probability)
        shown = [*self.candidates, *([] if own in self.candidates else [own])]
        drawn = ""
        if self.sampling_probability is not None:
            drawn = f" It was sampled with probability {self.sampling_probability:.1%}."
        return BarChart(
            title="Candidates",
            bars=tuple(
                Bar(f"{one.token} ✓" if one.id == self.id else one.token, one.probability)
                for one in shown
            ),
            caption=f"✓ was generated: probability {self.probability:.1%}, rank {self.rank:,}."
            f"{drawn}",
        )


@dataclass(frozen=True, kw_only=True)
class StepAttention:
    """Attention of all steps in one part of a network, averaged over heads and layers."""

    part: str  # decoder: on earlier tokens; cross: on the encoder's tokens
    layers: tuple[int, ...]  # counted from 1
    tokens: tuple[str, ...]  # (K,) attended to: K is T or M
    weights: Weights  # (S, K) each row adds up to 1
    later: int  # tokens that the first step cannot attend to: those that follow

    @property
    def lengths(self) -> list[int]:
        """The number of tokens that each step can attend to."""
        return [len(self.tokens) - max(0, self.later - i) for i in range(len(self.weights))]

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        rows = zip(self.weights.tolist(), self.lengths, strict=True)
        weights = [row[:length] for row, length in rows]
        tokens, layers = list(self.tokens), list(self.layers)
        return {"part": self.part, "layers": layers, "tokens": tokens, "weights": weights}

    @property
    def _scale(self) -> float:
        """The largest weight; of a decoder, without its first token, which often has most."""
        first = 1 if self.part == "decoder" else 0
        return max(float(self.weights[:, first:].max(initial=0.0)), 0.01)

    @property
    def _caption(self) -> str:
        numbers = ", ".join(map(str, self.layers))
        layers = f"layer {numbers}" if len(self.layers) == 1 else f"layers {numbers}"
        first = ""
        if float(self.weights.max()) > self._scale:
            first = " or more, as the first token has most of the attention"
        return (
            "A row is the attention of the position that predicts the token: of the token before "
            f"it. Mean over the heads of {layers}. The strongest colour is {self._scale:.2f}"
            f"{first}."
        )

    def heatmap(self, steps: Sequence[str]) -> Heatmap:
        """Return a matrix of steps and the tokens attended to, the last ones if there are many."""
        first = max(0, len(self.tokens) - MAX_COLUMNS)
        names = tuple(self.tokens[first:])
        rows = [
            tuple(float(row[k]) if k < length else float("nan") for k in range(first, len(row)))
            for row, length in zip(self.weights, self.lengths, strict=True)
        ]
        part = f" The last {MAX_COLUMNS} of {len(self.tokens):,} tokens are shown." * bool(first)
        return Heatmap(
            title=f"Attention on {PARTS[self.part]}",
            rows=tuple(steps),
            columns=names,
            values=tuple(rows),
            details=tuple(
                tuple(
                    f"{step} ← {name}: {value:.3f}" for name, value in zip(names, row, strict=True)
                )
                for step, row in zip(steps, rows, strict=True)
            ),
            high=self._scale,
            row_title="generated token",
            column_title="attends to",
            caption=self._caption + part,
        )

    def text(self, step: int) -> WeightedText:
        """Return the tokens that a step attends to, coloured by their weights."""
        length = self.lengths[step]
        first = max(0, length - MAX_PIECES)
        pieces = zip(self.tokens[first:length], self.weights[step, first:length], strict=True)
        part = f"The last {MAX_PIECES} of {length:,} tokens." if first else ""
        return WeightedText(
            title=f"Attention on {PARTS[self.part]}",
            pieces=tuple(WeightedPiece(token, float(weight)) for token, weight in pieces),
            caption=part,
        )


@dataclass(frozen=True, kw_only=True)
class GenerationSteps:
    """A completion of a prompt, token by token."""

    prompt: str
    text: str  # the completion
    finish_reason: str  # end (end token), stop (stop string) or length (token limit)
    steps: tuple[GenerationStep, ...]
    attention: tuple[StepAttention, ...]  # decoder; of an encoder-decoder also cross
    notes: tuple[str, ...] = ()  # warnings, such as a truncated prompt

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "steps": [step.values() for step in self.steps],
            "attention": [part.values() for part in self.attention],
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def figures(self) -> tuple[Figure, ...]:
        """Return heat maps of attention, and for each token its candidates and its attention."""
        names = [f"{i}. {step.token}" for i, step in enumerate(self.steps, 1)]
        shown = self.steps[:MAX_TABS]
        tabs: list[tuple[Figure, ...]] = [
            (step.figure(), *(part.text(i) for part in reversed(self.attention)))
            for i, step in enumerate(shown)
        ]
        cut = len(self.steps) - len(shown)
        notes = [*self.notes, *([f"{cut} more tokens are left out below."] if cut else [])]
        return (
            *(Paragraph(note) for note in notes),
            *(part.heatmap(names) for part in reversed(self.attention)),
            Tabs("Token by token", tuple(names[:MAX_TABS]), tuple(tabs)),
        )


def generation_steps(
    model: TextModel,
    text: str,
    *,
    layers: Sequence[int] = (-1,),
    **settings: Unpack[GenerationOptions],
) -> GenerationSteps:
    """Generate a completion of a text, and return each token's candidates and attention weights.

    Attention is averaged over the heads of `layers`, counted from 1 or from the end; by default it
    is that of the last layer. `settings` are those of `Model.generate`.
    """
    one_completion(settings)
    if not layers:
        raise UsageError("`layers` is empty: name at least one layer, such as -1 for the last.")
    counts = {"decoder": model.transformer.stack.layers}
    generator = replace(model.text_generator(**settings), explain=True)
    layers = resolve_numbers(layers, counts, "layer")["decoder"]
    prompt = generator.encode_prompt(text)
    [done] = generator.complete_encoded([(0, prompt)])
    [completion] = done.completions
    generated = [step.id for step in completion.steps]
    return GenerationSteps(
        prompt=prompt.text,
        text=completion.text,
        finish_reason=completion.finish_reason,
        steps=tuple(_step(generator, step) for step in completion.steps),
        attention=_attention(generator, prompt, generated, layers) if generated else (),
        notes=done.notes,
    )


def _step(generator: TextGenerator, step: ExplainedToken) -> GenerationStep:
    ids = [one.id for one in step.alternatives]
    token, *others = display_tokens(generator.tokenizer, [step.id, *ids])
    probs = [one.probability for one in step.alternatives]
    return GenerationStep(
        token=token,
        id=step.id,
        probability=step.probability,
        rank=step.rank,
        sampling_probability=step.drawn,
        candidates=tuple(Candidate(*each) for each in zip(others, ids, probs, strict=True)),
    )


def _attention(
    generator: TextGenerator,
    prompt: EncodedPrompt,
    generated: Sequence[int],
    layers: Sequence[int],
) -> tuple[StepAttention, ...]:
    """Return the attention of each step: that of the token before the one that it generates."""
    network = require_transformer(generator.network)
    past, source = list(prompt.ids), list[int]()
    if network.config.has_encoder:
        past, source = [network.config.decoder_start_token_id or 0], past
    read, size = [*past, *generated[:-1]], len(generated)
    inputs = (source, read) if source else (read,)
    prefix = network.config.prefix_length(len(past))
    rows = dict[str, list[Weights]]()
    for part, _, weights in attention_maps(network, *inputs, layers=layers, prefix=prefix):
        rows.setdefault(part, []).append(weights[:, -size:].mean(0).cpu().numpy())  # (S, K)
    source_names = display_tokens(generator.encoder_tokenizer or generator.tokenizer, source)
    names = {"decoder": display_tokens(generator.tokenizer, read), "cross": source_names}
    return tuple(
        StepAttention(
            part=part,
            layers=tuple(layers),
            tokens=(*virtual_tokens(network, part), *names[part]),
            weights=np.mean(found, axis=0),
            later=size - 1 if part == "decoder" else 0,
        )
        for part, found in rows.items()
        if part != "encoder"
    )
