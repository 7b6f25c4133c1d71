"""What the embedded models must know; the probes were written before the models were trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import firth
from firth.data.stories import generate_story
from firth.data.stories.story_files import split_of
from firth.embedded import EMBEDDED_MODELS, HOME
from scripts import embedded_checks as checks
from scripts.embedded_corpus import TASK_SEED


def test_files_are_small() -> None:
    files = [file for name in EMBEDDED_MODELS for file in (HOME / name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 20e6
    for name in EMBEDDED_MODELS:
        assert 2.5e6 < firth.load(name).num_parameters < 3.5e6
        card = (HOME / name / "README.md").read_text(encoding="utf-8")
        assert "scripts.make_embedded" in card
        assert "validation loss" in card


def test_facts(encoder: firth.Model) -> None:
    best = encoder.fill("The [MASK] barked loudly at the mailman.")[0][0]
    assert best.token == "dog"
    assert checks.known_facts(encoder, "facts") >= 0.8
    assert checks.known_facts(encoder, "capitals") >= 0.9


def test_polarity(encoder: firth.Model) -> None:
    assert checks.known_polarity(encoder) >= 0.8


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_minimal_pairs(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    numbers = [number for number in range(300) if split_of(number) == "test"]
    stories = [generate_story(TASK_SEED, number) for number in numbers]
    pairs = [pair for story in stories for pair in story.examples.agreement]
    rows = [{"sentence_good": pair.good, "sentence_bad": pair.bad} for pair in pairs]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    model = request.getfixturevalue(name)
    result = firth.evaluate(model, task="minimal-pairs", data=file)
    assert result.metrics["accuracy"].value >= 0.95


def test_spans_are_filled_after_a_space(seq2seq: firth.Model) -> None:
    assert seq2seq.fill("The ___ barked loudly at the mailman.")[0][0].token == "dog"


def test_names_by_hand() -> None:
    assert checks.remembered_names(["Anna met Ben . Ben saw Tom ."]) == 0.5
    assert checks.remembered_names(["Anna ran . Anna sat ."]) == 1.0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_all_minimal_pairs(name: str, request: pytest.FixtureRequest, stories: Path) -> None:
    assert checks.minimal_pairs(request.getfixturevalue(name), stories) >= 0.95


@pytest.mark.nightly
def test_names_in_generated_stories(decoder: firth.Model) -> None:
    texts = checks.sample_stories(decoder)
    assert sum(len(text.split()) >= checks.SAMPLE_WORDS for text in texts) >= 45
    assert checks.remembered_names(texts) >= 0.95


@pytest.mark.nightly
def test_restored_spans(seq2seq: firth.Model, stories: Path) -> None:
    """At least 20 points above a 5-gram model that reads the text before each removed token.

    A 5-gram model that also reads the text after each span is a stronger baseline.
    """
    model, left, both, exact = checks.restored_spans(seq2seq, stories)
    print(f"restored: {model:.3f}; 5-gram {left:.3f}, {both:.3f}; whole spans {exact:.3f}")
    assert model >= left + 0.2
    assert model >= both + 0.12


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["topic", "entailment", "entities"])
def test_other_tasks_with_few_labels(name: str, stories: Path, tmp_path: Path) -> None:
    pretrained, scratch = (
        checks.few_labels(
            "stories-encoder", stories, tmp_path / str(scratch), name=name, seed=0, scratch=scratch
        )
        for scratch in (False, True)
    )
    print(f"{name}: pre-trained {pretrained.value:.3f}, from scratch {scratch.value:.3f}")
    assert pretrained.value > scratch.value


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_sentiment_with_few_labels(seed: int, stories: Path, tmp_path: Path) -> None:
    pretrained, scratch = (
        checks.few_labels(
            "stories-encoder",
            stories,
            tmp_path / str(scratch),
            name="sentiment",
            seed=seed,
            scratch=scratch,
        )
        for scratch in (False, True)
    )
    print(f"seed {seed}: pre-trained {pretrained.value:.3f}, from scratch {scratch.value:.3f}")
    assert pretrained.value >= scratch.value + 0.1
    assert pretrained.low is not None
    assert scratch.high is not None
    assert pretrained.low > scratch.high
