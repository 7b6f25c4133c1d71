"""What continuous batching is given, a sequence to generate, and what it returns, its tokens."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from firth.inference.generation.generation_config import GenerationConfig
from firth.models.config import LanguageModelConfig, ModelConfig
from firth.models.language_model import ScoringModel
from firth.models.transformer import max_input_length, max_output_length
from firth.tokenizers.open_vocabulary import FIRST_OPEN_ID
from firth.utils.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SequenceRequest:
    """A prompt and how to continue it, greedily or by sampling.

    Of `config` the options that select a token are used: the length is `limit`, one request is one
    completion, and stop strings are the caller's.

    >>> SequenceRequest(prompt=(5, 9), limit=8, eos_token_ids=(2,)).size
    10
    """

    prompt: tuple[int, ...]  # token ids, with special tokens; of an encoder-decoder its input
    limit: int  # maximum number of new tokens
    config: GenerationConfig = field(default_factory=GenerationConfig)
    index: int = 0  # number of this completion of the prompt: selects the random numbers
    prompt_index: int = 0  # number of the prompt, as in `generate`: selects them, too
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to logits of tokens
    logprobs: int = 0  # most probable tokens to return with each token
    eos_token_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The maximum number of tokens, with the prompt."""
        return len(self.prompt) + self.limit

    def check(self, network: ScoringModel) -> None:
        """Raise UsageError if a model cannot generate this."""
        config = network.config
        if self.config.method == "beam":
            raise UsageError("Sequences that join a batch are generated greedily or by sampling.")
        if not self.prompt or self.limit < 1:
            raise UsageError("A request needs a prompt of at least one token, and a limit above 0.")
        self._check_ids(config)
        longest, size = max_output_length(network), self.size
        if config.has_encoder:
            size = self.limit + 1
            if len(self.prompt) > (longest_input := max_input_length(network)):
                longest, size = longest_input, len(self.prompt)
        if size > longest:
            raise UsageError(
                f"Prompt and completion have up to {size:,} tokens, but the model's context is "
                f"{longest:,} tokens: shorten the prompt or generate fewer tokens."
            )

    def _check_ids(self, config: LanguageModelConfig) -> None:
        """Raise UsageError for a token outside of the vocabulary."""
        encoder = config.encoder if isinstance(config, ModelConfig) else None
        size, prompt_size = config.vocab_size, (encoder or config).vocab_size
        outside = [id for id in self.prompt if not 0 <= id < prompt_size]
        if config.open_vocabulary:
            outside = [id for id in outside if id < FIRST_OPEN_ID]
        outside += [id for id in self.logit_bias if not 0 <= id < size]
        if outside:
            raise UsageError(f"The token id {outside[0]} is outside of the model's vocabulary.")


class TokenLogprob(NamedTuple):
    """A token and its log-probability, before any option changes the logits."""

    token: int
    logprob: float


@dataclass(frozen=True)
class StepToken:
    """The next token of one sequence."""

    key: Hashable  # of the request
    token: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()  # the most probable tokens, `logprobs` of them
    finish: str = ""  # "end": an end token; "length": the limit is reached; "invalid": no token,
    # as the logits are NaN or infinite; "": the sequence goes on
