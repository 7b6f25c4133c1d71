"""Batched beam search; `reference.py` has the plain version.

    S  prompts     K  beams     V  vocabulary     M  maximum number of new tokens

Scores, ends and ties are handled as in `transformers`, so that both find the same completions: of
the 2 K best continuations of a prompt, the best K that have not ended become the next beams; those
among the first K that have ended are kept if they beat what was kept before, by log-probability
divided by length ** length_penalty (Wu et al. 2016, section 7, for the idea).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from firth.inference.generation.cuda_graph import GraphedStep
from firth.inference.generation.decode_state import (
    CachedDecodeState,
    DecodeState,
    Prompts,
    start_decoding,
)
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import ForcedTokens, penalize_repetition
from firth.inference.generation.sampling import (
    CHECK_INTERVAL,
    END,
    LENGTH,
    RUNNING,
    STOP,
    GeneratedTokens,
    StopCheck,
    make_generated_tokens,
)
from firth.inference.generation.special_tokens import EosTokens, as_ids
from firth.models.language_model import ScoringModel

MIN_SCORE = -1e9  # below any real score, and finite

# The tokens (V,) that may follow the generated ones of a prompt (its index in the batch).
AllowedTokens = Callable[[int, Sequence[int]], Tensor]


@dataclass
class Beams:
    """K sequences of each prompt, best first."""

    tokens: Tensor  # (S, K, M)
    scores: Tensor  # (S, K) what they are ranked by
    logprobs: Tensor  # (S, K) before logits processors
    sizes: Tensor  # (S, K) number of tokens
    ended: Tensor  # (S, K) RUNNING, END, …

    @classmethod
    def empty(cls, prompts: int, beams: int, max_tokens: int, device: torch.device) -> Beams:
        """Return placeholders that rank below any sequence."""
        zeros = torch.zeros(prompts, beams, dtype=torch.long, device=device)
        scores = torch.full((prompts, beams), MIN_SCORE, device=device)
        tokens = zeros.new_zeros(prompts, beams, max_tokens)
        return cls(tokens, scores, torch.zeros_like(scores), zeros, zeros.clone())

    def take(self, which: Tensor) -> Beams:
        """Select beams of each prompt."""  # which: (S, J)
        return Beams(
            *(
                part.take_along_dim(which if part.dim() == 2 else which[..., None], 1)
                for part in self.parts()
            )
        )

    def best(self, other: Beams) -> Beams:
        """Merge with other beams and keep the best K of each prompt."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        both = Beams(*(torch.cat(pair, 1) for pair in pairs))
        return both.take(both.scores.topk(self.scores.shape[1]).indices)

    def keep_prompts(self, prompts: Sequence[int]) -> Beams:
        """Select the beams of these prompts."""
        return Beams(*(part[list(prompts)] for part in self.parts()))

    def copy_(self, other: Beams) -> None:
        """Overwrite these beams: their tensors stay in place, for a CUDA graph."""
        for part, new in zip(self.parts(), other.parts(), strict=True):
            part.copy_(new)

    def parts(self) -> list[Tensor]:
        """Return the tensors in field order."""
        return [getattr(self, field.name) for field in fields(self)]


@torch.inference_mode()
def beam_search(
    network: ScoringModel,
    prompts: Prompts,
    config: GenerationConfig,
    *,
    eos_token_id: EosTokens,
    limits: Sequence[int],
    should_stop: StopCheck | None = None,
    allowed_tokens: AllowedTokens | None = None,
) -> list[list[GeneratedTokens]]:
    """Return the n best completions of each prompt, best first.

    With `allowed_tokens`, the logits of all other tokens are masked (constrained decoding).
    """
    state = start_decoding(network, prompts, config, limits)
    ends, forced = as_ids(eos_token_id), ForcedTokens.of(network.config)
    search = BeamSearch(state, config, ends, forced, limits, should_stop, allowed_tokens)
    results: dict[int, list[GeneratedTokens]] = {}
    interval = CHECK_INTERVAL.get(state.logits.device.type, 1)
    while search.active:
        advanced = search.graphed_step()
        if not advanced:
            search.step()
        if search.step_count % interval == 0 or search.step_count == max(limits):
            going = search.going.tolist()  # the only synchronisation with the device
            ended = [i for i, goes_on in enumerate(going) if not goes_on]
            if 2 * len(ended) >= len(going):
                results |= {search.active[i]: search.results(i) for i in ended}
                search.keep_prompts([i for i, goes_on in enumerate(going) if goes_on])
        if search.active and not advanced:
            search.advance()
    return [results[i] for i in range(len(prompts))]


