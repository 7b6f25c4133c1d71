"""Deduplication compared with true Jaccard similarities and planted duplicates."""

import random
import string
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from firth.data import dedup
from firth.data.dedup import (
    EXACT,
    KEEP,
    NEAR,
    Signatures,
    Verdicts,
    digests,
    find_duplicates,
    open_fingerprints,
    signatures,
)
from tests.nightly import pairs_mostly_nightly


def duplicates(texts: Sequence[str], threshold: float = 0.8) -> Verdicts:
    with TemporaryDirectory() as name:
        with open_fingerprints(Path(name)) as append:
            append(digests(texts), signatures(texts))
        return find_duplicates(Path(name), threshold)


def grams(text: str) -> set[str]:
    folded = " ".join(text.casefold().split())
    return {folded[i : i + 5] for i in range(len(folded) - 4)}


def jaccard(one: str, other: str) -> float:
    return len(grams(one) & grams(other)) / len(grams(one) | grams(other))


def random_text(rng: random.Random, words: int, letters: str = string.ascii_lowercase) -> str:
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(words))


def with_changed_words(rng: random.Random, text: str, fraction: float) -> str:
    words = text.split()
    for place in rng.sample(range(len(words)), round(fraction * len(words))):
        words[place] = random_text(rng, 1)
    return " ".join(words)


# 8 words leave most of the 128 bins empty
@pytest.mark.parametrize(("words", "fraction"), pairs_mostly_nightly([8, 40, 300], [0.1, 0.3, 0.6]))
def test_estimate_is_unbiased(words: int, fraction: float) -> None:
    rng = random.Random(words)
    ones = [random_text(rng, words) for _ in range(200)]
    others = [with_changed_words(rng, one, fraction) for one in ones]
    truth = np.array([jaccard(*pair) for pair in zip(ones, others, strict=True)])
    estimate = (signatures(ones) == signatures(others)).mean(axis=1)
    standard_error = np.sqrt((truth * (1 - truth) / 128).sum()) / len(ones)
    assert abs((estimate - truth).mean()) <= 4 * standard_error


def test_variance_is_that_of_minhash() -> None:
    rng = random.Random(0)
    ones = [random_text(rng, 300) for _ in range(200)]
    others = [with_changed_words(rng, one, 0.15) for one in ones]
    truth = np.array([jaccard(*pair) for pair in zip(ones, others, strict=True)])
    error = (signatures(ones) == signatures(others)).mean(axis=1) - truth
    assert np.sqrt((error**2).mean()) <= 1.1 * np.sqrt((truth * (1 - truth) / 128).mean())


def test_near_duplicates_are_found() -> None:
    rng = random.Random(1)
    originals = [random_text(rng, 200) for _ in range(100)]
    close = [with_changed_words(rng, text, 0.02) for text in originals]
    far = [with_changed_words(rng, text, 0.35) for text in originals]
    assert min(map(jaccard, originals, close)) >= 0.9
    assert max(map(jaccard, originals, far)) <= 0.5
    verdicts = duplicates([*originals, *close, *far])
    assert verdicts.tolist() == [KEEP] * 100 + [NEAR] * 100 + [KEEP] * 100


def test_the_first_copy_is_kept() -> None:
    text = random_text(random.Random(2), 100)
    texts = [text, "another text", text, text.upper(), text + " more", "another text"]
    assert duplicates(texts).tolist() == [KEEP, KEEP, EXACT, NEAR, NEAR, EXACT]
    assert duplicates(texts[::-1]).tolist() == [KEEP, KEEP, NEAR, NEAR, EXACT, EXACT]


def test_threshold_is_the_fraction_of_equal_bins() -> None:
    rng = random.Random(3)
    text = random_text(rng, 200)
    pair = [text, with_changed_words(rng, text, 0.1)]
    equal = float(np.equal(*signatures(pair)).mean())
    assert duplicates(pair, threshold=equal).tolist() == [KEEP, NEAR]
    assert duplicates(pair, threshold=equal + 0.001).tolist() == [KEEP, KEEP]


@pytest.mark.parametrize(
    "letters", ["ɓɗƙƴaei", "ابتثجحخد", "कखगघिीुू", "กขคงจฉ", "的一是不了人我在有他", "😀😁😂🤣😃"]
)
def test_scripts(letters: str) -> None:
    rng = random.Random(4)
    one, other = random_text(rng, 60, letters), random_text(rng, 60, letters)
    assert duplicates([one, other, one + "!", other]).tolist() == [KEEP, KEEP, NEAR, EXACT]


def test_short_texts_have_exact_duplicates_only() -> None:
    assert duplicates(["", "no", "No", "no", "", "four", " four"]).tolist() == [0, 0, 0, 1, 1, 0, 0]
    assert duplicates([]).tolist() == []


def test_case_and_white_space_are_ignored() -> None:
    plain, shouted = signatures(["Die Straße war  leer.\n", "DIE STRASSE WAR LEER."])
    assert (plain == shouted).all()


