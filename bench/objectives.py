"""Batches: Firth's sampler and objectives against transformers' collator.

Both make masked batches of 256 sequences of 128 tokens (15 %, 80/10/10) from the same text. Firth
draws pieces from shards on disk and hides tokens in numpy, two threads ahead. The peer,
`DataCollatorForLanguageModeling`, is handed ready sequences of 128 ids in memory and only hides.
The causal line compares next-token batches (the peer with mlm=False). Repeats take turns; the best
of each counts.

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

ROWS, LENGTH, BATCHES = 256, 128, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, help="any corpus; else the text that comes with Firth")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        shards = _prepare(options.text, options.megabytes, Path(folder))
        ratios = [_compare(name, shards, options.repeats) for name in ("masked", "causal")]
    print(f"ratio: {min(ratios):.2f}")


def _prepare(text: Path | None, megabytes: int, folder: Path) -> Shards:
    write_text(text, megabytes, folder / "text.txt")
    tokenizer, _ = firth.train_tokenizer(
        [folder / "text.txt"], kind="wordpiece", vocab_size=8_000, specials="bert"
    )
    tokenizer.save(folder / "tokenizer")
    tokenizer_path, out = folder / "tokenizer", folder / "shards"
    firth.prepare([folder / "text.txt"], tokenizer=tokenizer_path, out=out, valid_fraction=0)
    return Shards(out)


def _compare(name: str, shards: Shards, repeats: int) -> float:
    own, peer = [], []
    for _ in range(repeats):
        own.append(_firth(name, shards))
        peer.append(_peer(name, shards))
    print(f"{name:8} Firth {max(own) / 1e6:6.2f}M tokens/s   peer {max(peer) / 1e6:6.2f}M tokens/s")
    return max(own) / max(peer)


def _firth(name: str, shards: Shards) -> float:
    objective, vocabulary = OBJECTIVES[name], Tokenizer.load(shards.path).vocabulary
    sampler = Sampler(shards)
    started = time.perf_counter()

    def jobs() -> Iterator[Callable[[], int]]:
        position = SamplerPosition()
        for _ in range(BATCHES):
            drawn, position = objective.draw(sampler, position, length=LENGTH, tokens=ROWS * LENGTH)
            yield partial(build, drawn)

    def build(drawn: object) -> int:
        return len(objective.build(sampler, drawn, vocabulary).inputs.tokens)

    return sum(in_order(jobs())) / (time.perf_counter() - started)


def _peer(name: str, shards: Shards) -> float:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(shards.path)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=name == "masked", mlm_probability=0.15)
    everyone = np.arange(len(shards))
    stream = shards.gather(everyone, np.zeros_like(everyone), shards.lengths)
    needed = BATCHES * ROWS * LENGTH
    rows = np.resize(stream, needed).reshape(BATCHES, ROWS, LENGTH).tolist()
    batches = [[{"input_ids": row} for row in batch] for batch in rows]
    started = time.perf_counter()
    tokens = sum(collate(batch)["input_ids"].numel() for batch in batches)
    return tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
