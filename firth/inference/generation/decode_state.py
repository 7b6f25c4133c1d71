"""The state of incremental decoding: next-token logits, token history, and a cache or state.

    S  prompts     B  sequences, those of one prompt side by side     V  vocabulary

`DecodeState` runs any model on whole sequences in every step. With a Transformer's cache, a step is
one forward pass with one token per sequence. On a GPU its tensors stay in place for many steps (so
the step can be a CUDA graph), until finished prompts are dropped or torch needs more of the cache.
With a recurrent network's state, a step costs the same after any number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from firth.inference.generation.cuda_graph import GraphedStep, Step
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import HISTORY_PAD, NEG_INF
from firth.models.gpu_decoder import make_gpu_decoder
from firth.models.kv_cache import KVCache
from firth.models.language_model import ScoringModel
from firth.models.masks import Mask
from firth.models.recurrent.lstm_lm import RecurrentLanguageModel
from firth.models.recurrent.packed_rnn import RecurrentState
from firth.models.recurrent.rnn_seq2seq import DecoderState, RnnSeq2Seq
from firth.models.transformer import Transformer
from firth.quantization.c_decoder import SelectedTokens, make_c_decoder
from firth.utils.rng import Longs

# Captured steps attend to a multiple of this many cache positions, so that many share a shape.
CACHE_STRIDE = {"cuda": 128}

Prompts = Sequence[Sequence[int]]


class DecodeState:
    """Sequences that are being decoded, one or several per prompt."""

    history: Tensor | None  # (B, T) the tokens of each sequence, padded on the left
    logits: Tensor  # (B, V) of the next token

    def __init__(self, model: ScoringModel, prompts: Prompts, config: GenerationConfig) -> None:
        """Run the prompts."""
        self.model, self.per_prompt = model, config.num_sequences
        self.prefix = np.repeat(prefix_lengths(model, prompts), self.per_prompt)  # (B,)
        self.history = _history(model, prompts, self.per_prompt)
        self.forward()

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        """Append one token to each sequence that has not ended, and compute the next logits."""
        if self.history is not None:
            self.history = torch.cat([self.history, tokens[:, None]], dim=1)
        self.forward()

    def forward(self) -> None:
        """Run the model on the current inputs; the result is in `logits`."""
        assert self.history is not None
        is_token = self.history != HISTORY_PAD
        lengths = is_token.sum(1).cpu().numpy()
        mask = Mask(lengths, prefix=self.prefix, device=self.history.device)
        hidden = self.model(self.history[is_token], mask)
        self.logits = self.model.logits(hidden[mask.starts[1:] - 1]).float()

    def reorder(self, rows: Tensor) -> None:
        """Continue with these sequences, in this order; each stays with its prompt."""  # (B,)
        if self.history is not None:
            self.history = self.history[rows]

    def keep_prompts(self, prompts: Sequence[int]) -> None:
        """Continue with the sequences of these prompts only."""
        kept = [i * self.per_prompt + j for i in prompts for j in range(self.per_prompt)]
        rows = torch.tensor(kept, device=self.logits.device)
        self.logits = self.logits[rows]
        self.prefix = self.prefix[kept]
        if self.history is not None:
            self.history = self.history[rows]

    def join(self, other: Self) -> None:
        """Append the sequences of another state of the same model."""
        self.prefix = np.concatenate([self.prefix, other.prefix])
        # a model that copies words has a column for each of the batch's unknown words
        self.logits = _concatenate_padded(self.logits, other.logits, NEG_INF)
        if self.history is not None and other.history is not None:
            reverse = self.history.flip(1), other.history.flip(1)  # padded on the left
            self.history = _concatenate_padded(*reverse, HISTORY_PAD).flip(1)


def _concatenate_padded(first: Tensor, second: Tensor, value: float) -> Tensor:
    """Concatenate rows, padded on the right to the same length."""
    length = max(first.shape[1], second.shape[1])
    return torch.cat(
        [pad(rows, (0, length - rows.shape[1]), value=value) for rows in (first, second)]
    )


def start_decoding(
    model: ScoringModel, prompts: Prompts, config: GenerationConfig, limits: Sequence[int]
) -> DecodeState:
    """Run the prompts, with a key/value cache or a recurrent state if the model has one."""
    if isinstance(model, Transformer):
        return CachedDecodeState(model, prompts, config, limits)
    if isinstance(model, RnnSeq2Seq):
        return RnnSeq2SeqDecodeState(model, prompts, config)
    if isinstance(model, RecurrentLanguageModel):
        return RecurrentLmDecodeState(model, prompts, config)
    return DecodeState(model, prompts, config)


class RecurrentDecodeState(DecodeState):
    """Sequences that are continued from the state of a recurrent network after the last token."""

    state: DecoderState | RecurrentState

    def reorder(self, rows: Tensor) -> None:
        self.state.select(rows)
        super().reorder(rows)

    def keep_prompts(self, prompts: Sequence[int]) -> None:
        first = torch.tensor(prompts, device=self.logits.device)[:, None] * self.per_prompt
        offsets = torch.arange(self.per_prompt, device=first.device)
        self.state.select((first + offsets).flatten())
        super().keep_prompts(prompts)

    def join(self, other: Self) -> None:
        self.state.join(other.state)  # type: ignore[arg-type]  # states of one model have one type
        super().join(other)


class RnnSeq2SeqDecodeState(RecurrentDecodeState):
    """Sequences that a recurrent encoder-decoder generates."""

    state: DecoderState

    def __init__(self, network: RnnSeq2Seq, prompts: Prompts, config: GenerationConfig) -> None:
        """Run the encoder on the prompts."""
        self.network, self.per_prompt = network, config.num_sequences
        self.prefix = np.zeros(len(prompts) * self.per_prompt, np.int64)
        self.history = _history(network, prompts, self.per_prompt)
        device = network.device
        tokens = torch.tensor([id for prompt in prompts for id in prompt], device=device)
        mask = Mask([len(prompt) for prompt in prompts], device=device)
        self.state = network.start(network.encode_source(tokens, mask), mask)
        rows = torch.arange(len(prompts), device=device)
        self.state.select(rows.repeat_interleave(self.per_prompt))
        self.forward()

    def forward(self) -> None:
        assert self.history is not None
        outputs, _ = self.network.step(self.history[:, -1], self.state)
        self.logits = self.network.logits(outputs).float()


class RecurrentLmDecodeState(RecurrentDecodeState):
    """Sequences that a recurrent language model continues, one token per step."""

    state: RecurrentState

    def __init__(
        self, network: RecurrentLanguageModel, prompts: Prompts, config: GenerationConfig
    ) -> None:
        """Run the prompts."""
        self.network, self.per_prompt = network, config.num_sequences
        self.prefix = np.zeros(len(prompts) * self.per_prompt, np.int64)
        self.history = _history(network, prompts, self.per_prompt)
        self.state, device = RecurrentState(), network.device
        tokens = torch.tensor([id for prompt in prompts for id in prompt], device=device)
        self._run(tokens, [len(prompt) for prompt in prompts])
        rows = torch.arange(len(prompts), device=device).repeat_interleave(self.per_prompt)  # (B,)
        self.state.select(rows)
        self.logits = self.logits[rows]

    def forward(self) -> None:
        assert self.history is not None
        self._run(self.history[:, -1], [1] * len(self.history))

    def _run(self, tokens: Tensor, lengths: list[int]) -> None:
        mask = Mask.causal(lengths, device=self.network.device)
        hidden = self.network(tokens, mask, state=self.state)
        self.logits = self.network.logits(hidden[mask.starts[1:] - 1]).float()  # (B, V)


class CachedDecodeState(DecodeState):
    """Sequences that a Transformer decodes with a key/value cache."""

    def __init__(
        self,
        network: Transformer,
        prompts: Prompts,
        config: GenerationConfig,
        limits: Sequence[int],
    ) -> None:
        """Run the prompts; `limits` is the maximum number of new tokens of each."""
        self.network, self.per_prompt = network, config.num_sequences
        self.prefix = np.repeat(prefix_lengths(network, prompts), self.per_prompt)
        self.cache, hidden = prefill(network, prompts, limits)
        # The first positions are equal in all sequences of a prompt, but for the last of the
        # prompt, which a sequence that ends at once overwrites.
        self.shared = max(0, int(self.cache.lengths.min()) - 1)
        self.logits = network.logits(hidden).float().repeat_interleave(self.per_prompt, 0)  # (B, V)
        if self.per_prompt > 1:
            self.cache.repeat(self.per_prompt)
        self.history = None
        if config.needs_history:
            self.history = _history(network, prompts, self.per_prompt)
        self._allocate()

    def _allocate(self) -> None:
        """Allocate the input tensors of a step for the current number of sequences."""
        device, rows = self.logits.device, len(self.logits)
        self._mask = Mask.causal([1] * rows, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self._ended = torch.zeros(rows, dtype=torch.long, device=device)
        self._step = GraphedStep(device)
        self._c_decoder = make_c_decoder(self.network, self.cache)
        self._gpu_decoder = make_gpu_decoder(self.network, self.cache, self.per_prompt, self.shared)

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        if self.history is not None:
            self.history = torch.cat([self.history, tokens[:, None]], dim=1)
        self.set_inputs(tokens, ended)
        self.run_step(self._step, self.forward)

    def set_inputs(self, tokens: Tensor, ended: Tensor) -> None:
        """Copy the inputs of the next forward pass into place."""
        self._tokens.copy_(tokens)
        self._ended.copy_(ended)

    def forward(self) -> None:
        # An ended sequence overwrites its last cache position: it may have no free one.
        self.cache.lengths -= self._ended
        decoder = self._c_decoder or self._gpu_decoder
        if decoder is not None:
            decoder.step(self._tokens, self.cache, self.logits)
            self.cache.advance(self._mask)
            return
        hidden = self.network(self._tokens, self._mask, cache=self.cache)
        self.logits.copy_(self.network.logits(hidden))

    def decode_greedily(self, selected: SelectedTokens, max_steps: int) -> int:
        """Decode up to `max_steps` tokens greedily in C, and return how many there were.

        The network has seen all but the last of them. Returns 0 without the C decoder.
        """
        if self._c_decoder is None:
            return 0
        count = self._c_decoder.generate(self._tokens, self.cache, self.logits, selected, max_steps)
        self.cache.used += count - 1
        return count

    def run_step(self, graphed: GraphedStep, step: Step) -> None:
        """Run a step that adds one token to each sequence, as a CUDA graph where possible."""
        used = self.cache.used
        # the steps of a GPU decoder are the same for any number of cached tokens
        graphed(step, 0 if self._gpu_decoder else self.cache.attended_length(1))
        self.cache.used = used + 1  # a replayed graph runs no Python code

    @property
    def reorders_in_place(self) -> bool:
        """Whether reordering is the same computation in every step, as a CUDA graph needs it."""
        return self._gpu_decoder is not None and self.history is None

    def reorder(self, rows: Tensor) -> None:
        if self._gpu_decoder is not None:
            self._gpu_decoder.reorder(rows)
        else:
            self.cache.select(rows, since=self.shared)
        super().reorder(rows)

    def keep_prompts(self, prompts: Sequence[int]) -> None:
        if self._gpu_decoder is not None:
            self._gpu_decoder.copy_origins()
        self.cache.keep_sources(prompts)
        super().keep_prompts(prompts)
        self._allocate()


def prefill(
    network: Transformer, prompts: Prompts, limits: Sequence[int]
) -> tuple[KVCache, Tensor]:
    """Run all prompts in one batch; return the cache and the last hidden states."""  # (S, W)
    device = network.device
    tokens = torch.tensor([id for prompt in prompts for id in prompt], device=device)
    lengths = [len(prompt) for prompt in prompts]
    has_encoder = network.config.has_encoder
    decoder_lengths = [1] * len(prompts) if has_encoder else lengths
    longest = max(map(sum, zip(decoder_lengths, limits, strict=True)))
    network.stack.check_length(longest - 1)  # the last token is not fed to the network
    stride = CACHE_STRIDE.get(device.type, 1)
    shape = len(prompts), -(-longest // stride) * stride
    cache = KVCache.empty(network.config, *shape, device=device, dtype=network.dtype)
    cache.stride = stride
    if has_encoder:
        cache.memory = Mask(lengths, device=device)
        memory = network.encode(tokens, cache.memory)
        start_id = network.config.decoder_start_token_id or 0
        start = torch.full((len(prompts),), start_id, device=device)
        mask = Mask.causal(decoder_lengths, device=device)
        return cache, network(start, mask, memory=memory, cache=cache)
    mask = Mask(lengths, prefix=prefix_lengths(network, prompts), device=device)
    hidden = network(tokens, mask, cache=cache)
    return cache, hidden[torch.tensor(lengths, device=device).cumsum(0) - 1]


def prefix_lengths(network: ScoringModel, prompts: Prompts) -> Longs:
    """Return how many tokens of each prompt attend in both directions (a prefix LM: all)."""
    return np.array([network.config.prefix_length(len(prompt)) for prompt in prompts])


def _history(network: ScoringModel, prompts: Prompts, per_prompt: int) -> Tensor:
    """Return the decoder's input tokens of each sequence, padded on the left."""  # (B, T)
    if network.config.has_encoder:
        prompts = [[network.config.decoder_start_token_id or 0]] * len(prompts)
    rows = [torch.tensor(prompt) for prompt in prompts]
    padded = pad_sequence(rows, batch_first=True, padding_value=HISTORY_PAD, padding_side="left")
    return padded.to(network.device).repeat_interleave(per_prompt, 0)
