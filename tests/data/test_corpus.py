"""Corpus batches, positions and reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from firth.data.corpus import START, Corpus, CorpusPosition, CorpusReport


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        blocks = [f"File {i}, document {j}. " + "x" * (7 * j % 40) for j in range(20)]
        (tmp_path / f"{i}.txt").write_text("\n\n".join(blocks))
    return tmp_path


def test_batches_do_not_depend_on_the_start_position(folder: Path) -> None:
    corpus = Corpus([folder])
    batches = list(corpus.batches(START, characters=300))
    assert sum(len(batch.texts) for batch in batches) == 60
    for i, batch in enumerate(batches):
        rest = list(corpus.batches(batch.end, characters=300))
        assert [b.texts for b in rest] == [b.texts for b in batches[i + 1 :]]
    assert batches[-1].bytes_read == corpus.size


def test_repairs_before_the_start_are_not_counted_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n\n\xff\xff\n\nfine\n\n\xff\n")
    corpus = Corpus([tmp_path])
    batches = list(corpus.batches(characters=1))
    counts = [batch.repaired["invalid bytes replaced"] for batch in batches]
    assert counts == [1, 2, 0, 1]
    rest = list(corpus.batches(batches[0].end, characters=1))
    assert [batch.repaired["invalid bytes replaced"] for batch in rest] == [2, 0, 1]


def test_iteration_yields_clean_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<p>Sannu&nbsp;duniya.</p>\n\n<br>\n\nNa  gode.\n")
    assert list(Corpus([tmp_path])) == ["Sannu duniya.", "Na gode."]
    assert next(iter(Corpus([tmp_path], clean=False))) == "<p>Sannu&nbsp;duniya.</p>\n"


def test_word_counts_of_clean_and_raw_text() -> None:
    clean, raw = CorpusReport(), CorpusReport()
    clean.count("Na gode\nsosai da sosai", clean=True)
    raw.count("  Na gode\n\n sosai\tda  sosai ", clean=False)
    assert clean.words == raw.words == 5


def test_report_sums_and_json() -> None:
    total, part = CorpusReport(), CorpusReport(documents=2, words=7, characters=30)
    part.removed["empty"] = 1
    total.add(part)
    total.add(part)
    counts = {"documents": 4, "words": 14, "characters": 60}
    assert total.as_dict() == {**counts, "removed": {"empty": 2}, "repaired": {}, "errors": []}
    assert CorpusReport.from_dict(total.as_dict()) == total


def test_many_bad_rows_at_the_start_are_skipped_and_reading_continues_anywhere(
    tmp_path: Path,
) -> None:
    good = ['{"text": "A good row."}'] * 5
    (tmp_path / "a.jsonl").write_text("\n".join(good))
    (tmp_path / "b.jsonl").write_text("\n".join(['{"text": ""}'] * 150 + good))
    corpus = Corpus([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert len(list(corpus)) == 10
    rest = corpus.batches(CorpusPosition(1, 0))
    assert sum(len(batch.texts) for batch in rest) == 5
