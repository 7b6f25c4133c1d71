"""`firth.inspect` and `firth inspect`: sections, pages, images, JSON and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import firth
from firth.inspection.input_text import fit_text, model_input
from firth.inspection.task_prediction import TaskPrediction
from firth.jobs import inspecting
from firth.utils.errors import InputError, MismatchError, StorageError, UsageError
from firth.utils.figures import Bar, BarChart, DataTable
from tests.conftest import Result
from tests.models.test_language_model import Bigram

if TYPE_CHECKING:
    from playwright.sync_api import Page

BLANK = "The [MASK] barked loudly at the mailman."
EVIL = "A <script>alert(1)</script> dog."


@pytest.fixture(scope="module")
def encoder() -> firth.Model:
    return firth.load("stories-encoder")


@pytest.fixture(scope="module")
def decoder() -> firth.Model:
    return firth.load("stories-decoder")


def names(found: Any) -> list[str]:
    return [section.name for section in found.sections]


def test_sections_fit_the_model_and_the_text(encoder: firth.Model, decoder: firth.Model) -> None:
    assert names(firth.inspect(encoder, "The dog barked.")) == ["tokens", "attention", "lens"]
    assert names(firth.inspect(encoder, BLANK))[-1] == "attribution"
    shown = names(firth.inspect(decoder, "The dog", max_new_tokens=2))
    assert shown == ["tokens", "attention", "lens", "attribution", "generation"]
    assert "generation" not in names(firth.inspect(decoder, "The dog", max_new_tokens=0))
    both = firth.inspect("stories-seq2seq", "The ___ barked.", show="attention")
    parts = both.values()["texts"][0]["attention"]["parts"]
    assert [part["part"] for part in parts] == ["encoder", "decoder", "cross"]


def test_notes_say_what_is_missing(
    encoder: firth.Model, decoder: firth.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    [note] = firth.inspect(encoder, "The dog barked.").notes
    assert "blank" in note
    [note] = firth.inspect(decoder, "The ___ barked.", max_new_tokens=0).notes
    assert "___" in note
    monkeypatch.setattr(inspecting, "MAX_ATTRIBUTED", 5)
    [note] = firth.inspect(encoder, BLANK).notes
    assert "--show attribution" in note


def test_all_sections_read_the_same_tokens() -> None:
    seq2seq = firth.load("stories-seq2seq")
    [text] = firth.inspect(
        seq2seq, "The ___ barked.", target="dog", show="tokens,attention,lens"
    ).values()["texts"]
    encoder, decoder = (
        [row["token"] for row in stack["tokens"]] for stack in text["tokens"]["stacks"]
    )
    parts = {part["part"]: part for part in text["attention"]["parts"]}
    assert encoder == parts["encoder"]["queries"] == text["lens"]["source"]
    assert encoder[0] == "The"  # as the model was trained: no <s>
    assert decoder == parts["decoder"]["queries"] == text["lens"]["tokens"]
    assert "·dog" in decoder


def test_the_target_is_that_of_all_sections(encoder: firth.Model) -> None:
    found = firth.inspect(encoder, BLANK, target="cat", show="lens,attribution").values()["texts"][
        0
    ]
    assert "·cat" in found["lens"]["targets"]
    assert all("cat" in one["output_name"] for one in found["attribution"])


def test_models_with_fewer_sections(tmp_path: Path) -> None:
    int8 = firth.load("stories-decoder", weights="int8")
    [text] = firth.inspect(int8, "The dog", show="attribution").values()["texts"]
    assert text["attribution"]["method"] == "leave-one-out"
    assert "attribution" not in names(firth.inspect("stories-encoder", "[MASK]"))
    rows = [{"text": f"The {name} ran.", "label": name} for name in ("dog", "cat")] * 4
    firth.finetune("stories-seq2seq", task="classify", train=rows, out=tmp_path / "run", epochs=1)
    found = firth.inspect(tmp_path / "run", "The dog ran.")
    assert names(found) == ["prediction", "tokens", "attention", "attribution"]
    answer = firth.load(tmp_path / "run").predict("The dog ran.")
    assert found.values()["texts"][0]["prediction"] == {"task": "classify", **answer}
    [part] = found.values()["texts"][0]["attention"]["parts"]
    assert part["part"] == "encoder"


def test_predictions_of_all_kinds_have_figures() -> None:
    labels = TaskPrediction("classify", {"label": "b", "scores": {"a": 0.2, "b": 0.8}}).figures()
    assert labels == (BarChart("Probability of each label", (Bar("b", 0.8), Bar("a", 0.2))),)
    [tags] = TaskPrediction("tag", {"words": ["Ann", "ran"], "tags": ["B-PER", "O"]}).figures()
    assert isinstance(tags, DataTable)
    assert tags.rows == (("Ann", "B-PER"), ("ran", "O"))
    [answer] = TaskPrediction("span", {"answer": "Rome", "score": 0.25, "id": 1}).figures()
    assert isinstance(answer, DataTable)
    assert answer.rows == (("answer", "Rome"), ("score", "0.250"))


def test_blanks_of_a_hybrid_decoder_are_read_in_both_directions(decoder: firth.Model) -> None:
    causal = model_input(decoder, "The dog")
    assert causal.prefix == 0
    tokenizer = decoder.require_tokenizer()
    hybrid = firth.Model(decoder.network, tokenizer, objective="hybrid")
    read = model_input(hybrid, f"The {tokenizer.special_tokens['mask']} barked.")
    assert read.prefix == len(read.ids)


def test_pairs_are_read_together(tmp_path: Path) -> None:
    rows = [
        {"text_a": "The dog ran.", "text_b": f"The {name} ran.", "label": name}
        for name in ("dog", "cat")
    ] * 4
    firth.finetune("stories-encoder", task="pair", train=rows, out=tmp_path / "run", epochs=1)
    found = firth.inspect(tmp_path / "run", "The dog ran.", text_b="The cat sat.")
    [text] = found.values()["texts"]
    tokens = [row["token"] for row in text["tokens"]["stacks"][0]["tokens"]]
    assert {"·dog", "·cat"} <= {*tokens}
    assert text["attention"]["parts"][0]["keys"] == tokens


def test_values_hold_the_weights_of_short_texts(encoder: firth.Model) -> None:
    found = firth.inspect(encoder, BLANK, show=["attention"], layers=[2, -1], heads=3)
    [part] = found.values()["texts"][0]["attention"]["parts"]
    assert [layer["layer"] for layer in part["layers"]] == [2, 5]
    text = BLANK.replace("[MASK]", encoder.blank_filler().mark)
    weights = encoder.attention(text, layers=[2, -1], heads=[3])
    for layer, expected in zip(part["layers"], weights, strict=True):
        [head] = layer["heads"]
        assert head["head"] == 3
        assert np.abs(np.array(head["weights"]) - expected[0]).max() < 1 / 255
    json.dumps(found.values())


def test_a_page_and_images_are_written(encoder: firth.Model, tmp_path: Path) -> None:
    page, images = tmp_path / "new" / "page.html", tmp_path / "images"
    firth.inspect(encoder, EVIL, show="lens", out=page)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "default-src 'none'" in text
    found = firth.inspect(encoder, BLANK, show="lens", png=images)
    assert len(list(images.glob("*.png"))) == 2  # a heat map, and the chart of a blank
    with pytest.raises(UsageError, match="overwrite"):
        found.save(page)
    found.save(page, overwrite=True)
    (images / "old.png").touch()
    assert len(found.save_images(images, overwrite=True)) == len(list(images.iterdir()))
    assert found._repr_html_().count("<iframe") == 1


def test_one_word_in_several_texts(encoder: firth.Model) -> None:
    texts = ["The dog barked.", "A small dog sat on the mat."]
    found = firth.inspect(encoder, texts, word="dog")
    assert names(found) == ["senses"]
    assert len(found.values()["senses"]["occurrences"]) == 2


def test_long_texts_are_cut(decoder: firth.Model) -> None:
    limit = decoder.config.max_positions
    text, note = fit_text(decoder, "The dog barked loudly. " * limit)
    assert len(decoder.input_ids(text)) <= limit
    assert str(limit) in note
    text, _ = fit_text(decoder, "The dog barked loudly. " * limit, room=10 * limit)
    assert limit // 2 - 5 <= len(decoder.input_ids(text)) <= limit // 2
    found = firth.inspect(decoder, "The dog barked loudly. " * limit, show="tokens")
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"texts": ""}, InputError, "empty"),
        ({"texts": []}, UsageError, "TEXT"),
        ({"texts": "A dog.", "layers": [6]}, UsageError, "5"),
        ({"texts": "A dog.", "heads": [0]}, UsageError, "head"),
        ({"texts": "A dog.", "show": "lense"}, UsageError, "lens"),
        ({"texts": "A dog.", "data": "x.tsv"}, UsageError, "compare"),
        ({"texts": "A dog.", "compare": "stories-decoder", "data": "x"}, UsageError, "TEXT"),
        ({"texts": "A dog.", "neighbours": ["A cat."]}, UsageError, "word"),
        ({"texts": "A dog.", "word": "cat"}, UsageError, "cat"),
        ({"texts": "A dog.", "text_b": "A", "question": "B"}, UsageError, "question"),
    ],
)
def test_misuse_is_explained(
    encoder: firth.Model, arguments: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        firth.inspect(encoder, **arguments)


def test_an_unwritable_page_is_a_storage_error(encoder: firth.Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="page"):
        firth.inspect(encoder, "A dog.", show="tokens", out=tmp_path / "file" / "page.html")


def test_a_model_without_attention(encoder: firth.Model) -> None:
    bigram = Bigram(encoder.config)
    with pytest.raises(MismatchError, match="Transformer"):
        firth.inspect(firth.Model(bigram, encoder.tokenizer), "A dog.")


def test_the_command(firth_here: Callable[..., Result], tmp_path: Path) -> None:
    done = firth_here("inspect", "stories-encoder", BLANK, "--show", "attention", "--out", "a.html")
    assert done.returncode == 0, done.stderr
    assert "a.html" in done.stdout
    assert (tmp_path / "a.html").stat().st_size > 20_000
    done = firth_here("inspect", "stories-encoder", BLANK, "--show", "attention", "--json")
    assert done.json["texts"][0]["attention"]["parts"][0]["part"] == "encoder"
    assert "previous token" in firth_here("inspect", "stories-encoder", BLANK).stdout
    assert firth_here("inspect", "stories-encoder", "A dog.", "--layers", "x").returncode == 2


def test_in_a_browser(encoder: firth.Model, tmp_path: Path, open_page: Callable[..., Page]) -> None:
    """`open_page` fails on a network request, an error or a violation of the page's policy."""
    page_file = tmp_path / "page.html"
    firth.inspect(encoder, EVIL, show="attention,lens", out=page_file)
    page = open_page(page_file)
    page.click("[aria-label^='Layer 5, head 2']")
    assert "Layer 5, head 2" in page.inner_text("[role=status]")
    page.hover("[role=option] >> nth=1")
    assert "→" in page.inner_text("[role=status]")
    tokens = page.locator("[role=option]").all_inner_texts()
    assert len(tokens) == len(encoder.tokens(EVIL))
