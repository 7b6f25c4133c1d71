"""Prompts whose unknown words a model may copy into its output (pointer-generator).

Inside the network, the unknown words of a prompt are numbered from the end of the vocabulary on;
outside it, they have ids of the open vocabulary (`firth/tokenizers/open_vocabulary.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firth.inference.generation.sampling import GeneratedTokens, StopCheck
from firth.models.config import LanguageModelConfig
from firth.tokenizers.open_vocabulary import extended_ids, restored_ids


@dataclass(frozen=True)
class CopiedWords:
    """Prompts with numbered unknown words, and these words."""

    prompts: list[list[int]]
    words: list[list[str]]
    vocab_size: int

    @classmethod
    def of(cls, config: LanguageModelConfig, prompts: Sequence[Sequence[int]]) -> CopiedWords:
        """Number the unknown words of each prompt; a model that copies none has none.

        >>> config = LanguageModelConfig(architecture="decoder", vocab_size=9, max_positions=8)
        >>> CopiedWords.of(config, [(3, 4)]).prompts
        [[3, 4]]
        """
        if not config.copies_words:
            return cls([list(prompt) for prompt in prompts], [[] for _ in prompts], 0)
        pairs = [extended_ids(np.array(prompt), config.vocab_size) for prompt in prompts]
        numbered, words = [ids.tolist() for ids, _ in pairs], [own for _, own in pairs]
        return cls(numbered, words, config.vocab_size)

    def restore(self, prompt: int, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that were generated for a prompt, with open ids of copied words."""
        words = self.words[prompt]
        return restored_ids(tokens, words, self.vocab_size) if words else list(tokens)

    def restore_results(self, results: list[list[GeneratedTokens]]) -> list[list[GeneratedTokens]]:
        """Restore the tokens of all completions of each prompt."""
        return [
            [replace(one, tokens=tuple(self.restore(i, one.tokens))) for one in own]
            for i, own in enumerate(results)
        ]

    def stop_check(self, should_stop: StopCheck | None) -> StopCheck | None:
        """Give a check for stop strings the restored tokens."""
        if should_stop is None:
            return None
        return lambda prompt, tokens: should_stop(prompt, self.restore(prompt, tokens))
