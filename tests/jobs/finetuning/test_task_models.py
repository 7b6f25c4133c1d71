"""Task-specific models are trained from random weights, without a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.jobs import sweep
from firth.jobs.finetuning import finetune
from firth.models.word_embedding import WordNetwork
from firth.utils.errors import InputError, UsageError
from tests.jobs.finetuning.toys import sums
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at

GOOD, BAD = "good great fine lovely superb".split(), "bad awful poor dull weak".split()
OTHERS = "the film is a story of an old actor and his wife".split()
TAGS = {"Anna": "B-PER", "Ben": "B-PER", "Paris": "B-LOC", "Rome": "B-LOC"}


def reviews(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """The label of a text is that of one of its words."""
    draw, rows = np.random.default_rng(seed), []
    for i in range(count):
        words = [*draw.choice(OTHERS, 5), draw.choice(GOOD if i % 2 else BAD)]
        rows.append((" ".join(draw.permutation(words)), "pos" if i % 2 else "neg"))
    return rows


def sentences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw, rows = np.random.default_rng(seed), []
    for _ in range(count):
        words = [str(word) for word in draw.choice([*TAGS, "saw", "in", "went", "."], 6)]
        rows.append({"words": words, "tags": [TAGS.get(word, "O") for word in words]})
    return rows


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Vectors that tell good words from bad ones, also some that are not in the training data."""
    draw, path = np.random.default_rng(0), tmp_path / "vectors.txt"
    sides = {**dict.fromkeys([*GOOD, "splendid"], 1.0), **dict.fromkeys([*BAD, "horrid"], -1.0)}
    rows = [(word, [side, *draw.normal(size=7) / 4]) for word, side in sides.items()]
    path.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in v)}\n" for w, v in rows))
    return path


CNN = ("cnn", {"hidden_size": 60})


@pytest.mark.parametrize(
    ("name", "fields"),
    mostly_nightly([CNN, ("lstm", {}), ("bilstm-attention", {"hidden_size": 64})], always=[CNN]),
)
def test_words_without_labels_are_known_by_their_vectors(
    name: str, fields: dict[str, int], vectors: Path, tmp_path: Path
) -> None:
    model = {f"model.{field}": value for field, value in fields.items()}
    result = finetune(
        name, task="classify", train=reviews(200), dev=reviews(40, 1), out=tmp_path / "run",
        vectors=vectors, overrides={"epochs": 12, "learning_rate": 1e-2, **model},
    )  # fmt: skip
    assert result.metrics["accuracy"].value >= 0.9
    assert any("10 of 22 words" in note for note in result.notes)
    texts = ["the story is splendid", "the story is horrid"]
    loaded = firth.load(tmp_path / "run")
    assert [answer["label"] for answer in loaded.predict(texts)] == ["pos", "neg"]
    assert loaded.predict(texts)[0] == result.model.predict(texts)[0]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["job"]["vectors"] == str(vectors)
    assert run["job"]["network"] == fields


def test_a_model_directory_of_word_vectors_is_like_their_file(
    vectors: Path, tmp_path: Path
) -> None:
    firth.load(vectors).save(tmp_path / "model")
    options: dict[str, Any] = dict(task="classify", train=reviews(40), dev=reviews(4, 1))
    options |= {"overrides": {"steps": 2, "model.hidden_size": 6}}
    runs = [
        finetune("cnn", out=tmp_path / name, vectors=source, **options).path
        for name, source in (("one", vectors), ("two", tmp_path / "model"))
    ]
    assert sums(runs[0]) == sums(runs[1])


