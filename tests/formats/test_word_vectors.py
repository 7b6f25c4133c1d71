"""Files of word vectors: what is written is read again, and bad files are named with their line."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firth.formats.word_vectors import word_vectors
from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.formats.word_vectors.writing import VECTOR_FORMATS, write_word_vectors
from firth.utils.errors import InputError, UsageError

SUFFIXES = {"word2vec-binary": ".bin", "numpy": ".npz"}
ALLOWED = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def some_vectors(draw: st.DrawFn) -> WordVectors:
    words = draw(st.lists(st.text(ALLOWED, min_size=1, max_size=6), min_size=1, max_size=5))
    words = list(dict.fromkeys(words))
    shape = len(words), draw(st.integers(2, 4))
    return WordVectors(words, draw(arrays(np.float32, shape, elements=FLOATS)))


@pytest.mark.parametrize("format", VECTOR_FORMATS)
@settings(max_examples=15, deadline=None)
@given(vectors=some_vectors())
def test_what_is_written_is_read(
    format: str, vectors: WordVectors, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{SUFFIXES.get(format, '.txt')}"
    write_word_vectors(vectors, path, format=format)
    found = read_word_vectors(path)
    assert found.words == vectors.words
    assert found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors, vectors.vectors)
    assert found.notes == ()


def two_words() -> WordVectors:
    return WordVectors(["sun", "Mond"], np.array([[1, 0.1, -2e-9], [3, 4, 5]], dtype=np.float32))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("format", ["word2vec", "glove", "word2vec-binary"])
def test_compressed_files(format: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors.txt{suffix}"
    write_word_vectors(two_words(), path, format=format)
    plain = tmp_path / "vectors.txt"
    write_word_vectors(two_words(), plain, format=format)
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(suffix)
    if opened is not None:
        with opened(path) as file:
            assert file.read() == plain.read_bytes()
    path = path.rename(tmp_path / "no-suffix")  # recognized by its content
    assert np.array_equal(read_word_vectors(path).vectors, two_words().vectors)
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(InputError, match="no-suffix is damaged"):
        read_word_vectors(path)


def read(
    tmp_path: Path, content: str | bytes, name: str = "some.txt", limit: int = 0
) -> WordVectors:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_word_vectors(path, limit=limit)


def test_the_layouts_of_other_programs(tmp_path: Path) -> None:
    """word2vec ends lines with a space, others use tabs, or carriage returns of Windows."""
    for content in (
        "2 2\nsun 1 2 \nmoon 3 4 \n",
        "sun\t1\t2\nmoon\t3\t4",
        "sun 1 2\r\nmoon 3 4\r\n",
    ):
        found = read(tmp_path, content)
        assert (found.words, found.vectors.tolist()) == (["sun", "moon"], [[1, 2], [3, 4]])
        assert found.notes == ()


def test_a_number_is_a_word_and_quotes_are_words(tmp_path: Path) -> None:
    assert read(tmp_path, "7 1 2\n\" 3 4\n's 5 6\n").words == ["7", '"', "'s"]
    assert read(tmp_path, "7 3\n8 2\n").vectors.tolist() == [[3], [2]]  # no header


def test_the_first_words(tmp_path: Path) -> None:
    lines = "".join(f"word{i} {i} 1\n" for i in range(3000))
    assert len(read(tmp_path, lines).words) == 3000
    assert read(tmp_path, lines, limit=2).words == ["word0", "word1"]
    assert read(tmp_path, f"3000 2\n{lines}", limit=2).vectors.tolist() == [[0, 1], [1, 1]]
    with pytest.raises(UsageError, match="limit"):
        read(tmp_path, lines, limit=-1)


def test_words_with_spaces_and_invalid_bytes_are_noted(tmp_path: Path) -> None:
    found = read(tmp_path, b"the 1 2\n. . . 3 4\nat name@domain.com 5 6\ncaf\xe9 7 8\n")
    assert found.words == ["the", ". . .", "at name@domain.com", "caf\ufffd"]
    assert found.vectors.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    spaces, invalid = found.notes
    assert "some.txt" in spaces
    assert "'. . .' (line 2)" in spaces
    assert "from the right" in spaces
    assert "line 4" in invalid
    assert "UTF-8" in invalid


def test_of_repeated_words_the_first_is_kept(tmp_path: Path) -> None:
    found = read(tmp_path, "4 1\nsun 1\nmoon 2\nsun 3\nsun 4\n")
    assert (found.words, found.vectors.ravel().tolist()) == (["sun", "moon"], [1, 2])
    [note] = found.notes
    assert "2 rows" in note
    assert "'sun' (line 4)" in note
    assert "first vector is kept" in note


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("sun\nmoon\n", "no model.*GloVe"),
        ("3 2\nsun 1 2\nmoon 3 4\n", r"line 1 .* 3 words, .* 2; .*`2 2`"),
        ("1 2\nsun 1 2\nmoon 3 4\n", r"line 1 .* 1 words, .* 2"),
        ("2 3\nsun 1 2\nmoon 3 4\n", r"line 2 has 2 numbers, .* 3"),
        ("0 2\nsun 1 2\n", "line 1 .* at least 1"),
        ("999999999999 300\nsun 1 2\n", "line 1 .* only 25 bytes"),
        ("sun 1 2\nmoon 3\nsky 1 2\n", r"line 2 has 1 numbers, .* 2 .*ragged"),
        ("sun 1 2\nmoon 3 4 5\nsky 1 2\n", r"line 2 has 3 numbers, .* 2 .*ragged"),
        ("sun 1 2\n\nmoon nan 4\n", r"line 3: .*'moon'.*not finite"),
        ("sun 1 2\nmoon 1 -inf\n", r"line 2: .*'moon'.*not finite"),
        ("sun 1 2\nmoon 1 1e99\n", r"line 2: .*'moon'.*not finite"),
        ("sun 1 2\nmoon 1 two\n", r"line 2: 'two' is not a number"),
        (pickle.dumps({"sun": [1, 2]}), r"pickle.*never opened"),
        (b"\x7fELF\0\0\0", "no model.*GloVe"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"some\.txt.*{said}"):
        read(tmp_path, content)


def test_binary_files(tmp_path: Path) -> None:
    row = np.array([1, 2], "<f4").tobytes()
    with_newlines = b"2 2\nsun " + row + b"\nm\xf6nd " + row + b"\n"
    found = read(tmp_path, with_newlines)
    assert found.words == ["sun", "m\ufffdnd"]
    assert "UTF-8" in found.notes[0]
    for content, said in (
        (with_newlines[:-6], r"ends in word 2 of the 2"),
        (b"9 2\nsun " + row, "line 1 .* only 16 bytes"),
        (b"1 2\nsun " + row + b"\nmoon " + row, "goes on after"),
        (b"1 2\nsun " + np.array([1, np.nan], "<f4").tobytes(), r"word 1: .*'sun'.*not finite"),
    ):
        with pytest.raises(InputError, match=rf"some\.bin.*{said}"):
            read(tmp_path, content, "some.bin")


def test_numpy_files(tmp_path: Path) -> None:
    vectors = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.savez_compressed(
        tmp_path / "a.npz", tokens=np.array(["sun", "möön"]), matrix=vectors.T.copy().T
    )
    found = read_word_vectors(tmp_path / "a.npz")
    assert (found.words, found.vectors.tolist()) == (["sun", "möön"], vectors.tolist())
    np.save(tmp_path / "b.npy", vectors)
    with pytest.raises(InputError, match=r"b\.npy has no words.*b\.vocab"):
        read_word_vectors(tmp_path / "b.npy")
    (tmp_path / "b.vocab").write_text("sun\nmöön\n", encoding="utf-8")
    assert read_word_vectors(tmp_path / "b.npy").words == ["sun", "möön"]
    (tmp_path / "b.vocab").write_text("sun\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"2 rows.* 1 words"):
        read_word_vectors(tmp_path / "b.npy")


def test_bad_numpy_files(tmp_path: Path) -> None:
    objects, huge = io.BytesIO(), io.BytesIO()
    np.savez(objects, words=np.array(["sun"], dtype=object), vectors=np.ones((1, 2)))
    with pytest.raises(InputError, match="never unpickled"):
        read(tmp_path, objects.getvalue(), "bad.npz")
    np.savez(huge, words=np.array(["sun"]), vectors=np.ones((1, 2)))
    lie = huge.getvalue().replace(b"(1, 2)", b"(9, 9)")
    with pytest.raises(InputError, match=r"bad\.npz"):
        read(tmp_path, lie, "bad.npz")
    for arrays_ in (
        {"words": np.array(["a"])},
        {"words": np.array(["a"]), "vectors": np.ones((2, 2))},
    ):
        file = io.BytesIO()
        np.savez(file, **arrays_)
        with pytest.raises(InputError, match=r"bad\.npz"):
            read(tmp_path, file.getvalue(), "bad.npz")


@pytest.mark.filterwarnings("ignore:.*additional header parsing")  # NumPy's, of damaged headers
@settings(max_examples=50, deadline=None)
@given(format=st.sampled_from(list(VECTOR_FORMATS)), data=st.data())
def test_damaged_files_are_read_or_refused(
    format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    write_word_vectors(two_words(), path, format=format)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    with suppress(InputError):
        found = read_word_vectors(path)
        assert len(found.words) == len(set(found.words)) == len(found.vectors)
        assert np.isfinite(found.vectors).all()


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (
        mock.patch.object(word_vectors, "MAX_BYTES", 1000),
        pytest.raises(InputError, match=r"some\.txt.*limit"),
    ):
        read(tmp_path, "".join(f"word{i} 1 2 3\n" for i in range(100)))


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    for word in ("New York", "", "a\nb", "\ud800"):
        with pytest.raises(InputError, match="Word 1 of"):
            write_word_vectors(
                WordVectors([word], np.ones((1, 2), dtype=np.float32)), path, format="word2vec"
            )
    assert not path.exists()
    with pytest.raises(UsageError, match="word2vec"):
        write_word_vectors(two_words(), path, format="word2vce")
