"""Build training batches: Firth's sampler and objectives against transformers' data collator.

Both build batches of 256 sequences of 128 tokens from the same text: with masked tokens (15 %,
80/10/10) and for next-token prediction (the collator with mlm=False). Firth reads the sequences
from shards on disk and masks them in numpy, in two threads. `DataCollatorForLanguageModeling` gets
the sequences as lists of token ids in memory, so it only masks and stacks them. Outputs are random
and not compared. The two run in turn; tokens/s of the best repeat are printed, and the ratio is the
smaller one of the two objectives.

    python bench/objectives.py
    python bench/objectives.py --text corpus.jsonl.xz
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from grown_text import write_text
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

import firth
from firth.data.sampler import Sampler, SamplerPosition, in_order
from firth.data.shards import Shards
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.tokenizer import Tokenizer

BATCH_SIZE, MAX_LENGTH, NUM_BATCHES = 256, 128, 40


def main() -> None:
    """Prepare the shards and compare both objectives."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, help="corpus file (default: Firth's stories)")
    parser.add_argument(
        "--megabytes", type=int, default=10, help="size of the text in MB (default: 10)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each side (default: 5)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        shards = _prepare_shards(options.text, options.megabytes, Path(folder))
        ratios = [
            _compare_objective(name, shards, options.repeats) for name in ("masked", "causal")
        ]
    print(f"ratio: {min(ratios):.2f}")


def _prepare_shards(text: Path | None, megabytes: int, folder: Path) -> Shards:
    """Train a WordPiece tokenizer on a text and write the text as shards."""
    write_text(text, megabytes, folder / "text.txt")
    tokenizer, _ = firth.train_tokenizer(
        [folder / "text.txt"], kind="wordpiece", vocab_size=8_000, specials="bert"
    )
    tokenizer.save(folder / "tokenizer")
    tokenizer_path, out = folder / "tokenizer", folder / "shards"
    firth.prepare([folder / "text.txt"], tokenizer=tokenizer_path, out=out, valid_fraction=0)
    return Shards(out)


def _compare_objective(name: str, shards: Shards, repeats: int) -> float:
    """Print the best tokens/s of both sides for an objective; return their ratio."""
    firth_speeds, collator_speeds = [], []
    for _ in range(repeats):
        firth_speeds.append(_firth_speed(name, shards))
        collator_speeds.append(_collator_speed(name, shards))
    print(
        f"{name:8} Firth {max(firth_speeds) / 1e6:6.2f}M tokens/s   "
        f"collator {max(collator_speeds) / 1e6:6.2f}M tokens/s"
    )
    return max(firth_speeds) / max(collator_speeds)


def _firth_speed(name: str, shards: Shards) -> float:
    """Return the tokens/s of Firth's sampler and objective."""
    objective, vocabulary = OBJECTIVES[name], Tokenizer.load(shards.path).vocabulary
    sampler = Sampler(shards)
    start = time.perf_counter()

    def tasks() -> Iterator[Callable[[], int]]:
        """Yield a function for each batch, for the threads to call."""
        position = SamplerPosition()
        for _ in range(NUM_BATCHES):
            sample, position = objective.draw(
                sampler, position, length=MAX_LENGTH, tokens=BATCH_SIZE * MAX_LENGTH
            )
            yield partial(build_batch, sample)

    def build_batch(sample: object) -> int:
        """Build a batch; return its number of tokens."""
        return len(objective.build(sampler, sample, vocabulary).inputs.tokens)

    return sum(in_order(tasks())) / (time.perf_counter() - start)


def _collator_speed(name: str, shards: Shards) -> float:
    """Return the tokens/s of the data collator."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(shards.path)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=name == "masked", mlm_probability=0.15)
    documents = np.arange(len(shards))
    stream = shards.gather(documents, np.zeros_like(documents), shards.lengths)
    num_tokens = NUM_BATCHES * BATCH_SIZE * MAX_LENGTH
    rows = np.resize(stream, num_tokens).reshape(NUM_BATCHES, BATCH_SIZE, MAX_LENGTH).tolist()
    batches = [[{"input_ids": row} for row in batch] for batch in rows]
    start = time.perf_counter()
    tokens = sum(collate(batch)["input_ids"].numel() for batch in batches)
    return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
