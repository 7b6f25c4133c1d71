"""The story corpus on disk: train, dev and test text, and a file per task and split.

Everything is written into a temporary directory, which is renamed when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from firth.data.stories.agreement import Pair
from firth.data.stories.entity_tags import Tagged
from firth.data.stories.story import Story, generate_story
from firth.data.stories.task_examples import SHORT, Answer
from firth.data.stories.word_lists import pairs
from firth.utils.arguments import check_arguments
from firth.utils.errors import UsageError, storage_errors
from firth.utils.files import atomic_file, sync_directory, write_json
from firth.utils.notebook import show_progress
from firth.utils.outputs import check_output

Progress = Callable[[str, int, int], None]  # (what, done, of how much)

FORMAT, INDEX = "firth-stories-1", "stories.json"
SPLITS = ("train", "dev", "test")
TASKS = pairs("""sentiment: tsv; topic: tsv; entities: conll; questions: json; entailment: tsv;
    summary: tsv; rewrite: tsv; agreement: jsonl; pos: conll""")
HEADERS = {
    "sentiment": "text\tlabel",
    "topic": "text\tlabel",
    "entailment": "text_a\ttext_b\tlabel",
    "summary": "source\ttarget",
    "rewrite": "source\ttarget",
}
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*")


@dataclass(frozen=True)
class Summary:
    """The size of a story corpus."""

    out: str
    seed: int
    stories: int
    words: int
    vocabulary: int  # distinct words, in lower case
    repeated: float  # fraction of the long test sentences that also occur in train
    examples: dict[str, int]  # per task file


@check_arguments
def write_stories(
    out: str | Path,
    *,
    words: int = 1_000_000,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress = show_progress,
) -> Summary:
    """Write a corpus of stories, 90 % for training, and its labelled examples.

    >>> import tempfile
    >>> summary = write_stories(Path(tempfile.mkdtemp(), "stories"), words=2000)
    >>> summary.words >= 2000, "sentiment/train.tsv" in summary.examples
    (True, True)
    """
    if words < 1:
        raise UsageError(f"--words is at least 1, not {words}.")
    out = Path(out)
    if out.exists() and not _replaceable(out):
        raise UsageError(f"{out} contains something else than stories; choose another directory.")
    check_output(out, overwrite)
    with storage_errors(out), _replacing(out) as folder:
        counts = Counts()
        with ExitStack() as stack:
            files = _open(folder, stack)
            number = 0
            while counts.words < words:
                story = generate_story(seed, number)
                split = split_of(number)
                counts.add(story, split)
                _write(files, split, number, story, counts)
                number += 1
                if number % 50 == 0:
                    progress("writing stories", min(counts.words, words), words)
            for split in SPLITS:
                files[f"questions/{split}.json"].write(b"\n]}\n")
        progress("writing stories", words, words)
        summary = Summary(
            str(out),
            seed,
            number,
            counts.words,
            len(counts.vocabulary),
            counts.repeated(),
            counts.examples,
        )
        write_json(folder / INDEX, {"format": FORMAT, **asdict(summary), "out": out.name})
    return summary


def split_of(number: int) -> str:
    """Return the split of a story: of twenty stories, one is for dev and one for test.

    >>> [split_of(number) for number in (0, 6, 13, 20, 26)]
    ['train', 'dev', 'test', 'train', 'dev']
    """
    return {6: "dev", 13: "test"}.get(number % 20, "train")


class Counts:
    """Count what has been written."""

    def __init__(self) -> None:
        self.words = 0
        self.vocabulary: set[str] = set()
        self.examples = {f"{task}/{s}.{end}": 0 for task, end in TASKS.items() for s in SPLITS}
        self.train: set[str] = set()  # long sentences
        self.test: list[str] = []

    def add(self, story: Story, split: str) -> None:
        self.words += len(story.text.split())
        self.vocabulary.update(_WORD.findall(story.text.lower()))
        long = (sentence for sentence in story.sentences if len(sentence.split()) > SHORT)
        if split == "train":
            self.train.update(long)
        elif split == "test":
            self.test.extend(long)

    def repeated(self) -> float:
        return sum(sentence in self.train for sentence in self.test) / max(1, len(self.test))


# ---- files ---------------------------------------------------------------------------------------


def _open(folder: Path, stack: ExitStack) -> dict[str, BinaryIO]:
    """Open every file and write the header, if its format has one."""
    files = {
        f"{split}.txt": stack.enter_context(atomic_file(folder / f"{split}.txt"))
        for split in SPLITS
    }
    for task, ending in TASKS.items():
        (folder / task).mkdir()
        for split in SPLITS:
            name = f"{task}/{split}.{ending}"
            files[name] = stack.enter_context(atomic_file(folder / name))
            if task in HEADERS:
                files[name].write(f"{HEADERS[task]}\n".encode())
            if task == "questions":
                files[name].write(b'{"version": "1.1", "data": [')
    return files


def _write(
    files: dict[str, BinaryIO], split: str, number: int, story: Story, counts: Counts
) -> None:
    files[f"{split}.txt"].write(f"{story.text}\n\n".encode())
    for task, ending in TASKS.items():
        name = f"{task}/{split}.{ending}"
        if not (rows := getattr(story.examples, task)):
            continue
        first = counts.examples[name] == 0
        counts.examples[name] += len(rows)
        files[name].write(_FORMATS[task](rows, story, number, first).encode())


def _columns(rows: Iterable[tuple[str, ...]], *_: Any) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def _conll(rows: Iterable[Tagged], *_: Any) -> str:
    return "".join("".join(f"{token} {tag}\n" for token, tag in row) + "\n" for row in rows)


def _squad(rows: Iterable[Answer], story: Story, number: int, first: bool) -> str:
    """Format a story and its questions as an article of SQuAD 1.1."""
    questions = [
        {
            "id": f"{number}-{i}",
            "question": row.question,
            "answers": [{"text": row.text, "answer_start": row.start}],
        }
        for i, row in enumerate(rows)
    ]
    article = {"title": story.summary, "paragraphs": [{"context": story.text, "qas": questions}]}
    return ("\n" if first else ",\n") + json.dumps(article, ensure_ascii=False)


def _blimp(rows: Iterable[Pair], story: Story, number: int, first: bool) -> str:
    names = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID", "pairID")
    lines = (
        json.dumps(dict(zip(names, (*pair, f"{number}-{i}"), strict=True)))
        for i, pair in enumerate(rows)
    )
    return "".join(f"{line}\n" for line in lines)


_FORMATS: dict[str, Callable[..., str]] = {
    **dict.fromkeys(HEADERS, _columns),
    "entities": _conll,
    "pos": _conll,
    "questions": _squad,
    "agreement": _blimp,
}


def _replaceable(out: Path) -> bool:
    """Return whether a directory is empty or contains stories."""
    try:
        return not any(out.iterdir()) or json.loads((out / INDEX).read_bytes())["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a new directory that replaces `out` on success and is deleted on failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    fresh.mkdir()
    try:
        yield fresh
        if out.exists():
            out.rename(old)
        fresh.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
