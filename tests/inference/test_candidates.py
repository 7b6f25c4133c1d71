"""Scores of candidate answers against `transformers`, one answer and one token at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from firth import Model, train_tokenizer
from firth.inference.generation.text_generation import TextGenerator
from firth.inference.prompting import prompt_scorer
from firth.inference.prompting.candidates import CONTENT_FREE, PromptedModel
from firth.inference.prompting.prompt_scorer import (
    PromptQuestion,
    generate_answers,
    render_prompt,
    score_answers,
)
from firth.inference.prompting.templates import make_prompt_format
from firth.inference.scoring import token_scoring
from firth.models.masks import Mask
from tests.conftest import SAMPLE
from tests.inference.conftest import SAMPLE_FILE, MakeModel

WORDS = ("boat", "far away", "the sea was calm")  # of one and of several tokens
SHOTS = (({"text": "The sea was calm."}, "boat"), ({"text": "It rained."}, "far away"))
GPT = dict(name="gpt2", tokenizer="bpe", max_positions=128, bos_token_id=1, eos_token_id=2)
T5 = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=3)


def theirs(model: Model, path: Path, kind: str) -> tuple[Any, Any]:
    """Load the network and tokenizer with `transformers`."""
    model.save(path)
    network = getattr(transformers, kind).from_pretrained(path).eval()
    return network, transformers.AutoTokenizer.from_pretrained(path)


def prompted(model: Model, *, cloze: bool = False) -> PromptedModel:
    assert model.tokenizer is not None
    return PromptedModel(model.network, model.tokenizer, cloze=cloze)


def questions(texts: Sequence[str], shots: int = 2) -> list[PromptQuestion]:
    return [PromptQuestion({"text": text}, SHOTS[:shots], WORDS) for text in texts]


@torch.no_grad()
def log_probability(logits: torch.Tensor, id: int) -> float:
    return float(logits.double().log_softmax(-1)[id])


def test_decoder_answers(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(**GPT)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForCausalLM")
    format = make_prompt_format("classify", r"Text: {text}\nLabel: {label}.")
    texts = ["The boat was far.", "calm", "Ünïcode!"]
    for text, prediction in zip(
        texts, score_answers(prompted(model), format, questions(texts)), strict=True
    ):
        before = (
            "Text: The sea was calm.\nLabel: boat.\n\nText: It rained.\nLabel: far away.\n\n"
            f"Text: {text}\nLabel:"
        )
        assert prediction.prompt.before == before + " "
        for word, total in zip(WORDS, prediction.log_likelihoods, strict=True):
            ids = [1, *tokenizer(before, add_special_tokens=False).input_ids]
            hand = 0.0
            for id in tokenizer(f" {word}", add_special_tokens=False).input_ids:
                hand += log_probability(reference(torch.tensor([ids])).logits[0, -1], id)
                ids.append(id)
            assert total == pytest.approx(hand, abs=1e-4)


def test_masked_model_answers(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bert-tiny", max_positions=128)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForMaskedLM")
    format = make_prompt_format("classify", cloze=True)
    texts = ["The boat was far.", "calm"]
    found = score_answers(
        prompted(model, cloze=True), format, questions(texts, shots=1), by_mean=True
    )
    for text, prediction in zip(texts, found, strict=True):
        means = []
        for word in WORDS:
            ids = tokenizer(word, add_special_tokens=False).input_ids
            blanks = " ".join(["[MASK]"] * len(ids))
            read = tokenizer(f"The sea was calm. It was boat.\n{text} It was {blanks}.")
            logits = reference(**{k: torch.tensor([v]) for k, v in read.items()}).logits[0]
            places = [i for i, id in enumerate(read.input_ids) if id == tokenizer.mask_token_id]
            pairs = zip(places, ids, strict=True)
            means.append(np.mean([log_probability(logits[place], id) for place, id in pairs]))
        shares = np.exp(means) / np.exp(means).sum()
        assert np.exp(prediction.log_probs) == pytest.approx(shares, abs=1e-5)


def target_log_likelihood(
    reference: Any, source: list[int], written: list[int], target: list[int]
) -> float:
    """Score a target after `written`, one token at a time, with an encoder-decoder."""
    total, written = 0.0, list(written)
    for id in target:
        given = dict(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written]))
        total += log_probability(reference(**given).logits[0, -1], id)
        written.append(id)
    return total


BART = dict(decoder_start_token_id=3, eos_token_id=3, bos_token_id=2, pad_token_id=0)


@pytest.mark.parametrize(
    ("name", "ids", "begin", "written"),
    [("t5-small", T5, [], [3]), ("bart-base", BART, [2], [3, 2])],  # BART's texts begin with 2
)
def test_encoder_decoder_answers(
    name: str,
    ids: dict[str, int],
    begin: list[int],
    written: list[int],
    make_model: MakeModel,
    tmp_path: Path,
) -> None:
    model = make_model(name, **ids)
    reference, _ = theirs(model, tmp_path, "AutoModelForSeq2SeqLM")
    encode = model.require_tokenizer().encode
    format = make_prompt_format("classify", "{text} => {label}")
    prediction = next(score_answers(prompted(model), format, questions(["The boat."])))
    source = [*begin, *encode(prediction.prompt.before.rstrip()), ids["eos_token_id"]]
    for word, total in zip(WORDS, prediction.log_likelihoods, strict=True):
        expected = target_log_likelihood(reference, source, written, encode(word))
        assert total == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_hybrid_decoder_predicts_at_the_position_before(
    make_model: MakeModel,
) -> None:
    model = make_model("gpt2", max_positions=64, bos_token_id=2, eos_token_id=3)
    assert model.tokenizer is not None
    format = make_prompt_format("classify", "{text} It was [MASK] today.")
    prediction = next(
        score_answers(prompted(model, cloze=True), format, questions(["The boat."], shots=0))
    )
    for word, total in zip(WORDS, prediction.log_likelihoods, strict=True):
        left, right = (model.tokenizer.encode(text) for text in ("The boat. It was", "today."))
        ids = model.tokenizer.encode(word)
        blanks = [model.tokenizer.special_ids["mask"]] * len(ids)
        row = torch.tensor([2, *left, *blanks, *right, 3])
        logits = model.network.logits(model.network(row, Mask([len(row)])))  # bidirectional
        hand = sum(log_probability(logits[len(left) + i], id) for i, id in enumerate(ids))
        assert total == pytest.approx(hand, abs=1e-4)


@pytest.fixture(scope="module")
def filler() -> Any:
    """Train a tokenizer with T5's sentinels."""
    options: dict[str, Any] = dict(vocab_size=300, specials="t5", sentinels=4, workers=1)
    return train_tokenizer([SAMPLE_FILE], kind="unigram", **options)[0]