class BeamSearch:
    """The state of a beam search: the running beams and the best ended sequences."""

    def __init__(
        self,
        state: DecodeState,
        config: GenerationConfig,
        eos_token_ids: Sequence[int],
        forced: ForcedTokens,
        limits: Sequence[int],
        should_stop: StopCheck | None,
        allowed_tokens: AllowedTokens | None,
    ) -> None:
        self.state, self.config, self.allowed_tokens = state, config, allowed_tokens
        self.eos_token_ids, self.forced, self.should_stop = eos_token_ids, forced, should_stop
        prompts, device = len(limits), state.logits.device
        shape = prompts, config.beams, max(limits), device
        self.running, self.kept = Beams.empty(*shape), Beams.empty(*shape)
        if allowed_tokens is not None:
            self.running.scores.fill_(-torch.inf)  # may be all that is left
        self.running.scores[:, 0] = 0.0  # all beams start equal: expand only the first
        self.limits = torch.tensor(limits, device=device)[:, None]  # (S, 1)
        self.going = torch.ones(prompts, dtype=torch.bool, device=device)
        self.active = list(range(prompts))
        self.max_steps, self.step_count = max(limits), 0
        penalties = [float(size**config.length_penalty) for size in range(1, self.max_steps + 1)]
        self.length_penalties = torch.tensor(penalties, device=device)  # of 1, 2, … tokens
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # step_count, on the device
        self._graphed = GraphedStep(device)

    def graphed_step(self) -> bool:
        """Extend every beam and feed the new tokens to the network, in one CUDA graph if possible.

        Returns False, and does nothing, where it is not, and in the last step.
        """
        state = self.state
        on_device = self.should_stop is None and self.allowed_tokens is None
        if (
            not (on_device and isinstance(state, CachedDecodeState) and state.reorders_in_place)
            or not self._graphed.uses_graphs
            or self.step_count + 1 >= self.max_steps
        ):
            return False
        state.run_step(self._graphed, partial(self._extend_and_forward, state))
        self.step_count += 1
        return True

    def _extend_and_forward(self, state: CachedDecodeState) -> None:
        self._extend()
        state.set_inputs(*self._inputs())
        state.forward()

    def step(self) -> None:
        """Extend every beam by one token."""
        self._extend()
        self.step_count += 1

    def _extend(self) -> None:
        candidates, parents = self._candidates()
        over, beams = candidates.ended != RUNNING, self.config.beams
        self._keep_ended(candidates, over)
        scores = candidates.scores + over * MIN_SCORE
        best = scores.topk(beams).indices
        self.running.copy_(replace(candidates, scores=scores).take(best))
        offsets = torch.arange(len(self.active), device=best.device)[:, None] * beams
        self.state.reorder((parents.take_along_dim(best, 1) + offsets).flatten())
        self.going &= self._may_improve() & (self.position < self.limits[:, 0])

    def _keep_ended(self, candidates: Beams, over: Tensor) -> None:
        """Keep ended candidates that beat the kept ones."""
        first = torch.arange(over.shape[1], device=over.device) < self.config.beams
        eligible = over & first & self.going[:, None]
        if self.config.early_stopping is True:
            eligible = eligible & (self.kept.ended == RUNNING).any(1, keepdim=True)
        penalised = candidates.scores / self._length_penalty(self.position)
        scores = penalised.where(eligible, MIN_SCORE)
        ended = candidates.ended.where(eligible, RUNNING)
        self.kept.copy_(self.kept.best(replace(candidates, scores=scores, ended=ended)))

    def _length_penalty(self, sizes: Tensor) -> Tensor:
        return self.length_penalties[sizes - 1]

    def _candidates(self) -> tuple[Beams, Tensor]:
        """Return the best continuations and the beam each continues."""
        running, beams = self.running, self.config.beams
        log_probs = self.state.logits.log_softmax(-1)  # (S K, V)
        processed = penalize_repetition(log_probs, self.state.history, self.config)
        if self.forced:
            limits = self.limits.repeat_interleave(beams)  # (S K,)
            processed = self.forced.apply(processed, self.position, limits)
        if self.allowed_tokens is not None:
            processed = processed.masked_fill(~self._allowed(self.allowed_tokens), -torch.inf)
        vocab_size = log_probs.shape[1]
        totals = processed.view(-1, beams, vocab_size) + running.scores[..., None]
        per_beam = max(2, 1 + len(self.eos_token_ids))  # K go on even if all others end
        scores, flat = totals.flatten(1).topk(min(per_beam, vocab_size) * beams)  # (S, J)
        parents, tokens = flat // vocab_size, flat % vocab_size
        candidates = running.take(parents)
        candidates.tokens.index_copy_(2, self.position, tokens[..., None])
        candidates.scores = scores
        own = log_probs.view(len(scores), -1).gather(1, flat)
        candidates.logprobs = candidates.logprobs + own
        self.position += 1
        candidates.sizes = self.position.expand_as(candidates.sizes)
        candidates.ended = self._finish_codes(candidates.tokens, tokens)
        return candidates, parents

    def _allowed(self, allowed_tokens: AllowedTokens) -> Tensor:
        """Return the tokens that may follow each running beam."""  # (S K, V)
        allowed = torch.zeros_like(self.state.logits, dtype=torch.bool)
        sequences = self.running.tokens[..., : self.step_count].flatten(0, 1).tolist()
        for row in (self.running.scores.flatten() > MIN_SCORE).nonzero().flatten().tolist():
            prompt = self.active[row // self.config.beams]
            allowed[row] = allowed_tokens(prompt, sequences[row]).to(allowed.device)
        return allowed

    def _finish_codes(self, tokens: Tensor, last: Tensor) -> Tensor:
        """Return why each sequence ends with its last token."""  # (S, J, M), (S, J) -> (S, J)
        codes = torch.where(self.position >= self.limits, LENGTH, RUNNING).expand_as(last)
        if self.should_stop is not None:
            tokens = tokens[..., : self.step_count + 1]
            stopped = [
                [self.should_stop(self.active[i], sequence) for sequence in row]
                for i, row in enumerate(tokens.tolist())
            ]
            codes = codes.masked_fill(torch.tensor(stopped, device=codes.device), STOP)
        for id in self.eos_token_ids:
            codes = codes.masked_fill(last == id, END)
        return codes

    def _may_improve(self) -> Tensor:
        """Return whether a running beam may still beat the worst kept sequence."""  # (S,)
        config, kept = self.config, self.kept
        incomplete = (kept.ended == RUNNING).any(1)
        if config.early_stopping is True:
            return incomplete
        sizes = self.position
        if config.early_stopping == "never" and config.length_penalty > 0:
            sizes = self.limits[:, 0]
        best_possible = self.running.scores[:, 0] / self._length_penalty(sizes)
        better = incomplete | (best_possible > kept.scores.min(1).values)
        return better & (self.running.scores[:, 0] != -torch.inf)  # unless no token was allowed

    def advance(self) -> None:
        """Feed the new token of every beam to the network."""
        self.state.advance(*self._inputs())

    def _inputs(self) -> tuple[Tensor, Tensor]:
        """Return the last token of each beam, and whether the search of its prompt has ended."""
        tokens = self.running.tokens.index_select(2, self.position - 1).flatten()
        return tokens, (~self.going).repeat_interleave(self.config.beams)

    def keep_prompts(self, prompts: Sequence[int]) -> None:
        """Continue with these prompts only."""
        self.active = [self.active[i] for i in prompts]
        self._graphed = GraphedStep(self.position.device)
        if prompts:
            self.state.keep_prompts(prompts)
            self.running = self.running.keep_prompts(prompts)
            self.kept = self.kept.keep_prompts(prompts)
            self.limits, self.going = self.limits[list(prompts)], self.going[list(prompts)]

    def results(self, prompt: int) -> list[GeneratedTokens]:
        """Return the n best completions of one prompt."""
        rows = zip(
            *(part[prompt, : self.config.n].tolist() for part in self.kept.parts()), strict=True
        )
        return [
            make_generated_tokens(tokens[:size], code, logprob, score)
            for tokens, score, logprob, size, code in rows
            if code != RUNNING  # a placeholder: fewer than n have ended
        ]
