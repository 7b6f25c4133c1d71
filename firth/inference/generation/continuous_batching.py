"""Continuous batching: sequences join and leave a batch between two steps (Yu et al. 2022, Orca).

    B  sequences in the batch     V  vocabulary

A step returns one token of each sequence. A sequence leaves with its last token, or when it is
removed; the others go on, and new ones take the room. Its tokens do not depend on the others:
invalid logits end the sequence that has them, and no other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from firth.inference.generation.copied_words import CopiedWords
from firth.inference.generation.decode_slots import make_slots
from firth.inference.generation.logits_processors import ForcedTokens
from firth.inference.generation.row_sampling import ActiveSequence, select_tokens
from firth.inference.generation.sequence_request import SequenceRequest, StepToken, TokenLogprob
from firth.models.language_model import ScoringModel
from firth.tokenizers.open_vocabulary import restored_ids
from firth.utils.errors import UsageError


class ContinuousBatch:
    """Sequences that are generated together.

    >>> from firth.models.ngram.config import NgramConfig
    >>> from firth.models.ngram.model import NgramModel
    >>> network = NgramModel(NgramConfig(order=1, vocab_size=5))  # every token: log-probability 0
    >>> batch = ContinuousBatch(network, max_sequences=4, max_tokens=100)
    >>> batch.add({"a": SequenceRequest(prompt=(3,), limit=2)})
    >>> [(one.key, one.token, one.finish) for one in batch.step()]
    [('a', 0, '')]
    >>> batch.add({"b": SequenceRequest(prompt=(1, 2), limit=9, eos_token_ids=(0,))})
    >>> [(one.key, one.token, one.finish) for one in batch.step()]
    [('a', 0, 'length'), ('b', 0, 'end')]
    >>> len(batch)
    0
    """

    def __init__(self, network: ScoringModel, *, max_sequences: int, max_tokens: int) -> None:
        """`max_tokens`: limit of the number of sequences times the length of the longest."""
        self.network, self.max_sequences, self.max_tokens = network, max_sequences, max_tokens
        self._slots = make_slots(network, max_sequences, max_tokens)
        self._sequences: list[ActiveSequence] = []  # one per row
        self._unread = False  # the network has not read the last token of any sequence
        self._forced = ForcedTokens.of(network.config)

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, key: Hashable) -> bool:
        return any(sequence.key == key for sequence in self._sequences)

    def fits(self, *requests: SequenceRequest) -> bool:
        """Tell whether these requests can be added now."""
        sizes = [one.request.size for one in self._sequences] + [one.size for one in requests]
        count = len(sizes)
        return count <= self.max_sequences and count * max(sizes, default=0) <= self.max_tokens

    @torch.inference_mode()
    def add(self, requests: Mapping[Hashable, SequenceRequest]) -> None:
        """Add sequences; their prompts are run in one pass.

        Raises UsageError, and adds none, if they do not fit or a request is invalid.
        """
        for request in requests.values():
            request.check(self.network)
        if not requests:
            return
        if not self.fits(*requests.values()):
            raise UsageError(
                f"{len(requests)} more sequences do not fit: the batch holds up to "
                f"{self.max_sequences:,} sequences and {self.max_tokens:,} tokens."
            )
        if used := [key for key in requests if key in self]:
            raise UsageError(f"The batch has a sequence {used[0]!r} already.")
        config = self.network.config
        copied = CopiedWords.of(config, [request.prompt for request in requests.values()])
        self._read_last_tokens()
        self._slots.add(copied.prompts, [request.limit for request in requests.values()])
        start = [config.decoder_start_token_id or 0] if config.has_encoder else None
        pairs = zip(requests.items(), copied.prompts, copied.words, strict=True)
        for (key, request), prompt, words in pairs:
            self._sequences.append(ActiveSequence(key, request, start or prompt, words))

    @torch.inference_mode()
    def step(self) -> list[StepToken]:
        """Generate one token of each sequence; those that end with it leave the batch."""
        if not self._sequences:
            return []
        self._read_last_tokens()
        logits = self._slots.logits
        totals = logits.logsumexp(-1)  # (B,)
        valid = totals.isfinite()
        if not valid.all():
            logits = logits.where(valid[:, None], 0.0)  # selecting a token must not fail
        tokens = select_tokens(logits, self._sequences, self._forced)
        results = self._results(logits, totals, tokens, valid.tolist())
        self._unread = True
        for row in reversed(range(len(results))):
            if results[row].finish:
                self._remove_row(row, clear=results[row].finish == "invalid")
        return results

    @torch.inference_mode()
    def remove(self, key: Hashable) -> None:
        """Remove a sequence before its end; one that has ended is ignored."""
        for row, sequence in enumerate(self._sequences):
            if sequence.key == key:
                return self._remove_row(row)

    def _remove_row(self, row: int, *, clear: bool = False) -> None:
        self._slots.remove(row, clear=clear)
        last = self._sequences.pop()
        if row < len(self._sequences):
            self._sequences[row] = last

    def _read_last_tokens(self) -> None:
        """Give the network the tokens that were selected last."""
        if self._unread and self._sequences:
            tokens = [sequence.history[-1] for sequence in self._sequences]
            self._slots.advance(torch.tensor(tokens, device=self.network.device))
        self._unread = False

    def _results(
        self, logits: Tensor, totals: Tensor, tokens: Tensor, valid: Sequence[bool]
    ) -> list[StepToken]:
        """Append the tokens to their sequences, with log-probabilities."""  # (B, V), (B,), (B,)
        logprobs = (logits.gather(1, tokens[:, None]).squeeze(1) - totals).tolist()
        top = self._top_tokens(logits, totals)
        results = []
        pairs = zip(self._sequences, tokens.tolist(), logprobs, top, valid, strict=True)
        for sequence, token, logprob, alternatives, is_valid in pairs:
            sequence.append(token)
            if not is_valid:
                results.append(StepToken(sequence.key, token, logprob, finish="invalid"))
                continue
            finish = "length" if sequence.count >= sequence.request.limit else ""
            finish = "end" if token in sequence.request.eos_token_ids else finish
            restored = self._restore(sequence, token)
            results.append(StepToken(sequence.key, restored, logprob, alternatives, finish))
        return results

    def _top_tokens(self, logits: Tensor, totals: Tensor) -> list[tuple[TokenLogprob, ...]]:
        """Return the most probable tokens of the sequences that ask for them."""
        counts = [min(one.request.logprobs, logits.shape[1]) for one in self._sequences]
        if not any(counts):
            return [()] * len(counts)
        values, ids = logits.topk(max(counts))  # (B, k)
        pairs = zip(self._sequences, ids.tolist(), (values - totals[:, None]).tolist(), strict=True)
        return [
            tuple(
                TokenLogprob(self._restore(one, id), value)
                for id, value in zip(row[: one.request.logprobs], scores, strict=False)
            )
            for one, row, scores in pairs
        ]

    def _restore(self, sequence: ActiveSequence, token: int) -> int:
        """Return the open id of a copied word."""
        if not sequence.words or token < self.network.config.vocab_size:
            return token
        return restored_ids([token], sequence.words, self.network.config.vocab_size)[0]
