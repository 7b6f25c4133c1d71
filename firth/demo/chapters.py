"""The demo: a table of chapters, each a title, a sentence and a function; and the page of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from firth.demo.budgets import FULL, QUICK
from firth.demo.chapter_embedded import embedded_models
from firth.demo.chapter_labels import label_efficiency
from firth.demo.chapter_lora import lora
from firth.demo.chapter_objectives import objectives_and_masks
from firth.demo.chapter_pretraining import live_pretraining
from firth.demo.chapter_prompting import few_examples
from firth.demo.chapter_search import meaning_search
from firth.demo.chapter_tasks import names, questions
from firth.demo.chapter_text import text_and_tokens
from firth.demo.workspace import MARK, Findings, Progress, Workspace
from firth.embedded import EMBEDDED_MODELS, local_path
from firth.utils.arguments import check_arguments
from firth.utils.errors import Interrupted, UsageError
from firth.utils.files import write_json
from firth.utils.html_page import Page, Section, write_page

TITLE = "Pre-train once, adapt many times"
LEAD = (
    "A language model first learns from plain text, which costs no labels, and is then adapted to "
    "many tasks with few labels each. Everything on this page was computed by firth demo."
)
NEXT_TITLE = "Next: your own text and labels"
NEXT = (
    "firth finetune stories-encoder --task classify --train my-labels.tsv --out runs/mine",
    'firth predict runs/mine "A sentence of yours."',
    "firth pretrain --from stories-encoder --data my-texts.txt --tokenizer stories-encoder "
    "--tokens 1M --out runs/my-encoder",
)
NEXT_LEAD = (
    "my-labels.tsv has the columns text and label; my-texts.txt is plain text. For longer or "
    "richer texts, name a larger model instead of stories-encoder, such as bert-base-uncased."
)


class Chapter(NamedTuple):
    """A chapter of the demo."""

    title: str
    sentence: str  # what it shows, for a first-year student
    run: Callable[[Workspace], Findings]


CHAPTERS = (
    Chapter(
        "Text becomes tokens",
        "A model reads numbers, not letters: a tokenizer splits the text into frequent words and "
        "parts of words, and gives each a number.",
        text_and_tokens,
    ),
    Chapter(
        "The text is its own teacher",
        "Hide some of the text and let the model guess it: so every text has its answers with it, "
        "and a mask decides which words the model may look at.",
        objectives_and_masks,
    ),
    Chapter(
        "Pre-training, live",
        "A small model starts from random numbers and reads stories; over many steps its loss "
        "falls, and what it writes makes more sense.",
        live_pretraining,
    ),
    Chapter(
        "The same, with more text",
        "Three models come with Firth: made by the same command as in chapter 3, a little larger "
        "and with many times more tokens.",
        embedded_models,
    ),
    Chapter(
        "Few labels are enough",
        "Fine-tuning shows the pre-trained model a few labelled reviews; the same network "
        "without pre-training gets the same reviews, and has to learn the language from them too.",
        label_efficiency,
    ),
    Chapter(
        "Finding names",
        "The same pre-trained encoder, with another small output layer, marks each word that is "
        "part of a name.",
        names,
    ),
    Chapter(
        "Answering questions",
        "The same encoder again: now it points at the first and the last word of the answer in "
        "the text.",
        questions,
    ),
    Chapter(
        "Searching by meaning",
        "The encoder turns each sentence into a vector; sentences about similar things have "
        "vectors that point in similar directions, so no label is needed.",
        meaning_search,
    ),
    Chapter(
        "Prompting: examples instead of training",
        "A decoder continues its input, so the task can be put into the input: a few solved "
        "examples, then the question.",
        few_examples,
    ),
    Chapter(
        "LoRA: train a small part",
        "Instead of changing all parameters, LoRA adds two small matrices beside each weight "
        "matrix and trains only those and the output layer; the pre-trained model stays as it is, "
        "for all tasks.",
        lora,
    ),
)


@dataclass(frozen=True)
class ChapterResult:
    """A finished chapter."""

    number: int
    chapter: Chapter
    findings: Findings
    seconds: float

    def values(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "chapter": self.number,
            "title": self.chapter.title,
            "sentence": self.chapter.sentence,
            "results": self.findings.values,
            "commands": self.findings.commands,
            "seconds": round(self.seconds, 1),
        }


@dataclass
class Demo:
    """The chapters to run, and the results so far, which are also on the page."""

    workspace: Workspace
    numbers: tuple[int, ...]
    results: list[ChapterResult] = field(default_factory=list)

    @property
    def page(self) -> Path:
        """The page: index.html, or that of a single chapter."""
        single = len(self.numbers) == 1
        return self.workspace.out / (f"chapter-{self.numbers[0]}.html" if single else "index.html")

    def run(self, number: int) -> ChapterResult:
        """Run a chapter, and write the page of all chapters so far."""
        chapter, begun = CHAPTERS[number - 1], time.monotonic()
        self.workspace.out.mkdir(parents=True, exist_ok=True)
        write_json(self.workspace.out / MARK, {"seed": self.workspace.seed})
        try:
            found = chapter.run(self.workspace)
        except Interrupted as error:
            raise Interrupted(
                "The demo was interrupted and cannot be resumed: the same command starts it again; "
                f"its results so far are in {self.workspace.out}."
            ) from error
        result = ChapterResult(number, chapter, found, time.monotonic() - begun)
        self.results.append(result)
        write_page(self.page, self.as_page())
        return result

    def as_page(self) -> Page:
        """Return the chapters so far as a page."""
        sections = [
            Section(
                one.chapter.title, one.chapter.sentence, one.findings.figures, one.findings.commands
            )
            for one in self.results
        ]
        last = Section(NEXT_TITLE, NEXT_LEAD, commands=NEXT, commands_title="Three commands")
        seconds = sum(one.seconds for one in self.results)
        footer = f"Made in {seconds:.0f} seconds of computing with seed {self.workspace.seed}."
        numbers = [one.number for one in self.results]
        return Page(f"Firth: {TITLE.lower()}", LEAD, [*sections, last], footer, numbers)

    def values(self) -> dict[str, Any]:
        """Return all results as plain JSON values."""
        return {
            "out": str(self.workspace.out),
            "page": str(self.page),
            "chapters": [result.values() for result in self.results],
        }


def prepare_demo(
    out: str | Path,
    *,
    chapter: int = 0,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Demo:
    """Return the demo, or one chapter of it, before anything has been run."""
    if not 0 <= chapter <= len(CHAPTERS):
        raise UsageError(f"`chapter` is 1 to {len(CHAPTERS)}, or 0 for all, not {chapter}.")
    _check_folder(Path(out))
    for name in EMBEDDED_MODELS:
        local_path(name)  # an error if its files are missing
    numbers = (chapter,) if chapter else tuple(range(1, len(CHAPTERS) + 1))
    return Demo(Workspace(Path(out), seed, QUICK if quick else FULL, progress), numbers)


def _check_folder(out: Path) -> None:
    """Refuse a file, and a directory with other files than those of a demo."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; `out` is a directory.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise UsageError(f"{out} contains other files than a demo; choose a new directory.")


@check_arguments
def run_demo(
    out: str | Path,
    *,
    chapter: int = 0,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Demo:
    """Pre-train, adapt and use small models, chapter by chapter; write a page with the results.

    `chapter` runs one chapter and what it needs; 0 runs all. `quick` takes about a minute.
    """
    demo = prepare_demo(out, chapter=chapter, quick=quick, seed=seed, progress=progress)
    for number in demo.numbers:
        demo.run(number)
    return demo
