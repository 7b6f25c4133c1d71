"""Text and shards in an object store: the same bytes as on disk, read in blocks."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth.data import remote_shards
from firth.data.corpus import Corpus
from firth.data.remote_shards import BlockCache, RemoteTokens
from firth.data.shards import Shards
from firth.jobs.preparation import prepare
from firth.tokenizers.trainer import train_tokenizer
from firth.utils import object_stores
from firth.utils.errors import InputError, UsageError
from tests.conftest import SAMPLE, in_process


@pytest.fixture
def array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """An array in a store that is a local file, with blocks of 1,000 bytes."""
    tokens = np.random.default_rng(0).integers(0, 60_000, 40_000).astype(np.uint16)
    np.save(tmp_path / "a.tokens.npy", tokens)
    content = (tmp_path / "a.tokens.npy").read_bytes()
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_shards, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote_shards, "read_bytes", lambda url, start, end: content[start:end])
    monkeypatch.setattr(remote_shards, "file_state", lambda url: (len(content), ""))
    return tokens


@pytest.mark.usefixtures("array")
def test_tokens_are_read_like_an_array(array: np.ndarray[Any, Any]) -> None:
    remote = RemoteTokens("s3://bucket/a.tokens.npy", 40_000, "sha256")
    assert (len(remote), remote.dtype) == (40_000, np.uint16)
    draw = np.random.default_rng(1)
    for start in draw.integers(0, 39_000, 20):
        assert np.array_equal(remote[start : start + 900], array[start : start + 900])
        places = np.concatenate([np.arange(start, start + 70), draw.integers(0, 40_000, 30)])
        assert np.array_equal(remote[places], array[places])
    assert len(remote[np.arange(0)]) == 0


def test_the_cache_is_bounded_and_keeps_what_was_used_last(
    array: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    cache = BlockCache(tmp_path / "cache", max_bytes=20_000)
    cache.read("s3://bucket/a", 0, 10)
    for block in range(1, 60):
        cache.read("s3://bucket/a", block * 1000, block * 1000 + 10)
        cache.read("s3://bucket/a", 0, 10)
        assert sum(path.stat().st_size for path in cache.folder.glob("*/*")) <= 21_000
    names = {int(path.name) for path in cache.folder.glob("*/*")}
    assert {0, 59, 58} <= names
    with pytest.raises(InputError, match="incomplete"):
        cache.read("s3://bucket/a", 80_000, 90_000)


def test_blocks_of_a_replaced_file_are_not_used(
    array: np.ndarray[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://bucket/a.tokens.npy"
    assert np.array_equal(RemoteTokens(url, 40_000, "before")[0:900], array[:900])
    np.save(tmp_path / "new.npy", array[::-1])
    content = (tmp_path / "new.npy").read_bytes()
    monkeypatch.setattr(remote_shards, "read_bytes", lambda url, start, end: content[start:end])
    assert np.array_equal(RemoteTokens(url, 40_000, "after")[0:900], array[::-1][:900])


@pytest.mark.usefixtures("array")
def test_a_file_that_is_not_that_of_the_index_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/a.tokens.npy"
    with pytest.raises(InputError, match=r"a\.tokens\.npy.*40,000 tokens.*39,999"):
        RemoteTokens(url, 39_999, "sha256")
    monkeypatch.setattr(remote_shards, "file_state", lambda url: (5_000, ""))  # cut while copied
    with pytest.raises(InputError, match="5,000 bytes"):
        RemoteTokens(url, 40_000, "sha256")


def test_a_full_disk_of_the_cache_does_not_stop_reading(
    array: np.ndarray[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fill_disk(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    remote = RemoteTokens("s3://bucket/a.tokens.npy", 40_000, "sha256")
    before = set(tmp_path.glob("cache/blocks/*/*"))
    with monkeypatch.context() as full:
        full.setattr(os, "replace", fill_disk)
        for start in (5_000, 9_000, 5_000):
            assert np.array_equal(remote[start : start + 700], array[start : start + 700])
    assert len(caplog.records) == 1
    assert "FIRTH_CACHE" in caplog.text
    assert set(tmp_path.glob("cache/blocks/*/*")) == before
    assert np.array_equal(remote[5_000:5_700], array[5_000:5_700])
    assert set(tmp_path.glob("cache/blocks/*/*")) > before


def test_shards_name_no_other_place_than_an_object_store(tmp_path: Path) -> None:
    (tmp_path / "url.txt").write_text("http://127.0.0.1/shards")
    with pytest.raises(InputError, match="object store"):
        remote_shards.shards_url(tmp_path)


def test_errors_of_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRTH_CACHE_GB", "much")
    with pytest.raises(UsageError, match="FIRTH_CACHE_GB"):
        remote_shards.block_cache()

    def missing(scheme: str, **_: Any) -> None:
        raise ImportError("no s3fs")

    monkeypatch.setattr("fsspec.filesystem", missing)
    object_stores._file_system.cache_clear()
    with pytest.raises(UsageError, match=r"firth\[s3\]"):
        Corpus(["s3://bucket/text.txt"])


def test_files_are_sorted_as_in_a_folder(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.txt", "c.txt", "a/b/c.txt", "d/a.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("A text.")
    local = [Path(s.name).relative_to(tmp_path).as_posix() for s in Corpus([tmp_path]).sources]
    assert sorted(names, key=object_stores._walk_order) == local


# ---- S3, played by moto -----------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: make references")
    server = pytest.importorskip("moto.server", reason="moto is not installed: make references")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    object_stores._file_system.cache_clear()
    type(object_stores.file_system("s3://x")).clear_instance_cache()
    object_stores._file_system.cache_clear()
    name = f"bucket-{os.urandom(8).hex()}"  # moto keeps the buckets of earlier servers
    object_stores.file_system("s3://x").mkdir(name)
    yield f"s3://{name}"
    running.stop()
    object_stores._file_system.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path, bucket: str) -> tuple[Path, str]:
    """The same text in a folder and in the bucket."""
    folder, draw, words = tmp_path / "text", random.Random(2), SAMPLE.split()
    folder.mkdir()
    stories = [" ".join(draw.choices(words, k=60)) for _ in range(300)]
    (folder / "a.txt").write_text("\n\n".join(stories[:200]))
    rows = "\n".join(json.dumps({"text": text}) for text in stories[150:])
    (folder / "b.jsonl").write_text(rows + "\n{bad\n")
    for path in folder.iterdir():
        object_stores.file_system(bucket).put_file(str(path), f"{bucket}/text/{path.name}")
    return folder, f"{bucket}/text"


def shard_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


def download(url: str, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    object_stores.download(url, folder)
    return shard_files(folder)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_s3_has_the_bytes_of_the_disk(tmp_path: Path, corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    trained, report = train_tokenizer([str(folder)], kind="bpe", vocab_size=400, workers=1)
    remote, remote_report = train_tokenizer([url], kind="bpe", vocab_size=400, workers=1)
    assert remote.to_json() == trained.to_json()
    assert len(remote_report.errors) == len(report.errors) == 1
    trained.save(tmp_path / "tokenizer")
    options: Any = {"tokenizer": tmp_path / "tokenizer", "dedup": True, "shard_tokens": 5000}
    prepare([str(folder)], out=tmp_path / "local", workers=1, **options)
    expected = shard_files(tmp_path / "local")
    out = url.replace("text", "shards")
    for _ in range(2):  # the second time, it finds the finished shards
        assert prepare([url], out=out, workers=1, **options).url == out
    assert download(out, tmp_path / "one") == expected
    parts = url.replace("text", "parts")
    for stage in ("signatures", "part"):
        for number in (2, 1):
            made = prepare([url], out=parts, part=f"{number}/2", workers=1, **options)
            assert made.stage == stage
        prepare([url], out=parts, merge=True, workers=1, **options)
    assert download(parts, tmp_path / "two") == expected
    assert object_stores.folders(f"{parts}.parts") == []
    with pytest.raises(UsageError, match="no shards"):
        prepare([url], out=url, workers=1, **options)
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        prepare([f"{url}/nowhere.txt"], out=out, workers=1, **options)
    local, lazily = Shards(tmp_path / "local"), Shards(out)
    lazily.verify()
    for number in range(0, len(local), 7):
        assert np.array_equal(lazily[number], local[number])


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_training_from_s3_is_training_from_disk(tmp_path: Path, corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    out = url.replace("text", "shards")
    train_tokenizer([folder], kind="bpe", vocab_size=400, workers=1)[0].save(tmp_path / "tokenizer")
    for text, place in ((folder, tmp_path / "shards"), (url, out)):
        words = ["prepare", text, "--tokenizer", tmp_path / "tokenizer", "--out", place]
        assert in_process(*words, "--workers", 1).returncode == 0
    losses = []
    for number, data in enumerate((tmp_path / "shards", out)):
        run = tmp_path / f"run-{number}"
        words = ["pretrain", "--preset", "decoder-tiny", "--data", data, "--out", run, "--steps", 3]
        words += ["--batch-tokens", 256, "--max-length", 32, "--device", "cpu", "--json"]
        trained = in_process(*words)
        assert trained.returncode == 0, trained.error
        losses.append(trained.json["loss"])
    assert losses[0] == losses[1]
