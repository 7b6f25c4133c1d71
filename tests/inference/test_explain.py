"""The worked example on one's own sentence: every value is that of the model's forward pass."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from firth import Model, UsageError, load
from firth.inference.forward_pass import ForwardPass, PositionPrediction
from tests.inference.conftest import MakeModel

Verb = Any
TEXT = "The [MASK] was calm."
T5 = dict(num_decoder_layers=2, eos_token_id=3, decoder_start_token_id=0, pad_token_id=0)


def check_softmax(prediction: PositionPrediction, logits: Tensor) -> None:
    """Compare with softmax and -log by hand."""
    assert_close(prediction.logits.float(), logits, atol=1e-4, rtol=1e-4)
    exps = [math.exp(logit) for logit in logits.tolist()]
    tokens = [*prediction.candidates, *filter(None, [prediction.target])]
    for one in tokens:
        probability = exps[one.id] / sum(exps)
        assert one.logit == pytest.approx(float(logits[one.id]), abs=1e-4)
        assert one.probability == pytest.approx(probability, rel=1e-3)
        assert one.loss == pytest.approx(-math.log(probability), abs=1e-3)
    best = [one.probability for one in prediction.candidates]
    assert best == sorted(best, reverse=True)
    assert best[0] == pytest.approx(max(exps) / sum(exps), rel=1e-3)


def test_an_encoder(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    found = model.explain(TEXT, answer="sea", top=4)
    [stack] = found.stacks
    assert list(stack.tokens) == model.tokens(TEXT)
    assert stack.tokens[stack.position] == "[MASK]"
    assert (stack.name, stack.attention) == ("encoder", "bidirectional")
    assert stack.token_embeddings.equal(model.network.tokens.weight[list(stack.ids)])
    assert_close(stack.hidden_states, model.hidden_states(TEXT))
    [prediction] = found.predictions
    assert prediction.position == stack.position
    check_softmax(prediction, model.logits(TEXT)[stack.position])
    filled = model.fill(TEXT, top=4)[0]
    for one, other in zip(prediction.candidates, filled, strict=True):
        assert one.probability == pytest.approx(other.score, rel=1e-3)
    [right] = model.fill(TEXT, targets=["sea"])[0]
    assert found.loss == pytest.approx(-math.log(right.score), abs=1e-3)
    assert model.explain(TEXT).loss is None


def test_several_blanks_and_words_of_several_tokens(make_model: MakeModel) -> None:
    """The loss is the mean of -log P over all masked tokens."""
    model = make_model("bert-tiny")
    assert model.tokenizer is not None
    tokens = model.tokenizer.encode("unhurried")
    assert len(tokens) > 1
    found = model.explain("The ___ was ___.", answer=["sea", "unhurried"])
    assert [one.target.id for one in found.predictions if one.target is not None][1:] == tokens
    text = "The [MASK] was " + "[MASK]" * len(tokens) + "."
    log_probs = model.logits(text).log_softmax(-1)
    masks = [i for i, token in enumerate(model.tokens(text)) if token == "[MASK]"]
    ids = [*model.tokenizer.encode("sea"), *tokens]
    by_hand = [-float(log_probs[at, id]) for at, id in zip(masks, ids, strict=True)]
    assert found.loss == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-3)
    with pytest.raises(UsageError, match=r"2 blanks.*1 answer"):
        model.explain("The ___ was ___.", answer="sea")
    with pytest.raises(UsageError, match=r"answer.*int"):
        model.explain(TEXT, answer=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'日'.*vocabulary"):
        model.explain(TEXT, answer="日")


def test_a_decoder(decoder: Model) -> None:
    text = "The sea was"
    found = decoder.explain(text, answer="calm and blue")
    [stack] = found.stacks
    assert stack.attention == "causal"
    assert stack.position == len(decoder.tokens(text)) - 1  # where the next token is predicted
    whole = f"{text} calm and blue"
    score = decoder.score(" calm and blue", text)
    ends = len(stack.ids)  # the last token of the answer is predicted, but not read
    assert_close(stack.hidden_states, decoder.hidden_states(whole)[:, :ends])
    logits = decoder.logits(whole)
    for one in found.predictions:
        check_softmax(one, logits[one.position])
    losses = [one.target.loss for one in found.predictions if one.target is not None]
    assert losses == pytest.approx([-value for value in score.log_probs], abs=1e-3)
    assert found.loss == pytest.approx(-score.mean, abs=1e-3)
    assert len(decoder.explain(text).predictions) == 1


def test_a_decoder_that_fills_blanks(make_model: MakeModel) -> None:
    model = replace(make_model("gpt2"), objective="hybrid")
    [prediction] = model.explain(TEXT, top=3).predictions
    scores = [one.score for one in model.fill(TEXT, top=3)[0]]
    assert [one.probability for one in prediction.candidates] == pytest.approx(scores, rel=1e-3)


@pytest.fixture
def t5(make_model: MakeModel) -> Model:
    """A small T5 whose tokenizer has sentinels."""
    model = make_model("t5-small", vocab_size=404, **T5)
    assert model.tokenizer is not None
    tokenizer = type(model.tokenizer)(
        type(model.tokenizer.backend).from_str(model.tokenizer.to_json()), model.tokenizer.config
    )
    tokenizer.backend.add_special_tokens([f"<extra_id_{i}>" for i in range(4)])
    return replace(model, tokenizer=tokenizer)


def check_encoder_decoder(model: Model, found: ForwardPass) -> None:
    encoder, decoder = found.stacks
    assert (encoder.attention, decoder.attention) == ("bidirectional", "causal")
    assert len(encoder.hidden_states) == len(decoder.hidden_states) == 3
    rows = model.forward(
        torch.tensor([encoder.ids]), decoder_input_ids=torch.tensor([decoder.ids])
    )[0].detach()
    for one in found.predictions:
        check_softmax(one, rows[one.position])


def test_an_encoder_decoder(t5: Model) -> None:
    text = "The ___ was ___."
    found = t5.explain(text, answer=["sea", "calm"])
    check_encoder_decoder(t5, found)
    encoder, decoder = found.stacks
    assert encoder.tokens[encoder.position] == "<extra_id_0>"
    targets = [one.target.token for one in found.predictions if one.target is not None]
    assert targets[0] == "<extra_id_0>"
    assert targets[-1] == "<extra_id_2>"
    assert list(decoder.tokens[1:]) == targets[:-1]  # teacher forcing
    check_encoder_decoder(t5, t5.explain(text))
    prompted = t5.explain("The sea", answer="was calm")
    check_encoder_decoder(t5, prompted)
    assert prompted.loss == pytest.approx(-t5.score("was calm", "The sea").mean, abs=1e-3)
    [first] = t5.explain("The sea").predictions
    assert first.target is None


# --- the command line


def check_same(values: dict[str, Any], python: dict[str, Any]) -> None:
    """Compare the JSON of the command line with the values in Python."""
    [stack], [other] = values["stacks"], python["stacks"]
    assert (stack["tokens"], stack["ids"]) == (list(other["tokens"]), list(other["ids"]))
    assert [one["shape"] for one in stack["layers"]] == [one["shape"] for one in other["layers"]]
    assert stack["layers"][-1]["norms"] == pytest.approx(other["layers"][-1]["norms"], rel=1e-3)
    assert values["loss"] == pytest.approx(python["loss"], rel=1e-3)
    assert values.keys() == python.keys()


def test_fill_explain(verb: Verb, bert: Path, make_model: MakeModel) -> None:
    options = ("--explain", "--answer", "sea", "--top", 3)
    values = json.loads(verb("fill", bert, TEXT, *options, "--json").stdout)
    python = make_model("bert-tiny").explain(TEXT, answer="sea", top=3).values()
    check_same(values["explanation"], python)
    assert [one["token"] for one in values["predictions"]]
    [stack] = python["stacks"]
    assert stack["layers"][1]["shape"] == [len(stack["ids"]), 32]
    shown = verb("fill", bert, TEXT, *options).stdout
    facts = ["[MASK]", f"({len(stack['ids'])}, 32)", "exp(", "-log", f"{python['loss']:.4f}"]
    assert [fact for fact in facts if fact not in shown] == []
    assert str(stack["ids"][1]) in shown


def test_generate_explain(verb: Verb, gpt: Path, decoder: Model) -> None:
    prompt = "The sea " * 12 + "was"
    options = ("--explain", "--answer", "calm", "--max-new-tokens", 3)
    values = json.loads(verb("generate", gpt, prompt, *options, "--json").stdout)
    python = decoder.explain(prompt, answer="calm").values()
    check_same(values["explanation"], python)
    steps = values["completions"][0]["steps"]
    assert [step["loss"] for step in steps] == pytest.approx(
        [-math.log(step["probability"]) for step in steps], abs=1e-3
    )
    first = python["predictions"][0]["candidates"][0]
    assert steps[0]["id"] == first["id"]  # greedy
    assert steps[0]["probability"] == pytest.approx(first["probability"], rel=1e-3)
    shown = verb("generate", gpt, prompt, *options).stdout
    assert "…" in shown  # a long prompt is shown in part
    assert f"{steps[1]['loss']:.3f}" in shown


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("fill", "bert", TEXT, "--answer", "sea"), ["--answer", "--explain"]),
        (("fill", "bert", TEXT, "--explain", "--answer", ","), ["--answer"]),
        (("fill", "bert", TEXT, "--explain", "--targets", "a,b"), ["--explain", "--targets"]),
        (("fill", "bert", "--file", "a.txt", "--explain"), ["--explain", "--file"]),
        (("fill", "bert", "no blank", "--explain"), ["no blank", "[MASK]"]),
        (("generate", "gpt", "a", "--answer", "b"), ["--answer", "--explain"]),
    ],
)
def test_misuse(
    verb: Verb, bert: Path, gpt: Path, arguments: tuple[str, ...], facts: list[str]
) -> None:
    done = verb(*arguments)
    assert done.exit_code == 2
    assert [fact for fact in facts if fact not in done.stderr] == []


def test_a_word_after_a_quotation_mark_has_no_space() -> None:
    model = load("stories-encoder")
    text = '"[MASK] is the dog?" asked Tom.'
    [prediction] = model.explain(text, answer="Where").predictions
    assert prediction.target is not None
    assert prediction.target.probability > 0.1
    [[best]] = model.fill(text, targets=["Where"])
    assert best.score == pytest.approx(prediction.target.probability, rel=1e-4)
    with pytest.raises(UsageError, match="top"):
        load("stories-decoder").explain("The", top=0)
