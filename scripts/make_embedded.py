"""Make the embedded models: text, tokenizer, shards, and one pre-training run for each.

    python -m scripts.make_embedded --work build/embedded --out firth/embedded

Ten minutes on a GPU; days on a CPU. The same device gives the same bits.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import firth
from scripts.embedded_corpus import TASK_SEED, TASK_WORDS, write_training_text

WORDS = 24_000_000  # of the stories; the pages come in addition
PARTS = 48  # seeds
VOCAB_SIZE, SENTINELS = 4096, 100


@dataclass(frozen=True)
class Recipe:
    """A pre-training run: its preset, its budget and what differs from the preset's recipe."""

    preset: str
    tokens: int
    max_length: str
    overrides: dict[str, Any]


RECIPES = {
    "stories-encoder": Recipe("encoder-tiny", 400_000_000, "64:0.7,256", {"model.num_layers": 5}),
    "stories-decoder": Recipe("decoder-tiny", 180_000_000, "256", {"model.num_layers": 5}),
    "stories-seq2seq": Recipe(
        "seq2seq-tiny", 120_000_000, "256", {"model.num_layers": 3, "model.num_decoder_layers": 2}
    ),
}


def make_shards(work: Path) -> Path:
    """Write the text, train the tokenizer and prepare the shards; the demo's stories validate."""
    text, stories, tokenizer = work / "train.txt", work / "stories", work / "tokenizer"
    workers = max(1, (os.cpu_count() or 1) - 1)
    work.mkdir(parents=True, exist_ok=True)
    write_training_text(text, words=WORDS, parts=PARTS, workers=workers)
    firth.write_stories(stories, words=TASK_WORDS, seed=TASK_SEED, overwrite=True)
    trained, _ = firth.train_tokenizer(
        text, kind="bpe", specials="roberta", vocab_size=VOCAB_SIZE, sentinels=SENTINELS
    )
    trained.save(tokenizer)
    shards = work / "shards"
    firth.prepare(text, tokenizer=tokenizer, out=shards, valid=stories / "dev.txt")
    return shards


def train(name: str, shards: Path, out: Path) -> None:
    """Pre-train one of the models and save it in bf16."""
    recipe = RECIPES[name]
    run = firth.pretrain(
        preset=recipe.preset,
        data=shards,
        out=shards.parent / "runs" / name,
        tokens=recipe.tokens,
        max_length=recipe.max_length,
        overrides=recipe.overrides,
    )
    run.model.save(out / name, dtype=torch.bfloat16, overwrite=True)
    print(f"{name}: {run.model.num_parameters:,} parameters, validation loss {run.loss:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/embedded"))
    parser.add_argument("--out", type=Path, default=Path("firth/embedded"))
    arguments = parser.parse_args()
    shards = make_shards(arguments.work)
    for name in RECIPES:
        train(name, shards, arguments.out)


if __name__ == "__main__":
    main()
