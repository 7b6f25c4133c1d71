"""Generate tokens: greedy decoding, sampling and beam search over token ids."""

from __future__ import annotations

from collections.abc import Sequence

from firth.inference.generation.beam_search import beam_search
from firth.inference.generation.copied_words import CopiedWords
from firth.inference.generation.decode_state import Prompts
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.sampling import GeneratedTokens, StopCheck, TokenSampler
from firth.inference.generation.special_tokens import EosTokens
from firth.models.language_model import ScoringModel
from firth.models.transformer import max_output_length
from firth.utils.errors import UsageError

STEPS_PER_CALL = 16  # tokens decoded in one C call, which Ctrl-C cannot interrupt


def generate(
    network: ScoringModel,
    prompts: Prompts,
    config: GenerationConfig = GenerationConfig(),
    *,
    eos_token_id: EosTokens,
    limits: Sequence[int] | None = None,
    indices: Sequence[int] | None = None,
    should_stop: StopCheck | None = None,
) -> list[list[GeneratedTokens]]:
    """Generate n completions of each prompt; those of beam search are sorted, best first.

    A decoder continues its prompt; for an encoder-decoder, the prompt is the encoder's input.
    Each of several `eos_token_id` ends a completion.
    Prompts may have different lengths. `limits` is the maximum number of new tokens per prompt;
    `indices` are the prompts' numbers: samples depend on these and the seed, not on the batch.
    """
    if not prompts:
        return []
    copied = CopiedWords.of(network.config, prompts)
    prompts, should_stop = copied.prompts, copied.stop_check(should_stop)
    limits = _free_positions(network, prompts) if limits is None else limits
    limits = [min(config.max_new_tokens, limit) for limit in limits]
    if config.method == "beam":
        results = beam_search(
            network,
            prompts,
            config,
            eos_token_id=eos_token_id,
            limits=limits,
            should_stop=should_stop,
        )
        return copied.restore_results(results)
    sampler = TokenSampler(
        network,
        prompts,
        config,
        eos_token_id=eos_token_id,
        limits=limits,
        indices=range(len(prompts)) if indices is None else indices,
        should_stop=should_stop,
    )
    while not sampler.done:
        sampler.step(STEPS_PER_CALL)
    return copied.restore_results(sampler.results())


def _free_positions(network: ScoringModel, prompts: Prompts) -> list[int]:
    """Return how many new tokens fit after each prompt."""
    max_length = max_output_length(network)
    if network.config.has_encoder:
        return [max_length - 1] * len(prompts)
    if (longest := max(map(len, prompts))) >= max_length:
        raise UsageError(
            f"A prompt has {longest:,} tokens, but the model's context is {max_length:,} tokens; "
            "shorten it."
        )
    return [max_length - len(prompt) for prompt in prompts]


def greedy_decode(
    network: ScoringModel, prompts: Prompts, *, max_new_tokens: int, eos_token_id: EosTokens
) -> list[list[int]]:
    """Return the greedy completion of each prompt, without the end token."""
    config = GenerationConfig(max_new_tokens=max_new_tokens)
    results = generate(network, prompts, config, eos_token_id=eos_token_id)
    return [list(result.tokens) for [result] in results]
