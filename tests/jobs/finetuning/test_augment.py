"""Data augmentation: dropped, swapped and predicted words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.cli.views import tasks as task_views
from firth.jobs.finetuning import finetune
from firth.model import Model, load
from firth.models.masks import Mask
from firth.tasks.augmentation import augment, drop_words, swap_words
from firth.tasks.readers.examples import LabelledExample, TaggedExample
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.toys import TINY, coloured, table

WORDS = [f"w{i}" for i in range(40)]
TEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def model(models: dict[str, Path]) -> Model:
    return load(models["encoder"])


def is_part(some: list[str], all_words: list[str]) -> bool:
    """Whether words stand in others in the same order."""
    rest = iter(all_words)
    return all(word in rest for word in some)


def test_words_are_dropped() -> None:
    lost = []
    for key in range(200):
        kept = drop_words(TEXT, key).split()
        assert is_part(kept, WORDS)
        lost.append(len(WORDS) - len(kept))
    assert min(lost) >= 1
    assert np.mean(lost) / len(WORDS) == pytest.approx(0.1, abs=0.015)  # a tenth of all words
    assert drop_words("alone", 0) == "alone"
    assert drop_words("", 0) == ""


def test_words_are_swapped() -> None:
    for key in range(100):
        found = swap_words(TEXT, key).split()
        assert Counter(found) == Counter(WORDS)
        assert found != WORDS
    assert swap_words("a b", 7) == "b a"
    assert swap_words("alone", 0) == "alone"


def test_masked_words_are_replaced_by_likely_ones(model: Model) -> None:
    """Every new token is one of the ten most probable, and not the old one."""
    tokenizer, network = model.require_tokenizer(), model.network
    text = "the dog ran to the river in the morning and the garden was green"
    old = tokenizer.encode(text, specials=True)
    rows = [LabelledExample(text=text, label="x", line=i) for i in range(20)]
    made = augment(rows, "masked", network, tokenizer, seed=0)[20:]
    changed = 0
    for row in made:
        new = tokenizer.encode(row.text, specials=True)
        if len(new) != len(old):
            continue  # a word piece alone is tokenized differently
        places = [i for i in range(len(old)) if old[i] != new[i]]
        hidden = torch.tensor(old)
        hidden[places] = tokenizer.special_ids["mask"]
        with torch.no_grad():
            scores = network.logits(network(hidden, Mask([len(old)])))
        scores[:, torch.from_numpy(np.flatnonzero(tokenizer.vocabulary.special))] = -torch.inf
        for place in places:
            scores[place, old[place]] = -torch.inf
            assert new[place] in scores[place].topk(10).indices
            changed += 1
    assert changed > 10
    assert not any(token in row.text for row in made for token in tokenizer.special_tokens.values())


def test_each_kind_adds_a_variant_of_each_example(model: Model) -> None:
    rows = [LabelledExample(text=TEXT, second="b", label=label) for label in ("x", "y")]
    args = (model.network, model.require_tokenizer())
    made = augment(rows, "dropout, swap", *args, seed=0)
    assert made[:2] == rows
    assert [row.label for row in made] == ["x", "y"] * 3
    assert {row.second for row in made} == {"b"}
    assert len({row.text for row in made}) == 5  # two are alike, and no two changed alike
    assert made == augment(rows, "dropout, swap", *args, seed=0)
    assert made[2:] != augment(rows, "dropout, swap", *args, seed=1)[2:]
    assert augment(rows, "", *args, seed=0) == rows


def test_invalid_augmentation(model: Model, models: dict[str, Path]) -> None:
    args = (model.network, model.require_tokenizer())
    with pytest.raises(UsageError, match=r"--augment .*dropout, swap, masked, not 'shuffle'"):
        augment([], "swap,shuffle", *args, seed=0)
    with pytest.raises(UsageError, match="classify, pair and regress"):
        augment([TaggedExample(words=("a",), tags=("O",))], "swap", *args, seed=0)  # type: ignore[list-item]
    decoder = load(models["decoder"])
    with pytest.raises(MismatchError, match="an encoder with its language head"):
        augment([], "masked", decoder.network, decoder.require_tokenizer(), seed=0)


def test_a_run_trains_on_all_variants(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path, counts=(16, 8))
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"steps": 1}
    tuned = finetune(
        models["encoder"], task="classify", augment="dropout,swap", overrides=overrides, **files
    )
    assert (tuned.examples, tuned.variants) == ((16, 8), 32)  # and dev examples stay as they are
    facts = "16 examples and 32 variants of them"
    assert facts in (tuned.path / "README.md").read_text()
    assert any(facts in str(line) for line in task_views.finetuned(tuned))


def test_variants_are_not_counted_as_truncated(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [("red dog " * 40, "x"), *[("green dog", "y")] * 7]
    train = table(tmp_path / "long.tsv", "text label", rows)
    files = {"train": train, "dev": train, "out": tmp_path / "run"}
    overrides = TINY | {"steps": 1}
    tuned = finetune(
        models["encoder"], task="classify", augment="swap", overrides=overrides, **files
    )
    assert any(note.startswith("1 of 8 examples") for note in tuned.notes)
