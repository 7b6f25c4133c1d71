"""What a `Model` computes of a text: tokens, logits, hidden states, scores; its device and repr."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import firth
from firth import Model, load
from firth.model import load_if_needed
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.inference.conftest import MakeModel

TEXT = "The sea was calm."
ARCHITECTURES = {"bert-tiny": "wordpiece", "gpt2": "bpe", "t5-small": "wordpiece"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_logits_and_hidden_states(make_model: MakeModel, name: str) -> None:
    model = make_model(name, ARCHITECTURES[name])
    tokens, logits, hidden = model.tokens(TEXT), model.logits(TEXT), model.hidden_states(TEXT)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(TEXT, specials=True)
    assert tokens == [model.tokenizer.backend.id_to_token(id) for id in ids]
    assert logits.shape == (len(tokens), model.config.vocab_size)
    assert hidden.shape == (model.config.num_layers + 1, len(tokens), model.config.hidden_size)
    assert not logits.requires_grad
    assert not hidden.requires_grad
    if model.config.architecture != "encoder-decoder":
        torch.testing.assert_close(model.network.logits(hidden[-1]), logits)


def test_several_texts_give_a_list(make_model: MakeModel) -> None:
    model, texts = make_model("bert-tiny"), [TEXT, "A boat sailed."]
    for method in (model.logits, model.hidden_states):
        for found, text in zip(method(texts), texts, strict=True):
            torch.testing.assert_close(found, method(text))
    blanks = ["The [MASK] was calm.", "A [MASK]."]
    for found, text in zip(model.fill(blanks, top=2), blanks, strict=True):
        assert [one.token for one in found[0]] == [one.token for one in model.fill(text, top=2)[0]]


def test_a_decoders_score_is_that_of_its_logits(make_model: MakeModel) -> None:
    model = make_model("gpt2", "bpe", bos_token_id=None, eos_token_id=0)
    score, tokens = model.score(TEXT), model.tokens(TEXT)
    ids = torch.tensor(model.require_tokenizer().encode(TEXT))
    wanted = model.logits(TEXT).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    assert list(score.tokens) == tokens[1:]  # there is nothing before the first
    torch.testing.assert_close(torch.tensor(score.log_probs), wanted, rtol=1e-5, atol=1e-5)
    assert score.total == pytest.approx(float(wanted.sum()), rel=1e-5)
    assert score.method == "log-likelihood"
    first, second = model.score([TEXT, "A boat"])
    assert first.log_probs == pytest.approx(score.log_probs, rel=1e-5)
    assert second.text == "A boat"
    assert model.score([]) == []


def test_an_encoders_score_masks_each_token(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    score, tokens = model.score(TEXT), model.tokens(TEXT)
    assert list(score.tokens) == tokens[1:-1]
    assert score.method == "pseudo-log-likelihood"
    tokenizer = model.require_tokenizer()
    ids = torch.tensor([tokenizer.encode(TEXT, specials=True)])
    masked = ids.clone()
    masked[0, 2] = tokenizer.special_ids["mask"]
    with torch.no_grad():
        wanted = model.forward(masked)[0, 2].log_softmax(-1)[ids[0, 2]]
    assert score.log_probs[1] == pytest.approx(float(wanted), rel=1e-5)
    with pytest.raises(MismatchError, match="omit the context"):
        model.score(TEXT, "Before it.")


def test_the_score_of_a_text_after_a_context(make_model: MakeModel) -> None:
    model = make_model("gpt2", "bpe", bos_token_id=None, eos_token_id=0)
    whole, part = model.score("The sea was calm."), model.score(" calm.", "The sea was")
    assert part.log_probs == pytest.approx(whole.log_probs[-len(part.tokens) :], rel=1e-4)
    both = make_model("t5-small", decoder_start_token_id=0)
    score = both.score("calm", "The sea")
    ids = both.require_tokenizer().encode("calm")
    assert len(score.log_probs) == len(ids) == len(score.tokens)
    assert score.log_probs != both.score("calm", "A boat").log_probs
    with pytest.raises(MismatchError, match="target given a source"):
        both.score("calm")
    with pytest.raises(UsageError, match="2 texts, but 1 context"):
        model.score(["a", "b"], ["c"])


def test_a_long_text_is_refused(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    for compute in (model.logits, model.hidden_states, model.score):
        with pytest.raises(MismatchError, match="context is 64"):
            compute("sea " * 100)


def test_moving_and_converting(bert: Path) -> None:
    model = load(bert)
    assert model.to("cpu") is model
    assert model.to(torch.bfloat16).network.dtype == torch.bfloat16
    assert model.to("cpu", torch.float32).network.dtype == torch.float32
    half = model.to(torch.device("cpu"), dtype=torch.bfloat16)
    assert half.logits(TEXT).dtype == torch.bfloat16
    assert model.to("float32").network.dtype == model.to(dtype="float32").network.dtype
    with pytest.raises(UsageError, match="no dtype 'int4'"):
        model.to(dtype="int4")
    with pytest.raises(UsageError, match="no device 'tpu'"):
        model.to("tpu")
    with pytest.raises(UsageError, match="no device"):
        model.to(["cuda"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="int8"):
        load(bert, weights="int8").to(torch.float16)


def test_one_line_describes_a_model(bert: Path, make_model: MakeModel) -> None:
    assert "int8 on cpu" in repr(load(bert, weights="int8"))
    shown = repr(load(bert))
    assert shown.startswith(f"Model({bert}, encoder")
    for fact in (f"{make_model('bert-tiny').num_parameters:,} parameters", "float32 on cpu"):
        assert fact in shown
    assert "\n" not in shown
    assert len(shown) < 100 + len(str(bert))
    odd = Model(make_model("bert-tiny").network, None, source="<b>model</b>")
    assert "<b>" not in odd._repr_html_()
    assert "&lt;b&gt;model" in odd._repr_html_()


def test_what_is_not_a_text(make_model: MakeModel) -> None:
    model, wrong = make_model("bert-tiny"), [None, 3, 2.5, b"sea"]
    for value in wrong:
        for single in (model.tokens, model.logits, model.hidden_states, model.fill):
            with pytest.raises(UsageError, match=type(value).__name__.removesuffix("Type")):
                single(value)  # type: ignore[arg-type]
        for several in (model.score, model.generate, model.predict):
            for given in (value, [TEXT, value]):
                with pytest.raises(FirthError):
                    several(given)  # type: ignore[operator]
    with pytest.raises(UsageError, match="input_ids"):
        model.forward(None)  # type: ignore[arg-type]
    assert model.tokens("sea \ud800") == model.tokens("sea \ufffd")
    for text in (None, 3, "sea \ud800"):
        with pytest.raises(InputError, match="text"):
            model.require_tokenizer().encode(text)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="None"):
        make_model("gpt2").stream(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`top`"):
        model.fill("the [MASK]", top="a")  # type: ignore[arg-type]


def test_the_device_of_a_loaded_model(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("gpt2")
    for verb in (firth.generate, firth.score, firth.embed):
        with pytest.raises(UsageError, match="no device 'nosuch'"):
            verb(model, TEXT, device="nosuch")
    assert load_if_needed(model, "cpu") is load_if_needed(model, None) is model
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UsageError, match=r"on cpu.*model.to\('mps'\)"):
        load_if_needed(model, "mps")


def test_several_samples_need_completions(decoder: Model) -> None:
    for method in (decoder.generate, decoder.chat):
        with pytest.raises(UsageError, match="completions"):
            method("Once", n=2, method="sample")
