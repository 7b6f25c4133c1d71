"""The demo: the whole story on the embedded corpus, with results a person can see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.drawing import attention_patterns
from firth.objectives.batch import Batch
from firth.objectives.causal import causal, prefix
from firth.objectives.examples import packed
from firth.objectives.show import Example, show_objectives
from firth.text.preparation import Prepared, prepare
from firth.text.shards import Shards
from firth.text.stories import Summary, write_stories
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer

WORDS = 100_000
# The lectures' words, and Swahili's forms of -ambia, "to tell".
TEXTS = (
    "playing unhappiness unbelievable",
    "COVID-19 taaaaasty Transformerify",
    "niliambia tuliambia waliambia hawataambia nisingeambia",
)


@dataclass(frozen=True)
class Tour:
    """What the demo made."""

    out: Path
    stories: Summary
    opening: str  # the first story
    tokenizers: dict[str, Tokenizer]
    prepared: Prepared
    objectives: list[Example]
    picture: Path

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        fertility = {name: t.coverage(TEXTS).fertility for name, t in self.tokenizers.items()}
        return {
            "out": self.out,
            "stories": self.stories.stories,
            "words": self.stories.words,
            "vocabulary": self.stories.vocabulary,
            "fertility": fertility,
            "splits": self.prepared.splits,
            "objectives": [example.values() for example in self.objectives],
            "picture": self.picture,
        }


def demo(
    out: str | Path,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Tour:
    """Stories, tokenizers, shards, and what each objective hides: everything before the models."""
    out = Path(out)
    for made, mark in (("stories", "stories.json"), ("shards", "index.json")):
        if (out / made / mark).is_file():  # its own, from an earlier run
            shutil.rmtree(out / made)
    stories = write_stories(out / "stories", words=WORDS, seed=0, progress=progress)
    train, dev = out / "stories/train.txt", out / "stories/dev.txt"
    tokenizers = {}
    for kind, sentinels in (("wordpiece", 100), ("bpe", 0)):
        tokenizer, _ = train_tokenizer(
            [train],
            kind=kind,
            vocab_size=2000,
            lowercase=kind == "wordpiece",
            sentinels=sentinels,
            progress=progress,
        )
        tokenizer.save(out / kind)
        tokenizers[str(out / kind)] = tokenizer
    prepared = prepare(
        [train], tokenizer=out / "wordpiece", out=out / "shards", valid=[dev], progress=progress
    )
    examples, _ = show_objectives(Shards(out / "shards"))
    picture = out / "attention.png"
    draw_attention(picture)
    opening = train.read_text(encoding="utf-8").split("\n\n")[0]
    return Tour(out, stories, opening, tokenizers, prepared, examples, picture)


def draw_attention(path: Path) -> None:
    """The three patterns, on two short texts that share one stream."""
    texts = "the quick brown fox jump ##s", "a lazy dog barked"
    sequences = packed(*texts, seed=1)
    patterns = {
        "encoder: both ways": Batch(sequences, sequences.lengths),
        "decoder: to the left": causal(sequences),
        "prefix: both": prefix(sequences),
    }
    words = " ".join(texts).split()
    attention_patterns(path, words, {name: batch.visible() for name, batch in patterns.items()})
