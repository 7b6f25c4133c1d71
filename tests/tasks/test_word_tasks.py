"""Word similarity and analogies: the metrics of vectors whose answers are known by hand."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from firth import evaluate, load
from firth.tasks import analogies
from firth.tasks.analogies import answer_analogies
from firth.utils.errors import InputError, MismatchError, UsageError

WORDS = ["man", "woman", "king", "queen", "boy", "girl", "walk", "walked", "run", "ran", "stone"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four offsets in orthogonal directions: female, royal, young, past."""
    path = tmp_path_factory.mktemp("words") / "small.txt"
    rows = np.eye(6)[[0, 0, 0, 0, 0, 0, 4, 4, 5, 5, 3]]
    rows[[1, 3, 5], 1] += 1
    rows[[2, 3], 2] += 1
    rows[[4, 5], 3] += 1
    rows[[7, 9], 2] -= 2
    lines = (f"{w} {' '.join(map(str, row))}\n" for w, row in zip(WORDS, rows, strict=True))
    path.write_text("".join(lines), encoding="utf-8")
    return path


PAIRS = (
    "Man\twoman\t8\nking\tqueen\t9.5\nboy\tgirl\t9\nwalk\tstone\t1\nrun\tran\t6\nwalk\tflew\t5\n"
)
COSINES = [2**-0.5, 6**-0.5 * 2, 6**-0.5 * 2, 0, 5**-0.5]


def test_similarity_is_the_rank_correlation(vectors: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.txt"
    data.write_text(PAIRS, encoding="utf-8")
    found = evaluate(vectors, task="similarity", data=data)
    human = [8, 9.5, 9, 1, 6]
    expected = spearmanr(COSINES, human).statistic
    assert found.n == 5
    assert found.metrics["spearman"].value == pytest.approx(expected, abs=1e-6)
    assert found.metrics["pearson"].value == pytest.approx(pearsonr(COSINES, human)[0], abs=1e-6)
    assert found.metrics["spearman"].low is not None
    assert found.details == {"pairs": 6, "out_of_vocabulary": 1}
    assert any("1 of 6 pairs" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", "Word 1,Word 2,Human (mean)\n" + PAIRS.replace("\t", ",")),
        ("pairs.tsv", "word1\tword2\tscore\n" + PAIRS),
        ("pairs.txt", "# people's scores\n\n" + PAIRS.replace("\t", " ")),
        (
            "simlex.txt",
            "word1\tword2\tPOS\tconc\tSimLex999\n"
            + re.sub(r"(?m)\t([\d.]+)$", r"\tN\t1\t\1", PAIRS),
        ),
    ],
)
def test_the_formats_of_word_pairs(vectors: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = evaluate(vectors, task="similarity", data=tmp_path / name)
    rows = [tuple(line.split("\t")) for line in PAIRS.splitlines()]
    in_memory = evaluate(vectors, task="similarity", data=[(a, b, float(c)) for a, b, c in rows])
    assert found.n == in_memory.n == 5
    assert found.metrics == in_memory.metrics


def test_bad_word_pairs_name_the_line(vectors: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.txt"
    data.write_text("man woman 8\nking queen\nboy girl 9\nwalk ran 1\n", encoding="utf-8")
    found = evaluate(vectors, task="similarity", data=data)
    assert found.n == 3
    assert any("line 2" in note for note in found.notes)
    with pytest.raises(InputError, match="line 2"):
        evaluate(vectors, task="similarity", data=data, strict=True)
    data.write_text("man woman\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"pairs\.txt line 1"):
        evaluate(vectors, task="similarity", data=data)
    data.write_text("Hund Katze 8\n", encoding="utf-8")
    with pytest.raises(MismatchError, match=r"small\.txt.*pairs\.txt"):
        evaluate(vectors, task="similarity", data=data)


QUESTIONS = """: family
man woman king queen
boy girl Man woman
king queen boy girl
king queen stone woman
: gram7-past-tense
walk walked run ran
fly flew run ran
"""


def test_analogies(vectors: Path, tmp_path: Path) -> None:
    data = tmp_path / "questions.txt"
    data.write_text(QUESTIONS, encoding="utf-8")
    found = evaluate(vectors, task="analogies", data=data)
    assert found.n == 5
    assert found.metrics["accuracy"].value == pytest.approx(0.8)
    assert found.metrics["semantic_accuracy"].value == 0.75
    assert found.metrics["syntactic_accuracy"].value == 1
    assert {name: part["accuracy"].value for name, part in found.parts.items()} == {
        "family": 0.75,
        "gram7-past-tense": 1.0,
    }
    assert found.details["out_of_vocabulary"] == 1
    data.write_text(": family\nman woman king\nboy girl man woman\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2 has 3 words"):
        evaluate(vectors, task="analogies", data=data, strict=True)


def test_answers_do_not_depend_on_the_blocks() -> None:
    """Against the definition, one question at a time."""
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(50, 4, generator=draw)
    questions = torch.randint(50, (40, 3), generator=draw)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    expected = []
    for a, b, c in questions.tolist():
        scores = units @ (units[b] - units[a] + units[c])
        scores[[a, b, c]] = -torch.inf
        expected.append(int(scores.argmax()))
    for size in (7, 50, 1000):
        with mock.patch.object(analogies, "CANDIDATES", size):
            assert answer_analogies(vectors, questions).tolist() == expected


def test_an_encoder_embeds_words_as_texts(tmp_path: Path) -> None:
    model = load("stories-encoder")
    pairs = [
        ("dog", "cat", 8.0),
        ("dog", "river", 2.0),
        ("cat", "house", 3.0),
        ("day", "night", 7.0),
    ]
    found = evaluate(model, task="similarity", data=pairs)
    a, b = (model.embed([pair[side] for pair in pairs]) for side in (0, 1))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    expected = spearmanr(cosines, [pair[2] for pair in pairs]).statistic
    assert found.metrics["spearman"].value == pytest.approx(expected, abs=1e-5)
    asked = evaluate(model, task="analogies", data=[("dog", "dogs", "cat", "cats")])
    assert asked.n == 1
    assert asked.details["candidates"] == 4


def test_a_query_without_known_words_finds_nothing(vectors: Path) -> None:
    model = load(vectors)
    assert model.search(["a stone", "the king"], "queen")[0].text == "the king"
    with pytest.raises(UsageError, match="Katze"):
        model.search(["a stone", "the king"], "Katze")
