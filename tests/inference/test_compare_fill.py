"""The same blank filled with bidirectional context and with left context only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import Model, Tokenizer, UsageError
from firth.jobs.fill_comparison import compare_fill, compare_fill_accuracy
from firth.models.heads import LanguageHead
from firth.utils.errors import MismatchError
from tests.inference.conftest import KINDS, MakeModel

Verb = Any
TEXT = "The old [MASK] barked loudly."


@pytest.fixture
def pair(make_model: MakeModel, tmp_path: Path) -> Callable[[], tuple[Model, Model]]:
    """An encoder that always predicts `and`, and a decoder that always predicts `the`."""

    def make() -> tuple[Model, Model]:
        encoder = make_model("bert-tiny")
        decoder = make_model("gpt2", "bpe", head_bias="trained", bos_token_id=0)
        for model, word in ((encoder, "and"), (decoder, " the")):
            assert model.tokenizer is not None
            [token] = model.tokenizer.encode(word)
            head = model.network.heads["language"]
            assert isinstance(head, LanguageHead)
            assert head.bias is not None
            with torch.no_grad():
                head.bias[token] += 60
        return encoder, decoder

    return make


def test_the_probabilities_of_both_models(make_model: MakeModel, decoder: Model) -> None:
    encoder = make_model("bert-tiny")
    found = compare_fill(encoder, decoder, TEXT, top=6, answer="unhurried")
    first, second = found.models
    assert (first.context, second.context) == ("left and right", "left only")
    assert (first.read, second.read) == (TEXT, "The old")
    assert first.predictions == encoder.fill(TEXT, top=6)[0]
    scores = [one.score for one in second.predictions]
    assert scores == sorted(scores, reverse=True)
    for one in (*second.predictions, second.answer):
        assert one is not None
        total = decoder.score(f" {one.token}", "The old").total
        assert one.score == pytest.approx(math.exp(total), rel=1e-3)
        assert one.text == f"The old {one.token} barked loudly."
    # a word of several tokens fills as many mask tokens
    assert encoder.tokenizer is not None
    assert first.answer is not None
    loss = encoder.explain(TEXT, answer="unhurried").predictions
    product = math.prod(one.target.probability for one in loss if one.target is not None)
    assert len(loss) > 1
    assert first.answer.score == pytest.approx(product, rel=1e-3)
    words = compare_fill(encoder, decoder, TEXT, targets=["dog", "and"]).models
    assert all({one.token for one in model.predictions} == {"dog", "and"} for model in words)


@pytest.mark.parametrize("kind", KINDS)
def test_words_after_a_text_are_whole(
    make_model: MakeModel, kinds: dict[str, Tokenizer], kind: str
) -> None:
    """Whatever marks the words: a space, their first or their last token."""
    tokenizer = kinds[kind]
    made = make_model("gpt2", vocab_size=len(tokenizer) + 3, bos_token_id=0, eos_token_id=0)
    model = Model(made.network, tokenizer)
    predictions = compare_fill(model, model, TEXT).models[0].predictions
    assert len(predictions) == 5
    for one in predictions:
        assert one.token
        assert not any(character.isspace() for character in one.token)
        assert one.text.startswith("The old ")
    assert compare_fill(model, model, "___ barked.").models[0].predictions


def test_words_after_a_text_equal_a_plain_search(decoder: Model) -> None:
    """The best first tokens, each continued by the most probable token until a new word begins."""
    assert decoder.tokenizer is not None
    name = decoder.tokenizer.backend.id_to_token
    context = decoder.tokenizer.encode("The old")

    def probabilities(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return decoder.forward(torch.tensor([ids]))[0, -1].softmax(-1)

    first = probabilities(context)
    begins = [i for i in first.argsort(descending=True).tolist() if name(i)[0] == "Ġ" != name(i)]
    expected = {}
    for token in begins[:4]:
        ids, probability = [token], float(first[token])
        while len(ids) < 16:
            after = probabilities([*context, *ids])
            best = int(after.argmax())
            if best == 0 or not name(best)[0].isalnum() or name(best)[0] == "Ġ":
                break
            probability *= float(after[best])
            ids.append(best)
        expected[decoder.tokenizer.decode(ids).strip()] = probability
    found = compare_fill(decoder, decoder, TEXT, top=4).models[0].predictions
    assert {one.token: one.score for one in found} == pytest.approx(expected, rel=1e-3)


def test_accuracy_and_paired_interval(pair: Callable[[], tuple[Model, Model]]) -> None:
    answers = ["and"] * 12 + ["the"] * 4 + ["dog"] * 6 + ["the|and"] * 2
    rows = [(f"{'A boat was here. ' * (i % 5)}They saw ___ sea.", a) for i, a in enumerate(answers)]
    found = compare_fill_accuracy(*pair(), rows)
    assert found.n == 24
    values = [model.accuracy.value for model in found.models]
    assert values == pytest.approx([14 / 24, 6 / 24])
    assert found.difference.value == pytest.approx(8 / 24)
    gains = np.array([1] * 12 + [-1] * 4 + [0] * 8)
    means = np.random.default_rng(0).choice(gains, (20_000, 24)).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    assert found.difference.low == pytest.approx(low, abs=0.05)
    assert found.difference.high == pytest.approx(high, abs=0.05)
    assert found.models[0].several_tokens == 6  # dog: do ##g


def test_bad_rows(verb: Verb, pair: Callable[[], tuple[Model, Model]], tmp_path: Path) -> None:
    for model, name in zip(pair(), ("enc", "dec"), strict=True):
        model.save(tmp_path / name)
    rows = ["text\tanswers", "They saw ___ sea.\tand", "___ and ___\tand", "none\tand", "A ___ .\t"]
    (tmp_path / "cloze.tsv").write_text("\n".join(rows))
    command = ("fill", "enc", "--compare", "dec", "--data", "cloze.tsv")
    done = verb(*command, "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["n"], values["bad"]) == (1, 3)
    assert [model["accuracy"]["value"] for model in values["models"]] == [1.0, 0.0]
    for line in (3, 4, 5):
        assert f"cloze.tsv line {line}" in done.stderr
    shown = verb(*command).stdout
    assert all(fact in shown for fact in ("left and right", "left only", "+1.0000"))
    strict = verb(*command, "--strict")
    assert strict.exit_code == 1
    assert "cloze.tsv line 3" in strict.stderr
    (tmp_path / "no.tsv").write_text("text\tword\nA ___ .\tb\n")
    done = verb("fill", "enc", "--compare", "dec", "--data", "no.tsv")
    assert done.exit_code == 1
    assert "'answer'" in done.stderr


def test_on_the_command_line(verb: Verb, bert: Path, gpt: Path, decoder: Model) -> None:
    options = ("--compare", gpt, "--answer", "dog", "--top", 2)
    values = json.loads(verb("fill", bert, TEXT, *options, "--json").stdout)
    first, second = values["models"]
    assert [len(model["predictions"]) for model in (first, second)] == [2, 2]
    total = decoder.score(" dog", "The old").total
    assert second["answer"]["score"] == pytest.approx(math.exp(total), rel=1e-3)
    shown = verb("fill", bert, TEXT, *options).stdout
    words = [one["token"] for model in values["models"] for one in model["predictions"]]
    assert [word for word in words if word not in shown] == []


def test_encoder_decoders(make_model: MakeModel, decoder: Model) -> None:
    """T5 fills a span; BART writes the whole text again, which is not compared."""
    roles = dict(num_decoder_layers=2, eos_token_id=3, decoder_start_token_id=0)
    t5 = make_model("t5-small", vocab_size=404, **roles)
    assert t5.tokenizer is not None
    backend = type(t5.tokenizer.backend).from_str(t5.tokenizer.to_json())
    backend.add_special_tokens([f"<extra_id_{i}>" for i in range(4)])
    sentinels = Model(t5.network, Tokenizer(backend, t5.tokenizer.config))
    answer = compare_fill(sentinels, decoder, TEXT, answer="sea").models[0].answer
    assert answer is not None
    steps = sentinels.explain(TEXT, answer="sea").predictions[1:-1]
    product = math.prod(one.target.probability for one in steps if one.target is not None)
    assert answer.score == pytest.approx(product, rel=1e-3)
    with pytest.raises(MismatchError, match="BART"):
        compare_fill(make_model("bart-base", **roles), decoder, TEXT)


def test_misuse(verb: Verb, bert: Path, gpt: Path) -> None:
    with pytest.raises(UsageError, match="2 blanks"):
        compare_fill(bert, gpt, "The ___ saw ___.")
    cases: list[tuple[tuple[Any, ...], list[str]]] = [
        (("--data", "a.tsv"), ["--data", "--compare"]),
        ((TEXT, "--compare", gpt, "--explain"), ["--compare", "--explain"]),
        (("--data", "a.tsv", "--compare", gpt, "--top", 3), ["--data", "--top"]),
        (("--file", "a.txt", "--compare", gpt), ["--compare", "--file"]),
        ((TEXT, "--compare", gpt, "--data", "a.tsv"), ["TEXT"]),
    ]
    for arguments, facts in cases:
        done = verb("fill", bert, *arguments)
        assert done.exit_code == 2
        assert [fact for fact in facts if fact not in done.stderr] == []
