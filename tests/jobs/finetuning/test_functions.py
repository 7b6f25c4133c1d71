"""Every verb is a function that takes a model, or its path, and texts in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import firth
from firth.cli.app import VERBS
from firth.utils.errors import FirthError, InputError, UsageError

TEXTS = ["a red dog", "a green cat"]
# Verbs whose name is that of a package, or of a group of verbs.
OTHER_NAMES = {
    "demo": "run_demo",
    "serve": "run_server",
    "stories": "write_stories",
    "study": "run_study",
    "tokenizer": "train_tokenizer",
    "objectives": "show_objectives",
    "presets": "list_presets",
    "tasks": "list_tasks",
}


def test_every_verb_is_a_function() -> None:
    assert {OTHER_NAMES.get(verb, verb) for verb in VERBS.split()} <= set(firth.__all__)


@pytest.fixture(scope="module")
def encoder(models: dict[str, Path]) -> firth.Model:
    return firth.load(models["encoder"])


@pytest.fixture(scope="module")
def decoder(models: dict[str, Path]) -> firth.Model:
    return firth.load(models["decoder"])


FORMS: list[Callable[[list[str]], Any]] = [
    list,
    iter,
    lambda texts: pytest.importorskip("pandas").Series(texts),
    pa.array,
    lambda texts: pytest.importorskip("pandas").DataFrame({"text": texts}),
    lambda texts: [{"text": text} for text in texts],
]


@pytest.mark.parametrize("form", FORMS)
def test_texts_in_memory(
    form: Callable[[list[str]], Any], encoder: firth.Model, decoder: firth.Model
) -> None:
    vectors = encoder.embed(TEXTS)
    np.testing.assert_array_equal(firth.embed(encoder, form(TEXTS)), vectors)
    blanks = ["a [MASK] dog", "a [MASK] cat"]
    filled = [result.blanks for result in encoder.fill_texts(blanks, top=2)]
    assert firth.fill(encoder, form(blanks), top=2) == filled
    assert firth.score(decoder, form(TEXTS)) == decoder.score(TEXTS)
    found = firth.generate(decoder, form(TEXTS), max_new_tokens=2)
    assert found == decoder.generate(TEXTS, max_new_tokens=2)
    hits = encoder.search(TEXTS, "red", top=1)
    assert firth.search(encoder, form(TEXTS), "red", top=1) == hits


def test_a_string_is_one_text(encoder: firth.Model, decoder: firth.Model) -> None:
    assert firth.embed(encoder, TEXTS[0]).shape == (1, encoder.config.hidden_size)
    assert firth.fill(encoder, "a [MASK] dog") == encoder.fill("a [MASK] dog")
    assert firth.score(decoder, TEXTS[0]) == decoder.score(TEXTS[0])
    text = decoder.generate(TEXTS[0], max_new_tokens=2)
    assert firth.generate(decoder, TEXTS[0], max_new_tokens=2, stop="\n") == text
    (blank,) = firth.fill(encoder, "a [MASK] dog", targets="red")
    assert [candidate.token for candidate in blank] == ["red"]


def test_files(models: dict[str, Path], encoder: firth.Model, tmp_path: Path) -> None:
    """Embeddings read a file that a string names; other functions take a `Path`."""
    file, vectors = tmp_path / "texts.txt", encoder.embed(TEXTS)
    file.write_text("\n".join(TEXTS))
    for named in (file, str(file)):
        np.testing.assert_array_equal(firth.embed(models["encoder"], named), vectors)
        assert firth.search(encoder, named, "red", top=1) == encoder.search(TEXTS, "red", top=1)
    assert firth.score(encoder, file) == firth.score(encoder, TEXTS)
    for given in (TEXTS, file):
        written = firth.embed(encoder, given, out=tmp_path / "vectors.npy", overwrite=True)
        assert written.rows == 2
        np.testing.assert_array_equal(np.load(written.out), vectors)
    with pytest.raises(FirthError, match=r"nosuch\.txt"):
        firth.embed(encoder, "nosuch.txt")


def test_dtypes_and_devices(models: dict[str, Path]) -> None:
    path = models["encoder"]
    for dtype in ("bfloat16", torch.bfloat16):
        assert firth.load(path, dtype=dtype).network.dtype == torch.bfloat16
        assert firth.embed(path, TEXTS, dtype=dtype).dtype == np.float32
    assert firth.load(path, device=torch.device("cpu")).network.device.type == "cpu"
    wrong: list[dict[str, Any]] = [
        *({"dtype": dtype} for dtype in ("bf17", torch.int8, 5)),
        *({"device": device} for device in ("gpu", "cuda:99", 3.5, torch.device("meta"))),
    ]
    for options in wrong:
        for call in (firth.load, partial(firth.score, texts="a")):
            with pytest.raises(UsageError) as caught:
                call(path, **options)
            assert str(*options.values()) in str(caught.value)


def test_bad_rows_have_no_result(
    encoder: firth.Model, decoder: firth.Model, caplog: pytest.LogCaptureFixture
) -> None:
    """None in a list and NaN in vectors at their place, with a note; with `strict`, an error."""
    for wrong in (None, "", "\u200b ", 5):
        texts = [*TEXTS, wrong]
        vectors = firth.embed(encoder, texts)
        np.testing.assert_allclose(vectors[:2], encoder.embed(TEXTS), atol=1e-5)
        assert np.isnan(vectors[2]).all()
        assert "`texts` row 3" in caplog.text
        assert "1 row was bad" in caplog.text
        caplog.clear()
        assert firth.score(decoder, texts) == [*decoder.score(TEXTS), None]
        sampled: dict[str, Any] = {"max_new_tokens": 2, "temperature": 1.0}
        good = decoder.generate(["", *TEXTS], **sampled)[1:]  # numbered like the rows
        assert firth.generate(decoder, [wrong, *TEXTS], **sampled) == [None, *good]
        assert {hit.text for hit in firth.search(encoder, texts, "red")} == set(TEXTS)
        for function in (firth.embed, firth.score, firth.generate, firth.fill):
            with pytest.raises(InputError, match="row 1"):
                function(decoder if function != firth.fill else encoder, [wrong, "a"], strict=True)
    filled = firth.fill(encoder, ["no blank", "a [MASK] dog"])
    assert filled == [None, encoder.fill("a [MASK] dog")]
    with pytest.raises(InputError, match="No documents are left of `paths`"):
        firth.train_tokenizer([None, 5], kind="bpe", vocab_size=260)
    table = pytest.importorskip("pandas").DataFrame({"text": [TEXTS[0], None]})
    assert np.isnan(firth.embed(encoder, table)).any(axis=1).tolist() == [False, True]


def test_one_context_for_all_texts(decoder: firth.Model) -> None:
    expected = decoder.score(TEXTS, ["Once", "Once"])
    assert firth.score(decoder, TEXTS, "Once") == expected
    assert decoder.score(TEXTS, "Once") == expected
    with pytest.raises(UsageError, match="2 texts, but 1 context"):
        firth.score(decoder, TEXTS, ["Once"])


def test_what_names_a_text_or_a_file(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A `Path` is a file; an array without dimensions is no list of texts."""
    model, file = firth.load(run_of("classify")), tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS))
    assert firth.predict(model, file).answers == firth.predict(model, TEXTS).answers
    assert firth.predict(model, []).answers == []
    lone = [f"{TEXTS[0]} \ud800", *TEXTS[1:]]
    assert firth.predict(model, lone).answers[1:] == firth.predict(model, TEXTS).answers[1:]
    for function in (firth.predict, firth.embed):
        with pytest.raises(UsageError, match=r"`texts` .*array\('a text'"):
            function(model, np.array("a text"))