def test_t5_blank_is_a_sentinel(make_model: MakeModel, tmp_path: Path, filler: Any) -> None:
    model = make_model("t5-small", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    model.tokenizer = filler
    reference, _ = theirs(model, tmp_path, "T5ForConditionalGeneration")
    format = make_prompt_format("classify", "{text} It was [MASK] today.")
    prediction = next(score_answers(prompted(model), format, questions(["The boat."], shots=0)))
    hole = filler.backend.token_to_id("<extra_id_0>")
    source = [*filler.encode("The boat. It was"), hole, *filler.encode(" today."), 1]
    for word, total in zip(WORDS, prediction.log_likelihoods, strict=True):
        expected = target_log_likelihood(reference, source, [0, hole], filler.encode(word))
        assert total == pytest.approx(expected, abs=1e-4)


def test_calibration_by_hand(make_model: MakeModel) -> None:
    """Zhao et al. 2021: probabilities are divided by their mean over content-free inputs."""
    model = make_model(**GPT)
    format = make_prompt_format("classify", "{text} => {label}")
    plain, calibrated = (
        next(score_answers(prompted(model), format, questions(["The boat."]), calibrate=yes))
        for yes in (False, True)
    )
    free = score_answers(prompted(model), format, questions(CONTENT_FREE))
    usual = np.mean([np.exp(prediction.log_probs) for prediction in free], axis=0)
    hand = np.exp(plain.log_probs) / usual
    assert np.exp(calibrated.log_probs) == pytest.approx(hand / hand.sum(), rel=1e-4)
    assert not np.allclose(calibrated.log_probs, plain.log_probs, atol=0.1)
    nothing = next(score_answers(prompted(model), format, questions(["N/A"]), calibrate=True))
    assert nothing.prompt.before.endswith("N/A => ")


@pytest.mark.parametrize("calibrate", [False, True])
def test_scores_do_not_depend_on_the_batch(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, calibrate: bool
) -> None:
    model = make_model(**GPT)
    format = make_prompt_format("classify", "{text} => {label}")
    texts = [line for line in SAMPLE.splitlines() if line.strip()][:9]
    together = list(score_answers(prompted(model), format, questions(texts), calibrate=calibrate))
    monkeypatch.setattr(prompt_scorer, "CHUNK_SIZE", 2)
    for text, prediction in zip(texts, together, strict=True):
        alone = next(score_answers(prompted(model), format, questions([text]), calibrate=calibrate))
        assert prediction.log_probs == pytest.approx(alone.log_probs, abs=1e-4)
    again = score_answers(prompted(model), format, questions(texts), calibrate=calibrate)
    for prediction, other in zip(together, again, strict=True):
        assert prediction.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_shared_prefix_is_computed_once(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same scores as without sharing."""
    texts = [" ".join(line.split()[:4]) for line in SAMPLE.splitlines() if line.strip()][:9]
    format = make_prompt_format("classify", "{text} => {label}")
    seen: list[int] = []
    for overrides in ({}, dict(position_embedding="rotary", window=4, windowed_layers=(1,))):
        model = make_model(**{**GPT, **overrides})
        model.network.tokens.register_forward_hook(lambda _, given, out: seen.append(len(out)))
        found = score_answers(prompted(model), format, questions(texts))
        once = [prediction.log_probs for prediction in found]
        read, seen[:] = sum(seen), []
        with monkeypatch.context() as patch:
            patch.setattr(token_scoring, "MIN_SHARED_PREFIX", 10**9)
            found = score_answers(prompted(model), format, questions(texts))
            whole = [prediction.log_probs for prediction in found]
        assert read < 0.8 * sum(seen)
        seen.clear()
        np.testing.assert_allclose(once, whole, atol=1e-4)


@pytest.mark.parametrize(("name", "cloze"), [("gpt2", False), ("bert-tiny", True), ("t5-small", 0)])
def test_examples_that_do_not_fit_are_dropped(
    make_model: MakeModel, name: str, cloze: bool
) -> None:
    kinds = {"gpt2": GPT, "bert-tiny": {}, "t5-small": T5}
    model = make_model(**{**kinds[name], "name": name, "max_positions": 40})
    prompted_model, format = (
        prompted(model, cloze=bool(cloze)),
        make_prompt_format("classify", "{text}: {label}"),
    )
    many = PromptQuestion({"text": "The end."}, SHOTS * 30, WORDS)
    own = render_prompt(prompted_model, format, many)
    assert 0 < own.dropped < 60
    assert own.shots == many.shots[own.dropped :]
    assert prompted_model.prompt_size(own.before, own.after, WORDS) <= 40
    one_more = format.prompt(many.shots[own.dropped - 1 :], many.values)
    assert prompted_model.prompt_size(*one_more, WORDS) > 40
    long = PromptQuestion({"text": "far " * 300}, SHOTS, WORDS)
    cut = render_prompt(prompted_model, format, long)
    assert cut.cut
    for made, word in itertools.product((own, cut), WORDS):
        row = prompted_model.make_request(made.before, made.after, word)
        assert max(len(row.tokens), len(row.source)) <= 40
    assert all(
        np.isfinite(prediction.log_probs).all()
        for prediction in score_answers(prompted_model, format, [many, long])
    )


def test_generated_answers_equal_transformers(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(**GPT)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForCausalLM")
    format = make_prompt_format("seq2seq", "{source} => {target}")
    shots = (({"source": "boat"}, "sea"),)
    asked = [PromptQuestion({"source": text}, shots) for text in ("far", "the calm sea", "The")]
    written = list(generate_answers(prompted(model), format, asked, max_new_tokens=6))
    for question, prediction in zip(asked, written, strict=True):
        text = f"boat => sea\n{question.values['source']} =>"
        read = torch.tensor([[1, *tokenizer(text, add_special_tokens=False).input_ids]])
        made = reference.generate(read, max_new_tokens=6, do_sample=False)[0]
        text = tokenizer.decode(made[read.shape[1] :])
        assert prediction.text == text.split("\n")[0].strip()


@pytest.mark.parametrize(
    "overrides",
    [
        GPT,
        GPT | {"bos_token_id": None},
        {"name": "t5-small", **T5},
        {"name": "bart-base", "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    ],
)
def test_scoring_and_generation_use_the_same_special_tokens(
    overrides: dict[str, Any], make_model: MakeModel
) -> None:
    model = make_model(**overrides)
    assert model.tokenizer is not None
    own = PromptedModel(model.network, model.tokenizer)
    generator = TextGenerator(network=model.network, tokenizer=model.tokenizer)
    row = own.make_request("The sea", "", "boat")
    read = row.source or row.tokens[: len(row.tokens) - len(row.targets) + 1]
    assert generator.encode_prompt("The sea").ids == read
