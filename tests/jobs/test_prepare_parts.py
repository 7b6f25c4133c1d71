"""Parts: any number of them, made in any order and again, join to the bytes of one run."""

from __future__ import annotations

import json
import os
import random
import shutil
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from firth.data import corpus_parts
from firth.jobs.preparation import prepare
from firth.utils.errors import InputError, MismatchError, StorageError, UsageError
from tests.conftest import SAMPLE, in_process
from tests.nightly import mostly_nightly


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def prepare_in_parts(text: Any, out: Path, count: int, **options: Any) -> None:
    """Make all parts, the last first, and join them; with `dedup`, in two rounds."""
    for _ in range(2 if options.get("dedup") else 1):
        for number in range(count, 0, -1):
            prepare(text, out=out, part=f"{number}/{count}", workers=1, **options)
        prepare(text, out=out, merge=True, workers=1, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Files of many kinds and sizes, with duplicates, bad rows, markup and an empty file."""
    folder, draw, words = tmp_path_factory.mktemp("files"), random.Random(1), SAMPLE.split()
    stories = [" ".join(draw.choices(words, k=draw.randint(1, 120))) for _ in range(400)]
    near = [story.replace("the", "teh", 1) for story in stories if len(story) > 400]
    (folder / "a.txt").write_text("\n\n".join(stories[:200] + stories[:20]))
    (folder / "b.txt").write_text("")
    rows = [json.dumps({"text": text}) for text in [*stories[200:300], "", "<br>", *near]]
    (folder / "c.jsonl").write_text("\n".join([*rows[:50], "{bad", *rows[50:], "[1]"]))
    (folder / "d.txt").write_text("\n\n".join(stories[250:400]) + " \x07&nbsp;end")
    (folder / "e.csv").write_text("text\n" + "\n".join(f'"{text}"' for text in stories[::40]))
    return {
        "en": [folder / "a.txt", folder / "b.txt", folder / "c.jsonl"],
        "ha": [folder / "d.txt"],
    }


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few documents, so that several parts share a small file."""
    monkeypatch.setattr(corpus_parts, "BLOCK_CHARACTERS", 3000)


@pytest.mark.parametrize(
    ("named", "dedup", "count"),
    mostly_nightly(product((False, True), (False, True), (1, 3, 8)), always=[(True, True, 3)]),
)
@pytest.mark.usefixtures("small_blocks")
def test_parts_join_to_the_bytes_of_one_run(
    tmp_path: Path, files: dict[str, list[Path]], bert: Path, named: bool, dedup: bool, count: int
) -> None:
    options: Any = {"tokenizer": bert, "shard_tokens": 9000, "dedup": dedup, "valid_fraction": 0.1}
    text: Any = files if named else [path for paths in files.values() for path in paths]
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepared = prepare(text, out=whole, workers=1, **options)
    assert prepared.report.removed["bad row"] == len(prepared.report.errors) == 3
    assert ("near duplicate" in prepared.report.removed) == dedup
    assert prepared.splits["train"]["shards"] > 2
    prepare_in_parts(text, out, count, **options)
    assert contents(out) == contents(whole)
    assert not Path(f"{out}.parts").exists()


@pytest.mark.usefixtures("small_blocks")
def test_validation_text_and_small_files(
    tmp_path: Path, files: dict[str, list[Path]], bert: Path
) -> None:
    for number, text in enumerate(SAMPLE.split("\n\n")):
        (tmp_path / f"{number}.txt").write_text(text)
    paths = [*sorted(tmp_path.glob("*.txt")), *files["en"]]
    options = {"tokenizer": bert, "valid": files["ha"], "dedup": True}
    prepare(paths, out=tmp_path / "whole", workers=1, **options)  # type: ignore[arg-type]
    prepare_in_parts(paths, tmp_path / "out", 5, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_blocks")
def test_every_block_belongs_to_one_part(files: dict[str, list[Path]]) -> None:
    corpora = [corpus_parts.Corpus(paths) for paths in files.values()]
    everything = [
        (b.key, b.texts) for b in corpus_parts.PartReader(corpora, corpus_parts.Part(1, 1))
    ]
    assert len(everything) > 30
    for count in (2, 7, 40):
        parts = [
            corpus_parts.PartReader(corpora, corpus_parts.Part(n, count))
            for n in range(1, count + 1)
        ]
        found = [[(block.key, block.texts) for block in part] for part in parts]
        assert sorted(chain.from_iterable(found)) == sorted(everything)
        assert max(map(len, found)) <= 2 + 2 * len(everything) / count


@pytest.fixture
def two_parts(tmp_path: Path, sample: Path, bert: Path) -> tuple[list[Any], Path]:
    """A command whose two parts are made, and where they are."""
    words = ["prepare", sample, "--tokenizer", bert, "--out", tmp_path / "out"]
    for number in (1, 2):
        assert in_process(*words, "--part", f"{number}/2").returncode == 0
    return words, tmp_path / "out.parts"


def test_a_part_is_made_once_and_again_if_damaged(two_parts: tuple[list[Any], Path]) -> None:
    words, folder = two_parts
    part = folder / "shards-00001-of-00002"
    before = contents(part)
    made = part.stat().st_mtime_ns
    assert in_process(*words, "--part", "1/2").returncode == 0
    assert part.stat().st_mtime_ns == made
    damaged = part / "train-00000.tokens.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    failed = in_process(*words, "--merge")
    assert failed.returncode == 1
    assert "--part 1/2" in failed.error
    assert in_process(*words, "--part", "1/2").returncode == 0
    assert contents(part) == before
    assert in_process(*words, "--merge", "--json").json["stage"] == "shards"


def test_missing_and_mixed_parts_are_named(
    two_parts: tuple[list[Any], Path], tmp_path: Path
) -> None:
    words, folder = two_parts
    os.rename(folder / "shards-00002-of-00002", tmp_path / "away")
    failed = in_process(*words, "--merge")
    assert failed.returncode == 1
    assert "2/2" in failed.error
    assert in_process(*words, "--part", "2/3").returncode == 0
    failed = in_process(*words, "--merge")
    assert "parts of 2 and of 3" in failed.error
    shutil.rmtree(folder / "shards-00002-of-00003")
    os.rename(tmp_path / "away", folder / "shards-00002-of-00002")
    assert in_process(*words, "--part", "3/2").returncode == 2
    assert in_process(*words, "--part", "1/2", "--merge").returncode == 2
    assert in_process(*words, "--merge").returncode == 0


@pytest.mark.parametrize("change", ["versions", "tokenizer", "options", "sources"])
def test_parts_of_other_runs_are_refused(
    two_parts: tuple[list[Any], Path], sample: Path, change: str
) -> None:
    words, folder = two_parts
    path = folder / "shards-00002-of-00002" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    if change == "versions":
        manifest["versions"]["Firth"] = "0.0.1"
    elif change == "tokenizer":
        manifest["plan"]["tokenizer"] = "0" * 64
    elif change == "options":
        manifest["plan"]["options"]["clean"] = False
    else:
        manifest["plan"]["sources"]["train"][0][1] += 1
    path.write_text(json.dumps(manifest))
    failed = in_process(*words, "--merge")
    name = {"versions": "0.0.1", "options": "clean", "sources": str(sample)}.get(change, change)
    assert failed.returncode == 1
    assert name in failed.error
    assert path.parent.name in failed.error


def test_a_full_disk_leaves_no_part(
    tmp_path: Path, sample: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("firth.jobs.prepare_output.write_shard", full)
    with pytest.raises(StorageError, match="disk is full"):
        prepare([sample], tokenizer=bert, out=tmp_path / "out", part="1/1")
    assert [path.name[0] for path in (tmp_path / "out.parts").iterdir()] == ["."]
    with pytest.raises(InputError, match="no parts"):
        prepare([sample], tokenizer=bert, out=tmp_path / "out", merge=True)


def test_parts_need_the_division_of_their_signatures(
    tmp_path: Path, sample: Path, bert: Path
) -> None:
    options: Any = {"tokenizer": bert, "out": tmp_path / "out", "dedup": True, "workers": 1}
    assert prepare([sample], part="1/1", **options).stage == "signatures"
    assert prepare([sample], merge=True, **options).stage == "duplicates"
    with pytest.raises(MismatchError, match="N/1"):
        prepare([sample], part="1/2", **options)
    with pytest.raises(UsageError):
        prepare([sample], part="one", **options)
