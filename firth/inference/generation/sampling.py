"""Greedy decoding and sampling.

S  prompts     B  sequences: n of each prompt, side by side     V  vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth.inference.batching import nan_error
from firth.inference.generation.cuda_graph import GraphedStep
from firth.inference.generation.decode_state import CachedDecodeState, Prompts, start_decoding
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import (
    ForcedTokens,
    filter_logits,
    penalize_repetition,
    sample_tokens,
)
from firth.inference.generation.special_tokens import EosTokens, as_ids
from firth.models.language_model import ScoringModel
from firth.quantization.c_decoder import SelectedTokens
from firth.utils.rng import derive_keys, uniform

# Steps between two checks for finished sequences: a check synchronises with the GPU.
CHECK_INTERVAL = {"cuda": 8}
SAMPLING_STREAM = 11  # separates these random numbers from others of the same seed
FINISH_REASONS = ("", "end", "stop", "length")
RUNNING, END, STOP, LENGTH = range(4)

# Whether the completion of a prompt (its index in the batch) contains a stop string.
StopCheck = Callable[[int, Sequence[int]], bool]


@dataclass(frozen=True, kw_only=True)
class GeneratedTokens:
    """The generated tokens of one completion, without the end token."""

    tokens: tuple[int, ...]
    logprob: float  # sum over all tokens and the end token, before logits processors
    score: float  # mean log-probability of a token; for beams, the length-penalised score
    finish_reason: str  # end (end token), stop (stop string) or length (token limit)
    eos_token_id: int | None = None  # the end token, if it was generated


class TokenSampler:
    """Decodes completions greedily or by sampling, step by step."""

    @torch.inference_mode()
    def __init__(
        self,
        network: ScoringModel,
        prompts: Prompts,
        config: GenerationConfig,
        *,
        eos_token_id: EosTokens,
        limits: Sequence[int],
        indices: Sequence[int],
        should_stop: StopCheck | None = None,
    ) -> None:
        """`limits`: maximum new tokens per prompt; `indices`: each prompt's random stream."""
        self.config, self.eos_token_ids, self.should_stop = (
            config,
            as_ids(eos_token_id),
            should_stop,
        )
        self.forced = ForcedTokens.of(network.config)
        per_prompt, rows = config.num_sequences, len(prompts) * config.num_sequences
        self.state = start_decoding(network, prompts, config, limits)
        device = self.state.logits.device
        self.max_steps, self.step_count = max(limits), 0
        self.tokens = torch.zeros(rows, self.max_steps, dtype=torch.long, device=device)
        self.sums = torch.zeros(rows, dtype=torch.float64, device=device)  # log-probabilities
        self.sizes = torch.zeros(rows, dtype=torch.long, device=device)  # tokens, with the end
        self.ended = torch.zeros(rows, dtype=torch.long, device=device)  # RUNNING, END, …
        self.limits = torch.tensor(limits, device=device).repeat_interleave(per_prompt)
        self.uniforms: Tensor | None = None  # (B, max_steps)
        if config.method == "sample":
            uniforms = _uniforms(config.seed, indices, per_prompt, self.max_steps)
            self.uniforms = uniforms.to(device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # step_count, on the device
        self.active = list(range(rows))  # sequences in the batch
        self.finished: dict[int, GeneratedTokens] = {}
        self.generated: list[list[int]] = [[] for _ in range(rows)]  # only for `should_stop`
        self._graphed = GraphedStep(device)
        # at an address that the C decoder can read
        self._eos_tensor = torch.tensor(self.eos_token_ids, dtype=torch.long)

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return self.step_count == self.max_steps or not self.active

    @torch.inference_mode()
    def step(self, max_steps: int = 1) -> Tensor:
        """Generate one token per sequence, or up to `max_steps`; return the last ones."""  # (B,)
        state, on_device = self.state, not self.config.needs_history and self.should_stop is None
        if on_device and isinstance(state, CachedDecodeState):
            greedy = self.uniforms is None and not self.forced
            if greedy and (count := state.decode_greedily(self._selected(), max_steps)):
                self.step_count += count
                return self._advance(self.tokens[:, self.step_count - 1])
            if self._graphed.uses_graphs and self.step_count + 1 < self.max_steps:
                self.step_count += 1
                state.run_step(self._graphed, partial(self._select_and_forward, state))
                tokens = self.tokens[:, self.step_count - 1]
                self._drop_finished()
                return tokens
        self.step_count += 1
        return self._advance(self._select())

    def _advance(self, tokens: Tensor) -> Tensor:
        """Feed the selected tokens to the network, without finished prompts."""  # (B,)
        if self.step_count < self.max_steps:
            rows = self._drop_finished()
            if self.active:
                self.state.advance(tokens[rows], self.ended != RUNNING)
        return tokens

    def _selected(self) -> SelectedTokens:
        """Return the addresses of the tensors that the C decoder updates."""
        names = ("tokens", "sums", "sizes", "ended", "position", "limits")
        addresses = {name: getattr(self, name).data_ptr() for name in names}
        return SelectedTokens(
            **addresses,
            eos_token_ids=self._eos_tensor.data_ptr(),
            num_eos=len(self._eos_tensor),
            max_tokens=self.max_steps,
            vocab_size=self.state.logits.shape[1],
        )

    def _select_and_forward(self, state: CachedDecodeState) -> None:
        state.set_inputs(self._select(), self.ended != RUNNING)
        state.forward()

    def _select(self) -> Tensor:
        """Select the next token of each sequence, without synchronising with the device."""  # (B,)
        logits = self.state.logits
        processed = penalize_repetition(logits, self.state.history, self.config)
        processed = self.forced.apply(processed, self.position, self.limits)
        if self.uniforms is None:
            tokens = processed.argmax(-1)
        else:
            uniforms = self.uniforms.index_select(1, self.position).squeeze(1)
            tokens = sample_tokens(filter_logits(processed, self.config), uniforms)
        nll = cross_entropy(logits, tokens, reduction="none")  # (B,)
        running = self.ended == RUNNING
        self.sums -= nll.where(running, 0.0)
        self.sizes += running
        self.tokens.index_copy_(1, self.position, tokens[:, None])
        self.position += 1
        self.ended += self._finish_codes(tokens) * running
        return tokens

    def _finish_codes(self, tokens: Tensor) -> Tensor:
        """Return why each sequence ends with this token, or RUNNING."""  # (B,)
        codes = torch.where(self.position >= self.limits, LENGTH, RUNNING)
        if self.should_stop is not None:
            codes = codes.masked_fill(self._stopped(tokens), STOP)
        for id in self.eos_token_ids:
            codes = codes.masked_fill(tokens == id, END)
        return codes

    def _stopped(self, tokens: Tensor) -> Tensor:
        """Return which sequences contain a stop string."""  # (B,)
        assert self.should_stop is not None
        stopped = []
        for row, id in zip(self.active, tokens.tolist(), strict=True):
            self.generated[row].append(id)
            prompt = row // self.config.num_sequences
            stopped.append(self.should_stop(prompt, self.generated[row]))
        return torch.tensor(stopped, device=tokens.device)

    def _drop_finished(self) -> Tensor | slice:
        """Once half of the prompts have ended, drop them; return the rows that remain."""
        if self.step_count % CHECK_INTERVAL.get(self.position.device.type, 1):
            return slice(None)
        per_prompt = self.config.num_sequences
        running = (self.ended == RUNNING).view(-1, per_prompt).any(1)  # (S,)
        if 2 * int(running.sum()) > len(running):  # the only synchronisation with the device
            return slice(None)
        self._store_results()
        kept = running.nonzero().flatten()
        rows = (kept[:, None] * per_prompt + torch.arange(per_prompt, device=kept.device)).flatten()
        self.active = [self.active[row] for row in rows.tolist()]
        for name in ("tokens", "sums", "sizes", "ended", "limits"):
            setattr(self, name, getattr(self, name)[rows])
        self.uniforms = None if self.uniforms is None else self.uniforms[rows]
        if self.active:
            self.state.keep_prompts(kept.tolist())
            self._graphed = GraphedStep(rows.device)
        return rows

    def _store_results(self) -> None:
        """Store the current state of all active sequences as results."""
        parts = self.tokens, self.sizes, self.sums, self.ended
        for row, *values in zip(self.active, *(part.tolist() for part in parts), strict=True):
            tokens, size, logprob, code = values
            result = make_generated_tokens(tokens[:size], code, logprob, logprob / size)
            self.finished[row] = result

    def results(self) -> list[list[GeneratedTokens]]:
        """Return the completions of each prompt."""
        self._store_results()
        per_prompt = self.config.num_sequences
        rows = [self.finished[row] for row in sorted(self.finished)]
        return [rows[i : i + per_prompt] for i in range(0, len(rows), per_prompt)]


def make_generated_tokens(
    tokens: Sequence[int], code: int, logprob: float, score: float
) -> GeneratedTokens:
    """Build a result, without the end token."""
    if math.isnan(logprob):
        raise nan_error()
    kept, end = (tokens[:-1], tokens[-1]) if code == END else (tokens, None)
    return GeneratedTokens(
        tokens=tuple(kept),
        logprob=logprob,
        score=score,
        finish_reason=FINISH_REASONS[code],
        eos_token_id=end,
    )


def _uniforms(seed: int, indices: Sequence[int], per_prompt: int, steps: int) -> Tensor:
    """Return uniform numbers that depend on seed, prompt index and step, not on the batch."""
    prompts = derive_keys(seed, np.asarray(indices))  # (S,)
    sequences = derive_keys(prompts[:, None], np.arange(per_prompt)).reshape(-1)  # (B,)
    keys = derive_keys(sequences[:, None], np.arange(steps))
    return torch.from_numpy(uniform(keys, SAMPLING_STREAM))  # (B, steps)
