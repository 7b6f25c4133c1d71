"""The network: token embeddings, stacks of blocks, and heads that predict.

N  tokens of the stream     M  tokens of the encoder's stream     V  vocabulary
W  width                    R  width of the encoder, which may be another
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.errors import Misuse
from firth.models.attention import hide_from_compiler
from firth.models.cache import Cache
from firth.models.config import ModelConfig
from firth.models.heads import LanguageHead, make_head
from firth.models.masks import Mask
from firth.models.pooling import pool
from firth.models.positions import Disentangled
from firth.models.recording import Recorder
from firth.models.stack import Stack


class Transformer(nn.Module):
    """Token embeddings, an encoder or a decoder or both, and heads that predict.

    >>> config = ModelConfig(architecture="encoder", vocabulary=10, width=8, layers=1, heads=2,
    ...                      inner=16, context=8)
    >>> network = Transformer(config, ["language"])
    >>> network(torch.tensor([1, 2, 3, 4]), Mask([3, 1])).shape
    torch.Size([4, 8])
    """

    def __init__(self, config: ModelConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.table_width)
        self.reader_tokens = None  # of an encoder that has a vocabulary of its own
        if config.reader is not None:
            own = config.reader
            self.reader_tokens = nn.Embedding(own.vocabulary, own.table_width)
        self.encoder = self.decoder = None
        if config.has_encoder:
            self.encoder = Stack(config.reading, config.layers, decoder=False)
        if config.has_decoder:
            layers = config.decoder_layers or config.layers
            cross = config.reading.width if config.has_encoder else 0
            self.decoder = Stack(config, layers, decoder=True, cross=cross)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})
        self.only_used = False  # its weights cannot be taught: `firth.models.int8`

    def train(self, mode: bool = True) -> Transformer:
        """Let it learn, or be used."""
        if mode and self.only_used:
            raise Misuse(
                "A network with int8 weights cannot be taught: open the model without them."
            )
        return super().train(mode)

    @property
    def stack(self) -> Stack:
        """The stack whose output the heads see."""
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return stack

    def table(self, stack: Stack) -> nn.Embedding:
        """The vectors of the tokens that one of the stacks is given."""
        own = self.reader_tokens if stack is self.encoder else None
        return self.tokens if own is None else own

    def forward(
        self,
        tokens: Tensor,
        mask: Mask,
        *,
        segments: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """A stream of tokens (N,) -> what the heads see (N, W).

        Behind an encoder, the stream is the decoder's and `memory` what `encode` gave.
        """
        if memory_mask is None and cache is not None:
            memory_mask = cache.memory
        prompt = self.encoder.prompt if self.encoder is not None else None
        if memory_mask is not None and prompt is not None:
            memory_mask, order = memory_mask.behind(len(prompt()))
            memory = memory[order] if memory is not None else None
        behind = dict(memory=memory, memory_mask=memory_mask, cache=cache, layers=layers)
        hidden = self._read(self.stack, tokens, mask, segments, **behind)
        return hidden if len(hidden) == len(tokens) else hidden[: len(tokens)]

    def encode(
        self,
        tokens: Tensor,
        mask: Mask,
        *,
        segments: Tensor | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """What the decoder looks at: the encoder's output for a stream of tokens.

        With a prompt, the output for that too, behind all tokens, where `forward` expects it.
        """  # (M,) -> (M, R)
        assert self.encoder is not None
        return self._read(self.encoder, tokens, mask, segments, layers=layers)

    def _read(
        self, stack: Stack, tokens: Tensor, mask: Mask, segments: Tensor | None, **given: Any
    ) -> Tensor:
        """The output of a stack; behind that for all tokens, that for a prompt before them."""
        x, cache = self.table(stack)(tokens), given.get("cache")
        if stack.prompt is None or (cache is not None and cache.used):
            return stack(x, mask, segments=segments, **given)
        vectors = stack.prompt()  # (P, E)
        longer, order = mask.behind(len(vectors))
        x = torch.cat([x, vectors.to(x.dtype).repeat(len(mask), 1)])[order]
        if segments is not None:
            segments = pad(segments, (0, len(x) - len(segments)))[order]
        if cache is not None:
            cache.widen(len(vectors))
        hidden, back = stack(x, longer, segments=segments, **given), order.argsort()
        if (layers := given.get("layers")) is not None:
            layers[:] = [layer[back[: len(tokens)]] for layer in layers]
        return hidden[back]

    def logits(self, hidden: Tensor) -> Tensor:
        """The language model's scores at some positions."""  # (P, W) -> (P, V)
        head = self.heads["language"]
        assert isinstance(head, LanguageHead)
        return head(hidden, self.tokens.weight)

    def label_scores(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """The scores of labels: (S, K), or (N, K) where tokens have labels."""
        head = self.heads[self.config.label_head]
        if self.config.label_head in ("tag", "span"):
            return head(hidden)
        return head(self.pooled(hidden, starts))

    def pooled(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """One vector for each sequence; a pooler, where there is one, reads the first token's."""
        found = pool(hidden, starts, self.config.pooling)  # (S, W)
        reads = self.config.pooling == "first" and "pooler" in self.heads
        return self.heads["pooler"](found) if reads else found

    def compile_blocks(self) -> None:
        """Let torch.compile fuse what happens between the products of matrices.

        Blocks that add to the scores of attention what they read from the text (DeBERTa) stay as
        they are.
        """
        hide_from_compiler()
        for stack in (self.encoder, self.decoder):
            if stack is not None and not isinstance(stack.relative, Disentangled):
                for module in (stack.embedding, *stack.blocks):
                    module.compile(dynamic=True)

    def record_blocks(self, on: bool = True) -> None:
        """Let a GPU note what blocks compute in learning, instead of being told again each time."""
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.recorder = Recorder() if on else None

    def stop_recording(self) -> bool:
        """Forget what a GPU has noted, and note no more; whether there was anything."""
        stacks = [stack for stack in (self.encoder, self.decoder) if stack is not None]
        held = [stack.recorder.stop() for stack in stacks if stack.recorder is not None]
        return any(held)

    @property
    def unrecorded(self) -> str:
        """Why a GPU could not note what blocks compute; empty where it could, or was not asked."""
        stacks = [stack for stack in (self.encoder, self.decoder) if stack is not None]
        reasons = [stack.recorder.why_not for stack in stacks if stack.recorder is not None]
        return next(filter(None, reasons), "")

    def checkpoint_activations(self, on: bool = True) -> None:
        """Trade time for memory: keep only what enters a block, and compute it anew."""
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.checkpointing = on


def count_parameters(network: nn.Module) -> int:
    """How many numbers are trained; shared ones count once."""
    return sum(parameter.numel() for parameter in network.parameters())
