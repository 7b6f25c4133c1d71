"""Settings of the comparison of architectures, for each budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from firth.study.architecture_plans import PLANS, ModelSize
from firth.utils.config_fields import Doc


@dataclass(frozen=True, kw_only=True)
class ArchitectureSettings:
    """Settings of the study."""

    architectures: Annotated[tuple[str, ...], Doc("Architectures that are compared.")] = tuple(
        PLANS
    )
    tokens: Annotated[
        int,
        Doc("Tokens of the encoder in all tables, and of all architectures in the first.", min=1),
    ] = 24_576
    num_layers: Annotated[int, Doc("Number of layers.", min=1)] = 2
    hidden_size: Annotated[int, Doc("Hidden size.", min=1)] = 64
    num_heads: Annotated[int, Doc("Number of attention heads.", min=1)] = 2
    ffn_size: Annotated[int, Doc("Size of the feed-forward layers.", min=1)] = 176
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 2000
    words: Annotated[int, Doc("Words of the stories, unless --text is given.", min=1)] = 300_000
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 128
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    mask_prob: Annotated[
        float, Doc("Fraction of tokens that masked objectives predict.", min=0)
    ] = 0.3
    tasks: Annotated[tuple[str, ...], Doc("Tasks of fine-tuning: classify, tag.")] = ("classify",)
    labels: Annotated[int, Doc("Labelled training examples; 0: all.", min=0)] = 400
    steps: Annotated[int, Doc("Optimizer steps of fine-tuning.", min=1)] = 60
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    learning_rate: Annotated[float, Doc("Peak learning rate of fine-tuning.", min=0)] = 2e-3
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300
    texts: Annotated[int, Doc("Held-out texts for bits per byte and cloze accuracy.", min=1)] = 200
    max_words: Annotated[int, Doc("Maximum number of words of a text.", min=1)] = 40
    pairs: Annotated[int, Doc("Maximum number of minimal pairs.", min=1)] = 150
    pairs_file: Annotated[str, Doc("File of minimal pairs; empty: those of the stories.")] = ""

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
