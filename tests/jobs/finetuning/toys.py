"""Small tasks that an untrained network learns within a second, and the checksums of a run."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORDS = "river morning dog garden street book school".split()
NAMES = "erik daisy fred anna tim edith nora".split()
PLACES = "paris ashford rome".split()
COLOURS = {"red": "x", "green": "y"}
TINY = {"precision": "fp32", "batch_size": 16, "max_length": 32, "validate_every": 1.0}

Files = tuple[Path, Path]  # train, dev


def table(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> Path:
    """Write a file of tab-separated columns."""
    lines = [header.replace(" ", "\t"), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def coloured(folder: Path, counts: tuple[int, int] = (64, 32), labels: Any = COLOURS) -> Files:
    """Write a classification task: which of two colours is in the text?"""
    draw = random.Random(0)

    def rows(count: int) -> Iterable[tuple[str, str]]:
        for i in range(count):
            colour = list(COLOURS)[i % 2]
            words = [draw.choice(WORDS) for _ in range(5)]
            words.insert(draw.randrange(6), colour)
            yield " ".join(words), labels[colour]

    names = ("colours.tsv", "colours-dev.tsv")
    train, dev = (
        table(folder / name, "text label", rows(n)) for name, n in zip(names, counts, strict=True)
    )
    return train, dev


def named(folder: Path) -> Files:
    """Write a tagging task: names of people and of places."""
    draw = random.Random(1)
    kinds = {"B-PER": NAMES, "B-LOC": PLACES, "O": WORDS}

    def sentence() -> str:
        tags = draw.choices(list(kinds), weights=[1, 1, 3], k=6)
        return "\n".join(f"{draw.choice(kinds[tag])} {tag}" for tag in tags)

    paths = folder / "names.conll", folder / "names-dev.conll"
    for path, count in zip(paths, (64, 24), strict=True):
        path.write_text("\n\n".join(sentence() for _ in range(count)) + "\n", encoding="utf-8")
    return paths


def asked(folder: Path) -> Files:
    """Write a question-answering task: the one name in a text."""
    draw = random.Random(2)

    def paragraph(i: int) -> dict[str, Any]:
        words = [draw.choice(WORDS) for _ in range(7)]
        name = draw.choice(NAMES)
        words.insert(draw.randrange(8), name)
        text = " ".join(words)
        answers = [{"text": name, "answer_start": text.index(name)}]
        return {"context": text, "qas": [{"id": str(i), "question": "who", "answers": answers}]}

    paths = folder / "who.json", folder / "who-dev.json"
    for path, count in zip(paths, (64, 24), strict=True):
        content = {"data": [{"paragraphs": [paragraph(i) for i in range(count)]}]}
        path.write_text(json.dumps(content), encoding="utf-8")
    return paths


def copied(folder: Path) -> Files:
    """Write a sequence-to-sequence task: the second of two words."""
    words = ["river", "dog", "book", "red"]
    train = table(folder / "copies.tsv", "source target", [(f"the {w}", w) for w in words * 8])
    dev = table(folder / "copies-dev.tsv", "source target", [(f"the {w}", w) for w in words])
    return train, dev


TOYS = {"classify": coloured, "tag": named, "span": asked, "seq2seq": copied}


def every_task(folder: Path) -> dict[str, Files]:
    """Write train and dev files of every task."""
    found = {name: make(folder) for name, make in TOYS.items()}
    pairs = [("the dog", "the dog", "same"), ("the dog", "a river", "other")] * 8
    numbers = [(" ".join(WORDS[: n + 1]), n) for n in range(4)] * 4
    found["pair"] = (table(folder / "pairs.tsv", "text_a text_b label", pairs),) * 2
    found["regress"] = (table(folder / "numbers.tsv", "text label", numbers),) * 2
    row = {"text": "the dog", "choices": ["barked", "sang a song"], "label": 0}
    (folder / "choices.jsonl").write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    (folder / "text.txt").write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    found["choice"] = (folder / "choices.jsonl",) * 2
    found["lm"] = (folder / "text.txt",) * 2
    return found


def sums(run: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of weights in a run."""
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(run.rglob("*.safetensors"))
        if "checkpoints" not in file.parts
    }