def test_chains_of_near_duplicates(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(2**15, size=(3, 128)).astype(np.uint16)
    rows[1, 20:] = rows[0, 20:]  # 84 % like the first
    rows[2, :108] = rows[1, :108]  # 84 % like the second, 69 % like the first
    with open_fingerprints(tmp_path) as append:
        append(np.arange(3, dtype=np.uint64), rows)
    assert find_duplicates(tmp_path).tolist() == [KEEP, NEAR, NEAR]


def test_signatures_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    texts = [random_text(rng, words) for words in (0, 1, 2, 3, 50, 900, 2, 4000)]
    together = signatures(texts)
    assert (together == np.concatenate([signatures([text]) for text in texts])).all()
    monkeypatch.setattr(dedup, "_PIECE", 7)
    monkeypatch.setattr(dedup, "_PIECES_AT_ONCE", 3)
    assert (together == signatures(texts)).all()


def test_verdicts_do_not_depend_on_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    originals = [random_text(rng, 60) for _ in range(100)]
    texts = [with_changed_words(rng, rng.choice(originals), 0.05) for _ in range(500)]
    whole = duplicates(texts)
    assert NEAR in whole
    for name, size in {"_KEYS_AT_ONCE": 50, "_PAIRS_AT_ONCE": 90, "_PAIRS_PER_DOCUMENT": 0}.items():
        monkeypatch.setattr(dedup, name, size)
    assert (duplicates(texts) == whole).all()


def test_digests_are_blake2b() -> None:
    # b2sum --length=64, the bytes read as one little-endian number
    assert digests([""])[0] == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little")


def test_files_of_different_lengths_are_an_error(tmp_path: Path) -> None:
    with open_fingerprints(tmp_path) as append:
        append(digests(["one", "two"]), signatures(["one"]))
    with pytest.raises(ValueError, match="different numbers"):
        find_duplicates(tmp_path)


def templated_signatures(count: int, kept: float, seed: int) -> Signatures:
    """Simulate documents from one template, which share whole bands with hundreds of others.

    A bin has its usual value with probability 0.7, else one of two others. A third of the rows
    copy a fraction `kept` of the bins of an earlier row.
    """
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 3, size=(count, 128)) * (rng.random((count, 128)) > 0.7)
    for row in rng.permutation(np.arange(1, count))[: count // 3]:
        rows[row] = np.where(rng.random(128) < kept, rows[rng.integers(row)], rows[row])
    return rows.astype(np.uint16)


def find_near(folder: Path, rows: Signatures) -> Verdicts:
    with open_fingerprints(folder) as append:
        append(np.arange(len(rows), dtype=np.uint64), rows)
    return find_duplicates(folder)


@pytest.mark.parametrize(("kept", "recall"), [(0.9, 0.995), (0.6, 0.95)])
def test_recall_in_large_buckets(tmp_path: Path, kept: float, recall: float) -> None:
    rows = templated_signatures(1500, kept, seed=0)
    buckets = [np.unique(band, return_counts=True)[1] for band in rows.view(np.uint64).T]
    assert min(sizes.max() for sizes in buckets) > 200
    similar = [bool(((rows[:i] == rows[i]).mean(axis=1) >= 0.8).any()) for i in range(len(rows))]
    found = find_near(tmp_path, rows) == NEAR
    assert not (found & ~np.array(similar)).any()
    assert found.sum() >= recall * sum(similar) > 200


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that a search reads, each time it does."""
    paths: list[Path] = []
    whole_file = dedup._read
    monkeypatch.setattr(dedup, "_read", lambda path: paths.append(path) or whole_file(path))
    return paths


def test_passes_over_the_signatures_and_memory(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_KEYS_AT_ONCE", 2000)
    monkeypatch.setattr(dedup, "_PAIRS_AT_ONCE", 2000)
    rng, count = np.random.default_rng(0), 6_000
    rows = rng.integers(2**16, size=(count, 128), dtype=np.uint16)
    some, all_alike = rows.copy(), rows[rng.integers(100, size=count)]
    some[-1000:, 13:] = rows[:1000, 13:]
    some[: count // 3, :16] = rows[0, :16]  # large buckets of documents that are not alike
    all_alike[np.arange(count), rng.integers(128, size=count)] += 1
    for number, (simulated, near) in enumerate([(rows, 0), (some, 1000), (all_alike, count - 100)]):
        read.clear()
        tracemalloc.start()
        verdicts = find_near(tmp_path / str(number), simulated)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (verdicts == NEAR).sum() == near
        assert len(read) <= 1 + 32 * 3
        assert peak < 128 * count + 1e6


@pytest.mark.nightly
def test_ten_million_documents_fit_in_little_memory(tmp_path: Path, read: list[Path]) -> None:
    rng = np.random.default_rng(0)
    count, batch, planted = 10_000_000, 100_000, 1_000
    with open_fingerprints(tmp_path) as append:
        for start in range(0, count, batch):
            exact = rng.integers(2**63, size=batch, dtype=np.uint64)
            near = rng.integers(2**63, size=(batch, 32), dtype=np.uint64).view(np.uint16)
            if start == 0:
                original = near[:planted].copy()
            if start == count - batch:
                near[:planted] = original
                near[:planted, ::10] += 1  # 13 of 128 bins differ: a similarity of 0.9
            append(exact, near)
    tracemalloc.start()
    verdicts = find_duplicates(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    marked = np.flatnonzero(verdicts == NEAR)
    assert marked.tolist() == list(range(count - batch, count - batch + planted))
    assert peak < 400e6
    assert len(read) <= 1 + 32 * 3