def test_pairs_of_texts(run_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    model, pairs = firth.load(run_of("pair")), [("red dog", "a dog"), ("red dog", "a cat")]
    answers = firth.predict(model, pairs).answers
    assert model.predict(pairs) == answers
    assert model.predict([*pairs, ("", "")]) == [*answers, None]
    one = model.predict(pairs[0])
    assert one == model.predict([{"text_a": "red dog", "text_b": "a dog"}])[0]
    assert "row 3" in caplog.text
    with pytest.raises(UsageError, match="text_a, text_b"):
        model.predict("red dog")


@pytest.mark.parametrize("texts", [None, 5, [5], [None], pa.array([1.5]), b"a"])
@pytest.mark.parametrize("name", ["embed", "fill", "generate", "score", "predict"])
def test_wrong_texts(name: str, texts: Any, decoder: firth.Model) -> None:
    with pytest.raises(FirthError) as caught:
        getattr(firth, name)(decoder, texts)
    assert "\n" not in str(caught.value)
    if name != "predict":
        with pytest.raises(FirthError):
            getattr(decoder, name)(texts)


@pytest.mark.parametrize("model", [None, 5, [], ["a", None]])
def test_wrong_models(model: Any) -> None:
    for function in (firth.embed, firth.generate, firth.fill, firth.score, firth.predict):
        with pytest.raises(FirthError):
            function(model, "a")
