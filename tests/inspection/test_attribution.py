"""Attributions: sums, leave-one-out against ordinary predictions, and what is left unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
import torch

from firth.inspection.attribution import Attribution, attribute, explains, methods_for
from firth.inspection.integrated_gradients import integrated_gradients
from firth.model import Model, load
from firth.tasks.registry import TASKS
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import attach_head
from firth.tokenizers.special_tokens import with_special_tokens
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from firth.utils.figures import BarChart, KeyNumbers, Paragraph, WeightedText

TEXT = "The dog barked at the playful cat."
PAIR = ("Who barked?", "In Rome a dog barked at Zoe.")
METADATA = {
    "classify": TaskMetadata(task="classify", labels=("bad", "fair", "good"), max_length=64),
    "pair": TaskMetadata(task="pair", labels=("no", "yes"), max_length=64),
    "many": TaskMetadata(task="classify", labels=("a", "b"), label_type="many", max_length=64),
    "regress": TaskMetadata(task="regress", labels=("score",), label_type="number", max_length=64),
    "tag": TaskMetadata(task="tag", labels=("O", "B-X"), max_length=64, options={"entities": True}),
    "span": TaskMetadata(
        task="span", max_length=64, options={"unanswered": False, "threshold": 0.0}
    ),
}


@pytest.fixture(scope="module")
def make_model() -> Callable[..., Model]:
    """Make the embedded encoder with a new head."""

    def make(name: str, layer: str | None = None) -> Model:
        model, metadata = load("stories-encoder"), METADATA[name]
        attach_head(model.network, TASKS[metadata.task].head, metadata, {}, 1, layer)
        with torch.no_grad():
            for parameter in model.network.heads[model.config.label_head].parameters():
                parameter.mul_(3)  # outputs that are far from uniform
        model.network.eval()
        return replace(model, task=metadata)

    return make


def log_odds(prob: float) -> float:
    return log(prob / (1 - prob))


def test_a_square_by_hand_and_a_jump_that_is_no_integral() -> None:
    inputs, baseline = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.5, 0.0], [0, 1.0]])
    num_gradients = 0

    def square(x: torch.Tensor) -> torch.Tensor:
        nonlocal num_gradients
        num_gradients += len(x) if x.requires_grad else 0
        return (x**2).sum((1, 2))

    found = integrated_gradients(square, inputs, baseline)
    assert found.steps == num_gradients
    np.testing.assert_allclose(found.scores, (inputs**2 - baseline**2).sum(1), atol=1e-5)
    jump = integrated_gradients(
        lambda x: (x[:, 0, 0] > 0.7).float() + 0 * x.sum((1, 2)), inputs, baseline, max_steps=64
    )
    assert jump.difference == 1.0
    assert jump.scores.tolist() == [0.0, 0.0]
    assert 40 <= jump.steps <= 64


@pytest.mark.parametrize("name", METADATA)
def test_scores_of_every_task_add_up(name: str, make_model: Callable[[str], Model]) -> None:
    model = make_model(name)
    text: Any = PAIR if name in ("pair", "span") else TEXT
    found = attribute(model, text)
    difference = found.output - (found.baseline_output or 0.0)
    assert abs(difference) > 0.01
    assert abs(sum(found.scores) - difference) <= 0.01 * abs(difference)
    assert abs(sum(found.word_scores) - sum(found.scores)) < 1e-6
    assert found.converged
    special = {"<s>", "</s>"}
    pairs = list(zip(found.tokens, found.scores, strict=True))
    assert [token for token, score in pairs if score == 0.0] == [
        t for t in found.tokens if t in special
    ]


@pytest.mark.parametrize(
    ("target", "layer"), [(None, None), ("bad", None), (None, "2"), (None, "mix")]
)
def test_leaving_out_a_word_of_a_classifier_is_predicting_without_it(
    target: str | None, layer: str | None, make_model: Callable[..., Model]
) -> None:
    model = make_model("classify", layer)
    found = attribute(model, TEXT, target=target, method="leave-one-out")
    label = target or model.predict(TEXT)["label"]
    assert label in found.output_name
    output = log_odds(model.predict(TEXT)["scores"][label])
    assert found.output == pytest.approx(output, abs=1e-3)
    mask = model.require_tokenizer().special_tokens["mask"]
    for word in ("dog", "barked", "cat"):
        [score] = [s for w, s in zip(found.words, found.word_scores, strict=True) if w == word]
        other = model.predict(TEXT.replace(f" {word}", mask))["scores"][label]
        assert score == pytest.approx(output - log_odds(other), abs=1e-3)


def test_leaving_out_words_of_a_blank_and_of_a_prompt() -> None:
    encoder, decoder = load("stories-encoder"), load("stories-decoder")
    text = "The dog began to <mask> at the cat."
    found = attribute(encoder, text, method="leave-one-out")
    assert found.baseline == "the token <mask>"

    def blank(text: str, nth: int) -> float:
        ids = encoder.require_tokenizer().encode(text, specials=True)
        mask = encoder.require_tokenizer().special_ids["mask"]
        at = [i for i, id in enumerate(ids) if id == mask][nth]
        probs = encoder.logits(text)[at].softmax(-1)
        return log_odds(float(probs[encoder.require_tokenizer().encode(" barked")[0]]))

    score = found.word_scores[found.words.index("dog")]
    without = blank("The<mask> began to<mask> at the cat.", 1)
    assert score == pytest.approx(blank(text.replace(" <", "<"), 0) - without, abs=1e-3)

    prompt = "The capital of Italy is"
    found = attribute(decoder, prompt, target="Rome", method="leave-one-out")
    assert found.baseline == "nothing"
    [rome] = decoder.require_tokenizer().encode(" Rome")

    def following(text: str) -> float:
        [prediction] = decoder.explain(text).predictions
        return log_odds(float(prediction.logits.softmax(-1)[rome]))

    for word in ("Italy", "is"):  # also the last, after which the network predicts
        wanted = following(prompt) - following(prompt.replace(f" {word}", ""))
        assert found.word_scores[found.words.index(word)] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("prefix_lm", [False, True])
def test_leaving_out_words_before_a_target_of_several_tokens(prefix_lm: bool) -> None:
    decoder = load("stories-decoder")
    decoder.network.config = replace(decoder.config, prefix_lm=prefix_lm)
    prompt, target = "The little dog began to", "bark at the"

    def following(text: str) -> float:
        predictions = decoder.explain(text, answer=target).predictions
        assert len(predictions) == 3
        return sum(
            log_odds(float(one.logits.softmax(-1)[one.target.id]))
            for one in predictions
            if one.target is not None
        )

    found = attribute(decoder, prompt, target=target, method="leave-one-out")
    for word in ("began", "to"):  # also the last, after which the network predicts
        wanted = following(prompt) - following(prompt.replace(f" {word}", ""))
        assert found.word_scores[found.words.index(word)] == pytest.approx(wanted, abs=1e-3)


def test_the_answer_and_the_tag_are_those_of_predict(make_model: Callable[[str], Model]) -> None:
    model = make_model("span")
    [answer] = model.predict([PAIR])
    assert answer is not None
    assert f'"{answer["answer"]}"' in attribute(model, PAIR, method="leave-one-out").output_name
    assert '"Zoe"' in attribute(model, PAIR, target="Zoe", method="leave-one-out").output_name
    model = make_model("tag")
    tags = dict(zip(*(model.predict(TEXT)[name] for name in ("words", "tags")), strict=True))
    name = attribute(model, TEXT, target="dog", method="leave-one-out").output_name
    assert tags["dog"] in name
    assert '"dog"' in name


@pytest.mark.parametrize("source", ["stories-encoder", "stories-decoder", "stories-seq2seq"])
def test_outputs_of_language_models(source: str) -> None:
    model = load(source)
    text = "The capital of Italy is" + (" ___." if model.config.has_encoder else "")
    found = attribute(model, text, target="Rome")
    assert '"Rome"' in found.output_name
    assert found.converged
    assert found.baseline_output is not None
    assert found.baseline_output < found.output
    assert len(found.tokens) == len(found.scores)
    best = attribute(model, text, method="leave-one-out")
    expected = model.explain(text, top=1).predictions
    candidates = [(one.target or one.candidates[0]).token.strip("Ġ▁") for one in expected]
    assert any(f'"{token}' in best.output_name for token in candidates)


def test_the_first_output_token_and_a_longer_output() -> None:
    model = load("stories-seq2seq")
    first = attribute(model, "The dog barked.", method="leave-one-out")
    assert "first output token" in first.output_name
    longer = attribute(model, "The dog barked.", target="The cat slept.")
    assert "The cat slept." in longer.output_name
    assert longer.converged
    decoder = load("stories-decoder")
    several = attribute(decoder, "Zoe lived", target="in a small town")
    assert several.converged
    zeros = [t for t, score in zip(several.tokens, several.scores, strict=True) if not score]
    assert "·small" in several.tokens
    assert {"·in", "·a", "·small"} <= set(zeros)  # words of the target are given


def test_the_network_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("stories-encoder")
    network = model.network.train()
    flags = [parameter.requires_grad for parameter in network.parameters()]
    with torch.no_grad():
        attribute(model, "The dog began to <mask>.")

    def fail(hidden: object) -> None:
        raise FirthError("stop")

    monkeypatch.setattr(network, "logits", fail)
    for method in ("integrated-gradients", "leave-one-out"):
        with pytest.raises(FirthError, match="stop"):
            attribute(model, "The dog began to <mask>.", method=method)
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert flags == [parameter.requires_grad for parameter in network.parameters()]


def test_half_precision_adds_up_too_and_stays() -> None:
    model = load("stories-encoder", dtype="bfloat16")
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    text = "The capital of Italy is <mask>."
    assert attribute(model, text).converged
    for name, tensor in model.network.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name]), name


def test_values_and_figures() -> None:
    found = attribute(load("stories-encoder"), "The dog began to <mask>.")
    values = json.loads(json.dumps(found.values()))
    assert values["scores"] == list(found.scores)
    assert values["sum"] == pytest.approx(values["output"] - values["baseline_output"], rel=0.01)
    kinds = [type(figure) for figure in found.figures()]
    assert kinds == [KeyNumbers, WeightedText, BarChart]
    _, text, bars = found.figures()
    assert isinstance(text, WeightedText)
    assert "log-odds" in text.caption
    pairs = list(zip(found.tokens, found.scores, strict=True))
    assert [tuple(piece) for piece in text.pieces] == pairs
    assert isinstance(bars, BarChart)
    strongest = max(found.word_scores, key=abs)
    assert bars.bars[0].value == abs(strongest)
    assert bars.bars[0].name.startswith("+" if strongest > 0 else "−")


def test_a_sum_that_does_not_add_up_is_a_warning() -> None:
    found = Attribution(
        method="integrated-gradients",
        output_name="predicted number",
        output=2.0,
        baseline="the token [MASK]",
        baseline_output=1.0,
        steps=2048,
        tokens=("a",),
        scores=(0.5,),
        words=("a",),
        word_scores=(0.5,),
        num_truncated=3,
    )
    assert not found.converged
    captions = [one.caption for one in found.figures() if isinstance(one, WeightedText)]
    assert "log-odds" not in captions[0]  # the output is a number
    warnings = [one.text for one in found.figures() if isinstance(one, Paragraph) and one.warning]
    assert any("50.0%" in text and "2048" in text for text in warnings)
    assert any("3 tokens" in text for text in warnings)


def test_errors(make_model: Callable[[str], Model]) -> None:
    encoder, classifier, span = load("stories-encoder"), make_model("classify"), make_model("span")
    bare = load("stories-encoder")
    del bare.network.heads["language"]
    rows: list[tuple[Model, Any, dict[str, str], type[FirthError], str]] = [
        (classifier, TEXT, {"target": "great"}, UsageError, "bad, fair, good"),
        (classifier, TEXT, {"method": "shap"}, UsageError, "leave-one-out"),
        (classifier, PAIR, {}, UsageError, "one text"),
        (classifier, " ", {}, InputError, "empty"),
        (make_model("pair"), TEXT, {}, UsageError, "two texts"),
        (make_model("regress"), TEXT, {"target": "great"}, UsageError, "number"),
        (make_model("tag"), TEXT, {"target": "lion"}, UsageError, "lion"),
        (span, PAIR, {"target": "lion"}, UsageError, "lion"),
        (encoder, TEXT, {}, UsageError, "___"),
        (encoder, PAIR, {}, UsageError, "one text"),
        (encoder, "A ___ and a ___.", {"target": "dog"}, UsageError, "2 blanks"),
        (bare, TEXT, {}, MismatchError, "firth finetune"),
        (load("stories-encoder", weights="int8"), "A ___.", {}, MismatchError, "leave-one-out"),
    ]
    for model, text, options, error, fact in rows:
        with pytest.raises(error, match=fact):
            attribute(model, text, **options)
    no_begin = load("stories-decoder")
    no_begin.network.config = replace(no_begin.config, bos_token_id=None)
    no_begin.tokenizer = with_special_tokens(no_begin.require_tokenizer(), [], [])
    with pytest.raises(UsageError, match="add words"):
        attribute(no_begin, "The", target="dog barked", method="leave-one-out")


def test_methods_and_texts_that_are_explained(
    make_model: Callable[[str], Model], decoder: Model, encoder: Model, seq2seq: Model
) -> None:
    int8 = load("stories-encoder", weights="int8")
    assert methods_for(encoder) == ("integrated-gradients", "leave-one-out")
    for method in methods_for(int8):
        assert attribute(int8, "The ___ barked.", method=method).scores
    choice = replace(make_model("classify"), task=replace(METADATA["classify"], task="choice"))
    bare = load("stories-encoder")
    del bare.network.heads["language"]
    no_begin = load("stories-decoder")
    no_begin.network.config = replace(no_begin.config, bos_token_id=None)
    no_begin.tokenizer = with_special_tokens(no_begin.require_tokenizer(), [], [])
    rows: list[tuple[Model, Any, bool]] = [
        (encoder, "The ___ barked.", True),
        (encoder, TEXT, False),
        (encoder, "[MASK]", False),
        (encoder, " ", False),
        (encoder, PAIR, False),
        (bare, "The ___ barked.", False),
        (decoder, "The", True),
        (decoder, "</s>", False),
        (no_begin, "The", False),  # nothing is left without it
        (no_begin, "The dog", True),
        (seq2seq, "The dog barked.", True),
        (make_model("classify"), TEXT, True),
        (make_model("pair"), PAIR, True),
        (make_model("pair"), TEXT, False),
        (choice, TEXT, False),
    ]
    for model, text, expected in rows:
        assert explains(model, text) is expected, text
        if expected:
            assert attribute(model, text, method="leave-one-out").scores, text
