"""Make the embedded models: text, tokenizer, shards, and one pre-training run for each.

    python -m scripts.make_embedded --work build/embedded --out firth/embedded

Seven minutes on an H200 with 16 CPU cores. The same device gives the same bits.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import firth
from firth.embedded import EMBEDDED_MODELS, PRETRAINING_TOKENS
from firth.training.run_directory import read_metrics
from scripts.embedded_checks import measure
from scripts.embedded_corpus import TASK_SEED, TASK_WORDS, write_training_text

WORDS = 24_000_000  # of the stories; the pages come in addition
PARTS = 48  # seeds
VOCAB_SIZE, SENTINELS = 4096, 100


@dataclass(frozen=True)
class Recipe:
    """A pre-training run: its preset, and what differs from the preset's recipe."""

    preset: str
    max_length: str
    overrides: dict[str, Any]


# Whole documents up to the maximum length: the models are used on stories.
STORIES = {"full_sentences": "false"}
RECIPES = {
    "stories-encoder": Recipe(
        "encoder-tiny",
        "64:0.7,256",
        STORIES | {"model.num_layers": 5, "objective.mask_prob": 0.3},
    ),
    "stories-decoder": Recipe(
        "decoder-tiny", "256", STORIES | {"model.num_layers": 5, "model.max_positions": 256}
    ),
    "stories-seq2seq": Recipe(
        "seq2seq-tiny", "256", STORIES | {"model.num_layers": 3, "model.num_decoder_layers": 2}
    ),
}


CARD = """# {name}

A small model of Firth's stories: {does}.
{parameters:,} parameters, stored in bf16. It knows the world of the stories and nothing else; it is
made for lessons, demos and tests.

Made by `make embedded` (`python -m scripts.make_embedded`): {words:,} words of generated stories
(seeds {seeds}) and pages of sentences from the same world, a byte-level BPE tokenizer of 4,096
tokens, and

    {command}

| tokens, inputs and targets | validation loss | validation accuracy |
|---|---|---|
| {tokens:,} | {loss:.3f} | {accuracy:.3f} |

| what it knows | fraction |
|---|---|
{table}

Validation texts are stories of seed 0, which no model was trained on. The training text contains no
probe, no four words around a probe's blank, and no text of a task's test file; `tests/embedded/`
checks one of its 48 parts.
"""


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
    """Pre-train one of the models and save it in bf16, with its model card."""
    recipe = RECIPES[name]
    run = firth.pretrain(
        preset=recipe.preset,
        data=shards,
        out=shards.parent / "runs" / name,
        tokens=PRETRAINING_TOKENS[name],
        max_length=recipe.max_length,
        overrides=recipe.overrides,
    )
    run.model.save(out / name, dtype=torch.bfloat16, overwrite=True)
    write_card(out / name, recipe, run.path, shards.parent / "stories")


def write_card(folder: Path, recipe: Recipe, run: Path, stories: Path) -> None:
    """Write the model card: how the model was made, and what it knows."""
    name, model = folder.name, firth.load(folder)
    known = measure(name, model, stories)
    last = [line for line in read_metrics(run) if line["kind"] == "validation"][-1]
    accuracy = next(value for key, value in last.items() if key.endswith(" accuracy"))
    options = " ".join(f"--set {key}={value}" for key, value in recipe.overrides.items())
    command = (
        f"firth pretrain --preset {recipe.preset} --data shards --out {name} "
        f"--tokens {PRETRAINING_TOKENS[name]} --max-length {recipe.max_length} {options}"
    )
    text = CARD.format(
        name=name,
        does=EMBEDDED_MODELS[name],
        parameters=model.num_parameters,
        table="\n".join(f"| {what} | {value:.3f} |" for what, value in known.items()),
        seeds=f"{TASK_SEED + 1} to {TASK_SEED + PARTS}",
        words=WORDS,
        command=command,
        tokens=last["tokens"],
        loss=last["loss"],
        accuracy=accuracy,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/embedded"))
    parser.add_argument("--out", type=Path, default=Path("firth/embedded"))
    parser.add_argument("--models", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    arguments = parser.parse_args()
    shards = make_shards(arguments.work)
    for name in arguments.models:
        train(name, shards, arguments.out)


if __name__ == "__main__":
    main()
