"""Settings of the comparison of architectures, for each budget."""

from __future__ import annotations

from dataclasses import dataclass

from firth.study.architecture_plans import PLANS, ModelSize


@dataclass(frozen=True, kw_only=True)
class ArchitectureSettings:
    """Settings of the study."""

    architectures: tuple[str, ...] = tuple(PLANS)
    tokens: int = 24_576  # of the encoder in all tables, and of all architectures in the first
    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 2
    ffn_size: int = 176
    vocab_size: int = 2000
    words: int = 300_000  # of the stories
    max_length: int = 128
    batch_tokens: int = 1024
    mask_prob: float = 0.3
    tasks: tuple[str, ...] = ("classify",)  # fine-tuned, on the stories
    labels: int = 400  # training examples; 0: all
    steps: int = 60  # of fine-tuning
    batch_size: int = 16
    learning_rate: float = 2e-3  # of fine-tuning
    test_size: int = 300
    texts: int = 200  # held-out texts for bits per byte and cloze accuracy
    max_words: int = 40  # of a text
    pairs: int = 150  # minimal pairs
    pairs_file: str = ""  # with minimal pairs; empty: those of the stories

    @property
    def size(self) -> ModelSize:
        """The size of the models."""
        return ModelSize(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            ffn_size=self.ffn_size,
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            mask_prob=self.mask_prob,
        )


MEDIUM = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_heads": 4,
    "ffn_size": 344,
    "vocab_size": 4000,
    "words": 1_000_000,
    "tokens": 1_048_576,
    "labels": 1000,
    "steps": 200,
    "learning_rate": 1e-3,
    "tasks": ("classify", "tag"),
}

LARGE = {
    "num_layers": 12,
    "hidden_size": 512,
    "num_heads": 8,
    "ffn_size": 1376,
    "vocab_size": 16_000,
    "words": 3_000_000,
    "tokens": 30_000_000,
    "batch_tokens": 16_384,
    "max_length": 256,
    "tasks": ("classify", "tag"),
    "labels": 0,
    "steps": 500,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "test_size": 2000,
    "texts": 1000,
    "max_words": 100,
    "pairs": 1000,
}
