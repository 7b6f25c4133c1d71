"""The demo's directory: the text, the shards and the runs that chapters share, each made once."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from firth.data.stories import Summary, write_stories
from firth.demo.budgets import DemoBudget
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.preparation import prepare
from firth.model import Model, load
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.training.log import Callback, Metrics
from firth.utils.config_fields import flag
from firth.utils.figures import Figure

Progress = Callable[[str, int, int], None]

ENCODER, DECODER, SEQ2SEQ = "stories-encoder", "stories-decoder", "stories-seq2seq"
RUN_FILE, MARK = "run.json", "demo.json"
BY_HAND = Path("by-hand")  # the output of commands that repeat what the demo did


@dataclass(frozen=True)
class Findings:
    """What a chapter found: figures, the same as JSON values, and the commands that repeat it."""

    figures: list[Figure]
    values: dict[str, Any]
    commands: list[str]


@dataclass
class Workspace:
    """The demo's directory, seed and budget."""

    out: Path
    seed: int
    budget: DemoBudget
    progress: Progress
    tuned: dict[str, FinetuneResult] = field(default_factory=dict)  # by name
    loaded: dict[str, Model] = field(default_factory=dict)  # embedded models, by name

    @cached_property
    def stories(self) -> Summary:
        """Write the corpus and its task files."""
        return write_stories(
            self.out / "stories", words=self.budget.words, overwrite=True, progress=self.progress
        )

    @property
    def stories_command(self) -> str:
        """The command that writes the same corpus."""
        return command("stories", BY_HAND / "stories", words=self.budget.words)

    @property
    def folder(self) -> Path:
        """The folder of the corpus and its task files."""
        return Path(self.stories.out)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Train a WordPiece tokenizer on the corpus."""
        tokenizer, _ = train_tokenizer(
            [self.folder / "train.txt"], **self.tokenizer_options, progress=self.progress
        )
        tokenizer.save(self.out / "tokenizer")
        return tokenizer

    @property
    def tokenizer_options(self) -> dict[str, Any]:
        """The options of the tokenizer."""
        size = self.budget.vocab_size
        return {"kind": "wordpiece", "vocab_size": size, "lowercase": True, "sentinels": 100}

    @cached_property
    def shards(self) -> Path:
        """Convert the corpus to token ids."""
        folder, out = self.folder, self.out / "shards"
        remove_previous(out, "index.json")
        self.tokenizer  # noqa: B018 - it is saved when first used
        prepare(
            [folder / "train.txt"],
            tokenizer=self.out / "tokenizer",
            valid=[folder / "dev.txt"],
            out=out,
            progress=self.progress,
        )
        return out

    @property
    def prepare_commands(self) -> list[str]:
        """The commands that make the tokenizer and the shards."""
        text, saved = self.out / "stories/train.txt", self.out / "tokenizer"
        dev = self.out / "stories/dev.txt"
        return [
            command("tokenizer train", text, **self.tokenizer_options, out=BY_HAND / "tokenizer"),
            command("prepare", text, tokenizer=saved, valid=dev, out=BY_HAND / "shards"),
        ]

    def model(self, name: str) -> Model:
        """Load an embedded model once, in float32: many processors have no fast bfloat16."""
        if name not in self.loaded:
            self.loaded[name] = load(name, dtype="float32")
        return self.loaded[name]

    def finetune(self, name: str, options: Mapping[str, Any]) -> FinetuneResult:
        """Fine-tune the embedded encoder, or return the run of this name."""
        if name not in self.tuned:
            remove_previous(self.out / name, RUN_FILE)
            self.tuned[name] = finetune(
                ENCODER,
                out=self.out / name,
                seed=self.seed,
                callback=step_callback(f"fine-tuning {name}", self.progress),
                **options,
            )
        return self.tuned[name]

    def finetune_command(self, name: str, options: Mapping[str, Any]) -> str:
        """The command that repeats a fine-tuning run."""
        seed = {"seed": self.seed} if self.seed else {}
        return command("finetune", ENCODER, **options, out=BY_HAND / name, **seed)


def remove_previous(folder: Path, mark: str) -> None:
    """Remove the result of an earlier demo, which has the file `mark`, and nothing else."""
    if (folder / mark).is_file():
        shutil.rmtree(folder)


def command(verb: str, *arguments: object, **options: Any) -> str:
    """Format a call as a command line.

    >>> command("fill", "stories-encoder", "The [MASK] barked.", top=3)
    "firth fill stories-encoder 'The [MASK] barked.' --top 3"
    >>> command("finetune", "m", scratch=True, overrides={"steps": 9})
    'firth finetune m --scratch --set steps=9'
    """
    words = ["firth", *verb.split(), *map(str, arguments)]
    for name, value in options.items():
        if isinstance(value, Mapping):
            values: list[object] = [f"{key}={one}" for key, one in value.items()]
        else:
            values = list(value) if isinstance(value, list | tuple) else [value]
        for one in values:
            words += [flag(name)] if one is True else [flag(name), str(one)]
    return shlex.join(words)


def step_callback(stage: str, progress: Progress) -> Callback:
    """Make a callback that reports the steps of a training run as progress."""

    def callback(kind: str, metrics: Metrics) -> None:
        if kind == "step":
            progress(stage, int(1000 * metrics["progress"]), 1000)

    return callback
