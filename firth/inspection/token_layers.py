"""From text to vectors: tokens, ids and embeddings, and the shapes and vectors of each layer.

T  tokens     E  embedding size     W  hidden size     L  layers     V  vocabulary size
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from firth.inference.forward_pass import FIRST_VALUES, StackValues, run_stack
from firth.inspection.input_text import ModelInput
from firth.model import Model
from firth.models.language_model import predicts_tokens
from firth.models.masks import Mask
from firth.models.stack import Stack
from firth.models.transformer import Transformer
from firth.quantization.int8 import Int8Matrix
from firth.tokenizers.display import display_tokens, show_white_space
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.figures import DataTable, Figure, LineChart, Point

NUMBER = re.compile(r"\d+$")
MAX_ROWS = 50  # tokens at both ends of a table


class TokenRow(NamedTuple):
    """A token, its id, the characters of the text that it covers, and its token embedding."""

    position: int
    token: str
    id: int
    characters: tuple[int, int] | None  # first and last + 1; None: a special token
    first_values: list[float]  # of its embedding
    norm: float  # of its embedding


class LayerStep(NamedTuple):
    """One step of the forward pass: the shape of its output, and its parameters."""

    name: str
    shape: tuple[int, ...]  # (): no output that is shown
    parameters: int  # that no step before has
    shared_with: str = ""  # a step whose parameters it uses, too


@dataclass(frozen=True, kw_only=True)
class StackLayers:
    """The tokens of one stack, the encoder's or the decoder's, and its vectors at each layer."""

    name: str
    text: str
    tokens: tuple[TokenRow, ...]
    embedding_size: int
    norms: tuple[float, ...]  # (L + 1,) mean norm of the tokens' vectors; first the embeddings
    cosines: tuple[float, ...]  # (L,) mean cosine of a token's vectors before and after each layer

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        tokens = [row._asdict() for row in self.tokens]
        numbers = {"mean_norms": list(self.norms), "mean_cosines": list(self.cosines)}
        names = {"name": self.name, "text": self.text, "embedding_size": self.embedding_size}
        return {**names, "tokens": tokens, **numbers}

    def table(self, title: str) -> DataTable:
        """Return the table of tokens; of many tokens the first and the last ones."""
        vector = f"embedding (first {FIRST_VALUES} of {self.embedding_size})"
        columns = ("token", "position", "id", "characters", vector, "norm")
        rows = [self._row(token) for token in self.tokens]
        if len(rows) > 2 * MAX_ROWS:
            rows[MAX_ROWS:-MAX_ROWS] = [("…",) * len(columns)]
        return DataTable(title, columns, tuple(rows))

    def _row(self, row: TokenRow) -> tuple[str, ...]:
        characters = "–"
        if row.characters is not None:
            first, last = row.characters
            characters = f"{first}–{last}: {show_white_space(self.text[first:last])}"
        numbers = " ".join(f"{value:.2f}" for value in row.first_values) + " …"
        return row.token, str(row.position), str(row.id), characters, numbers, f"{row.norm:.2f}"


@dataclass(frozen=True, kw_only=True)
class TokenLayers:
    """The tokens of a text, and the shapes and vectors of each layer of a network."""

    stacks: tuple[StackLayers, ...]  # encoder, decoder, or both
    steps: tuple[LayerStep, ...]  # in the order of computation

    @property
    def num_parameters(self) -> int:
        """The number of parameters of all steps together."""
        return sum(step.parameters for step in self.steps)

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "stacks": [stack.values() for stack in self.stacks],
            "steps": [step._asdict() for step in self.steps],
            "num_parameters": self.num_parameters,
        }

    def figures(self) -> tuple[Figure, ...]:
        """Return tables of tokens and of shapes, and charts of the vectors at each layer."""
        several = len(self.stacks) > 1
        return (
            *(
                stack.table(f"Tokens of the {stack.name}" if several else "Tokens")
                for stack in self.stacks
            ),
            self._shapes(),
            LineChart(
                title="Mean norm of the tokens' vectors",
                x_label="layer",
                y_label="norm",
                lines={stack.name: _points(stack.norms, first=0) for stack in self.stacks},
                caption="Layer 0 is the embeddings, the input of the first layer. The last layer "
                "includes the final norm, if the model has one.",
            ),
            LineChart(
                title="Similarity to the layer before",
                x_label="layer",
                y_label="mean cosine",
                lines={stack.name: _points(stack.cosines, first=1) for stack in self.stacks},
                caption="Mean cosine of a token's vector with its vector one layer before: 1 if "
                "the direction stays the same. The last layer includes the final norm.",
            ),
        )

    def _shapes(self) -> DataTable:
        """Return a table of all steps, in which layers with the same numbers share a row."""
        rows = list[tuple[str, str, str]]()
        for _, group in groupby(self.steps, lambda step: (NUMBER.sub("", step.name), *step[1:])):
            first, *others = group
            count = _count(first.parameters, first.shared_with)
            name = first.name
            if others:
                name = f"{name.replace('layer', 'layers')}–{others[-1].name.rpartition(' ')[2]}"
                count += " each" if first.parameters else ""
            rows.append((name, _shape(first.shape), count))
        total = ("all", "", f"{self.num_parameters:,}")
        return DataTable("Shapes and parameters", ("step", "shape", "parameters"), (*rows, total))


def _points(values: Sequence[float], *, first: int) -> tuple[Point, ...]:
    return tuple(Point(layer, value) for layer, value in enumerate(values, first))


def _shape(shape: tuple[int, ...]) -> str:
    """Format a shape.

    >>> _shape((4,)), _shape((4, 4096)), _shape(())
    ('(4,)', '(4, 4096)', '')
    """
    return str(shape) if shape else ""


def _count(parameters: int, shared_with: str) -> str:
    """Format a number of parameters.

    >>> _count(1000, ""), _count(0, "layer 1"), _count(0, ""), _count(9, "token embeddings")
    ('1,000', 'those of layer 1', '–', '9 and those of token embeddings')
    """
    own = f"{parameters:,}" if parameters else ""
    shared = f"those of {shared_with}" if shared_with else ""
    return " and ".join(filter(None, [own, shared])) or "–"


@torch.no_grad()
def token_layers(model: Model, read: ModelInput) -> TokenLayers:
    """Run a network on the tokens of a text, and keep what each layer computes of them."""
    if not isinstance(model.network, Transformer):
        return _layers_without_blocks(model, read)
    network, device = model.transformer, model.network.device
    bidirectional = network.config.has_encoder
    prefix = None if bidirectional else [read.prefix]
    mask = Mask([len(read.ids)], prefix=prefix, device=device)
    inputs = dict[str, Any]()
    if read.segments is not None:
        inputs["segments"] = torch.tensor(read.segments, device=device)
    tokenizer = model.input_tokenizer()
    values, memory = run_stack(network, tokenizer, read.ids, mask, 0, **inputs)
    stacks, found = [values], [_stack_layers(values, tokenizer, read.text)]
    if read.target_ids:
        tokenizer = model.require_tokenizer()
        inputs = {"memory": memory, "memory_mask": mask}
        causal = Mask.causal([len(read.target_ids)], device=device)
        values, _ = run_stack(network, tokenizer, read.target_ids, causal, 0, **inputs)
        stacks.append(values)
        found.append(_stack_layers(values, tokenizer, tokenizer.decode(read.target_ids[1:])))
    return TokenLayers(stacks=tuple(found), steps=tuple(_steps(network, stacks)))


def _layers_without_blocks(model: Model, read: ModelInput) -> TokenLayers:
    """Run a network that has layers but is no Transformer: ELMo."""
    network, layers = model.network, list[torch.Tensor]()
    ids = torch.tensor(read.ids, device=network.device)
    if read.text and model.config.open_vocabulary:
        ids = model.input_ids(read.text)
    network.encode(ids, Mask.causal([len(ids)], device=network.device), layers=layers)
    tokenizer = model.input_tokenizer()
    values = StackValues(
        name=model.config.architecture,
        attention="",
        ids=tuple(ids.tolist()),
        tokens=tuple(display_tokens(tokenizer, ids.tolist())),
        position=0,
        token_embeddings=network.input_embeddings(ids),
        hidden_states=torch.stack(layers),
    )
    seen, steps = set[int](), [LayerStep("token ids", (len(ids),), 0)]
    for name, module in network.named_children():
        if own := _own_parameters(module, seen):
            steps.append(LayerStep(name.replace("_", " "), (), own))
    found = _stack_layers(values, tokenizer, read.text)
    return TokenLayers(stacks=(found,), steps=tuple(steps))


def _stack_layers(stack: StackValues, tokenizer: Tokenizer, text: str) -> StackLayers:
    hidden = stack.hidden_states.double()  # (L + 1, T, W)
    embeddings = stack.token_embeddings.double()  # (T, E)
    first, norms = embeddings[:, :FIRST_VALUES].tolist(), embeddings.norm(dim=-1).tolist()
    names = display_tokens(tokenizer, stack.ids)
    spans = _character_spans(tokenizer, text, stack.ids)
    columns = zip(range(len(norms)), names, stack.ids, spans, first, norms, strict=True)
    return StackLayers(
        name=stack.name,
        text=text,
        tokens=tuple(TokenRow(*row) for row in columns),
        embedding_size=embeddings.shape[-1],
        norms=tuple(hidden.norm(dim=-1).mean(-1).tolist()),
        cosines=tuple(cosine_similarity(hidden[1:], hidden[:-1], dim=-1).mean(-1).tolist()),
    )


def _character_spans(
    tokenizer: Tokenizer, text: str, ids: Sequence[int]
) -> list[tuple[int, int] | None]:
    """Return the characters of each token; None for special tokens around them."""
    encoding = tokenizer.encoding(text)
    size, known = len(encoding.ids), (encoding.ids, tokenizer.open_ids(encoding, text))
    first = next((i for i in (0, 1) if list(ids[i : i + size]) in known), None)
    if first is None:
        return [None] * len(ids)
    return [None] * first + encoding.offsets + [None] * (len(ids) - first - size)


# ---- shapes and parameters ----------------------------------------------------------------------


def _steps(network: Transformer, stacks: Sequence[StackValues]) -> Iterator[LayerStep]:
    """Yield all steps; the parameters of each module are counted where it is used first."""
    seen = set[int]()
    several = len(stacks) > 1
    for values, stack in zip(stacks, network.stacks, strict=False):
        prefix = f"{values.name}: " if several else ""
        for step in _stack_steps(network, stack, values, seen):
            yield step._replace(name=prefix + step.name)
    size = len(stacks[-1].ids)
    if predicts_tokens(network):
        shared = "token embeddings" if network.config.tie_embeddings else ""
        own = _own_parameters(network.heads["language"], seen)
        yield LayerStep("logits", (size, network.config.vocab_size), own, shared)
    for name, head in network.heads.items():
        if own := _own_parameters(head, seen):
            yield LayerStep(f"{name} head", (), own)
    if own := _own_parameters(network, seen):
        yield LayerStep("other parameters", (), own)


def _stack_steps(
    network: Transformer, stack: Stack, values: StackValues, seen: set[int]
) -> Iterator[LayerStep]:
    size, width = len(values.ids), values.hidden_states.shape[-1]
    yield LayerStep("token ids", (size,), 0)
    table = _own_parameters(network.token_embeddings(stack), seen)
    shared = "" if table else "the encoder"
    yield LayerStep("token embeddings", tuple(values.token_embeddings.shape), table, shared)
    embedding = _own_parameters(stack.embedding, seen)
    yield LayerStep("input of layer 1", (size, width), embedding)
    if stack.relative is not None:
        yield LayerStep("relative positions", (), _own_parameters(stack.relative, seen))
    for i in range(stack.layers):
        own = _own_parameters(stack.blocks[0 if stack.config.share_layers else i], seen)
        yield LayerStep(f"layer {i + 1}", (size, width), own, "" if own else "layer 1")
    if norm := _own_parameters(stack.final_norm, seen):
        yield LayerStep("final norm", (size, width), norm)


def _own_parameters(module: nn.Module, seen: set[int]) -> int:
    """Count the parameters of a module that were not counted yet, quantized ones included."""
    quantized = [part.numbers for part in module.modules() if isinstance(part, Int8Matrix)]
    new = {id(part): part for part in (*module.parameters(), *quantized) if id(part) not in seen}
    seen.update(new)
    return sum(part.numel() for part in new.values())
