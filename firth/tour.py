"""The demo: the whole story on a text that comes with Firth, with results a person can see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from firth.text.corpus import Report
from firth.text.preparation import Prepared, prepare
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer

# The lectures' words, and Swahili's forms of -ambia, "to tell".
WORDS = ("playing unhappiness unbelievable", "COVID-19 taaaaasty Transformerify")
SWAHILI = "niliambia tuliambia waliambia hawataambia nisingeambia"


@dataclass(frozen=True)
class Story:
    """What the demo made."""

    report: Report
    tokenizers: dict[str, Tokenizer]
    texts: tuple[str, ...]
    prepared: Prepared

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        fertility = {name: t.coverage(self.texts).fertility for name, t in self.tokenizers.items()}
        return {
            **self.report.as_dict(),
            "fertility": fertility,
            "splits": self.prepared.splits,
            "out": str(self.prepared.path.parent),
        }


def demo(
    out: str | Path,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Story:
    """Train two tokenizers on the embedded text, compare them, and prepare shards with one."""
    out = Path(out)
    trained: dict[str, Tokenizer] = {}
    with as_file(files("firth.text") / "sample.txt") as sample:
        for kind, size in (("wordpiece", 440), ("bpe", 600)):
            tokenizer, report = train_tokenizer(
                [sample], kind=kind, vocab_size=size, lowercase=kind == "wordpiece"
            )
            tokenizer.save(out / kind)
            trained[str(out / kind)] = tokenizer
        shutil.rmtree(out / "shards", ignore_errors=True)  # the demo's own, from an earlier run
        prepared = prepare(
            [sample],
            tokenizer=out / "wordpiece",
            out=out / "shards",
            valid_fraction=0.2,
            progress=progress,
        )
    return Story(report, trained, (*WORDS, SWAHILI), prepared)