def test_sweeps_accept_the_name_of_a_model(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(task="classify", train=reviews(24), dev=reviews(4, 1))
    options |= {"model": "cnn", "overrides": {"steps": 1, "model.hidden_size": 6}}
    searched = sweep.search(tmp_path / "search", minutes=1e-9, **options)
    assert [run.name for run in searched.runs] == ["lr=6.7e-04,batch_size=16,freeze=0"]
    both = sweep.strategies(["all"], tmp_path / "strategies", **options)
    assert [run.name for run, _ in both.done] == ["full", "probe"]
    with pytest.raises(UsageError, match="bow is fitted"):
        sweep.search(tmp_path / "bow", **{**options, "model": "bow"})


def test_frozen_vectors_stay(vectors: Path, tmp_path: Path) -> None:
    overrides = {"steps": 3, "model.freeze_vectors": True, "model.hidden_size": 6}
    result = finetune(
        "cnn", task="classify", train=reviews(40), dev=reviews(4, 1), out=tmp_path / "run",
        vectors=vectors, overrides=overrides,
    )  # fmt: skip
    network = result.model.network
    assert isinstance(network, WordNetwork)
    rows = network.tokens.rows_of(["good"])
    stored = [float(x) for x in vectors.read_text().splitlines()[0].split()[1:]]
    assert network.tokens.fixed[rows[0] - network.tokens.num_embeddings].tolist() == pytest.approx(
        stored, abs=1e-6
    )


def test_a_tagger_reads_the_characters_of_unknown_words(tmp_path: Path) -> None:
    overrides = {"epochs": 6, "batch_size": 8, "model.hidden_size": 32, "learning_rate": 1e-2}
    result = finetune(
        "bilstm-crf", task="tag", train=sentences(120), dev=sentences(30, 1), out=tmp_path / "run",
        overrides=overrides,
    )  # fmt: skip
    assert result.metrics["f1"].value == 1.0
    loaded = firth.load(tmp_path / "run")
    unknown = [loaded.hidden_states(f"{word} saw")[-1][0] for word in ("Benno", "benno", "Xy")]
    assert not torch.equal(unknown[0], unknown[1])
    assert not torch.equal(unknown[1], unknown[2])
    assert "heads.tag.crf.transitions" in dict(loaded.network.named_parameters())
    assert set(loaded.network.heads) == {"tag"}  # none that predicts words


@pytest.mark.parametrize(("name", "rows"), [("cnn", reviews), ("bilstm-crf", sentences)])
def test_resumed_equals_uninterrupted(name: str, rows: Any, tmp_path: Path) -> None:
    task = "tag" if name == "bilstm-crf" else "classify"
    overrides = {"steps": 6, "batch_size": 8, "checkpoint_every": 2, "model.hidden_size": 12}
    options: dict[str, Any] = dict(task=task, train=rows(24), dev=rows(8, 1), overrides=overrides)
    whole = finetune(name, out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        finetune(name, out=tmp_path / "stopped", callbacks=kill_at(5), **options)
    resumed = finetune(name, out=tmp_path / "stopped", resume=True, **options)
    assert sums(whole.path) == sums(resumed.path)


def test_a_dry_run_and_seeds_begin_with_different_weights(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(task="classify", train=reviews(24), overrides={"steps": 1})
    cost = finetune("cnn", dry_run=True, **options)
    assert [row.strategy for row in cost.rows] == ["full"]
    first, second = (
        finetune("cnn", out=tmp_path / str(seed), seed=seed, dev=reviews(4), **options).model
        for seed in (0, 1)
    )
    weights = [model.network.get_parameter("filters.0.weight") for model in (first, second)]
    assert not torch.equal(*weights)


BAD_OPTIONS: dict[str, tuple[type[Exception], str, str, dict[str, Any]]] = {
    "task": (UsageError, "cnn", "classify, pair, regress.*bilstm-crf", {"task": "tag"}),
    "recipe": (UsageError, "cnn", "recipe of its own", {"recipe": "sentiment"}),
    "field": (UsageError, "cnn", "model.hidden_sizes", {"overrides": {"model.hidden_sizes": 3}}),
    "empty": (InputError, "cnn", "empty", {"train": [(" ", "a"), ("", "b")] * 6}),
    "label": (InputError, "cnn", "at least two labels", {"train": [("good", "a")] * 20}),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case: str, tmp_path: Path) -> None:
    error, name, words, options = BAD_OPTIONS[case]
    given = {"task": "classify", "train": reviews(20), "out": tmp_path / "run", **options}
    with pytest.raises(error, match=words):
        finetune(name, **given)


def test_vectors_of_another_language(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("soleil 0.5 0.25\nlune 1 0\n")
    with pytest.raises(InputError, match=r"None of the 22 words.*vectors.txt"):
        finetune("cnn", task="classify", train=reviews(200), out=tmp_path / "run", vectors=path)
    with pytest.raises(UsageError, match=r"vectors.* is for task-specific models"):
        finetune("stories-encoder", task="classify", train=reviews(20), out=tmp_path, vectors=path)


def test_a_bag_of_words_is_that_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    rows, texts = reviews(60), [text for text, _ in reviews(20, 1)]
    result = finetune("bow", task="classify", train=rows, dev=reviews(20, 1), out=tmp_path / "run")
    theirs = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    seen = theirs.fit_transform([text for text, _ in rows])
    classifier = LogisticRegression(C=10.0, max_iter=2000).fit(seen, [label for _, label in rows])
    expected = classifier.predict_proba(theirs.transform(texts))
    found = firth.load(tmp_path / "run").predict(texts)
    probabilities = [[answer["scores"][label] for label in ("neg", "pos")] for answer in found]
    assert probabilities == [pytest.approx(row, abs=1e-3) for row in expected.tolist()]
    assert result.steps == 0
    assert any(f"{seen.shape[1]} n-grams" in note for note in result.notes)
    with pytest.raises(UsageError, match="no vectors of texts"):
        result.model.embed(texts)


def test_tags_that_break_bio_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.conll"
    path.write_text("Anna B-PER\nsaw O\nRome I-LOC\n\nBen I-PER\nSmith I-PER\n\n" * 4)
    options = {"overrides": {"steps": 1, "model.hidden_size": 4}, "out": tmp_path / "run"}
    result = finetune("bilstm-crf", task="tag", train=path, **options)
    [note] = [note for note in result.notes if "BIO" in note]
    assert all(fact in note for fact in ("line 3", "I-LOC follows O", "8 tags", "conlleval"))


def test_answers_obey_bio_as_the_training_data_does(tmp_path: Path) -> None:
    """Untrained, a tagger would break it; data in IOB1 allows an I- at the beginning."""
    rows = [{"words": ["Anna", "Smith", "saw"], "tags": ["B-PER", "I-PER", "O"]}] * 20
    broken = [{"words": ["Anna", "saw"], "tags": ["I-PER", "O"]}] * 20
    texts = [" ".join(row["words"]) for row in sentences(20)]
    for name, train in (("bio", rows), ("iob1", rows + broken)):
        options: dict[str, Any] = {"out": tmp_path / name, "dev": rows[:2]}
        overrides = {"steps": 1, "model.hidden_size": 4, "learning_rate": 1e-9}
        result = finetune("bilstm-crf", task="tag", train=train, overrides=overrides, **options)
        head = dict(result.model.network.named_parameters())["heads.tag.output.bias"]
        with torch.no_grad():
            head[result.config.metadata.labels.index("I-PER")] = 9.0
        first = [answer["tags"][0] for answer in result.model.predict(texts)]
        assert set(first) == {"B-PER" if name == "bio" else "I-PER"}
