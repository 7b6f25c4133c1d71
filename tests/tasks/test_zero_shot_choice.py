"""Multiple choice without fine-tuning; `tests/serve/test_clients.py` compares it with lm-eval."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import Model, evaluate, prompt
from firth.inference.prompting.prompt_scorer import PromptPrediction, RenderedPrompt
from firth.models.transformer import Transformer
from firth.tasks.zero_shot_choice import choose
from firth.utils.errors import InputError, MismatchError, UsageError
from tests.inference.conftest import SIZE, MakeModel

Row = dict[str, Any]
ROWS = [
    {"text": "The boat was", "choices": ["far", "calm and far away from the sea"], "label": 0},
    {"text": "It rained", "choices": ["all day long, they said", "far", "sea"], "label": 0},
    {"text": "A river ran", "choices": ["down to the sea", "under a dog"], "label": 1},
]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def uniform(make_model: MakeModel) -> Model:
    """A decoder for which all tokens are equally likely."""
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    with torch.no_grad():
        model.network.tokens.weight.zero_()
    return model


def test_accuracies_by_hand(make_model: MakeModel, tmp_path: Path) -> None:
    """Of equally likely tokens, a choice of n tokens has a log-probability of -n log V."""
    model = uniform(make_model)
    found = evaluate(model, task="choice", data=write(tmp_path / "a.jsonl", ROWS))
    right: dict[str, list[bool]] = {"accuracy": [], "accuracy_norm": []}
    for row in ROWS:
        counts = [len(model.require_tokenizer().encode(f" {one}")) for one in row["choices"]]
        sums = [-count * math.log(SIZE) for count in counts]
        right["accuracy"].append(int(np.argmax(sums)) == row["label"])
        rates = [total / len(one) for total, one in zip(sums, row["choices"], strict=True)]
        right["accuracy_norm"].append(int(np.argmax(rates)) == row["label"])
    assert right["accuracy"] != right["accuracy_norm"]
    assert {name: one.value for name, one in found.metrics.items()} == {
        name: pytest.approx(np.mean(values)) for name, values in right.items()
    }
    assert found.details["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    assert "zero-shot" in found.details["method"]


def test_characters_are_counted_not_bytes() -> None:
    """As lm-eval's acc_norm: -2 / 2 characters is less than -2.5 / 3, although é has two bytes."""
    sums = np.array([-2.0, -2.5])
    prompt = RenderedPrompt("It was ", "", (), dropped=0, cut=False)
    chosen = choose(PromptPrediction(prompt, sums, sums), ["éé", "abc"])
    assert (chosen.by_sum, chosen.by_character, chosen.tied) == (0, 1, False)


def test_the_first_of_equal_choices_is_taken(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    rows = [{"text": "The sea", "choices": ["was far"] * 3, "label": i} for i in range(3)]
    found = evaluate(model, task="choice", data=write(tmp_path / "a.jsonl", rows))
    assert found.metrics["accuracy"].value == pytest.approx(1 / 3)
    assert found.details["ties"] == 3
    assert any("ties" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "tokenizer"), [("gpt2", "bpe"), ("bert-tiny", "wordpiece"), ("t5-small", "wordpiece")]
)
def test_it_is_what_a_prompt_without_demonstrations_gives(
    name: str, tokenizer: str, make_model: MakeModel, tmp_path: Path
) -> None:
    model, file = make_model(name, tokenizer=tokenizer), write(tmp_path / "a.jsonl", ROWS)
    expected = prompt(model, task="choice", data=file).metrics
    found = evaluate(model, task="choice", data=file).metrics
    assert {key: one.value for key, one in found.items()} == {
        key: one.value for key, one in expected.items()
    }


def test_rows_without_a_choice_are_skipped(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bert-tiny")  # whose tokenizer drops control characters
    bad = [{"text": "It was", "choices": ["far", empty], "label": 0} for empty in ("", "\x07")]
    file = write(tmp_path / "a.jsonl", [*ROWS, *bad])
    found = evaluate(model, task="choice", data=file)
    assert found.n == len(ROWS)
    assert any("line 4" in note for note in found.notes)
    assert any("2 rows" in note for note in found.notes)
    with pytest.raises(InputError, match=r"line 4.*no token"):
        evaluate(model, task="choice", data=write(file, [*ROWS, bad[1]]), strict=True)


def test_a_head_for_choices_comes_first(make_model: MakeModel, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ROWS)
    config = replace(make_model("bert-tiny").network.config, label_head="choose")
    tokenizer = make_model("bert-tiny").tokenizer
    trained = Model(Transformer(config, ["language", "choose"]).eval(), tokenizer)
    found = evaluate(trained, task="choice", data=file)
    assert list(found.metrics) == ["accuracy"]
    assert found.details == {}
    both = evaluate([trained, trained], task="choice", data=file, ensemble=True)
    assert both.metrics["accuracy"].value == found.metrics["accuracy"].value
    other = Model(Transformer(config, ["pooler"]).eval(), tokenizer)
    with pytest.raises(MismatchError, match="choice"):
        evaluate(other, task="choice", data=file)
    with pytest.raises(UsageError, match="ensemble"):
        evaluate([trained, make_model("bert-tiny")], task="choice", data=file, ensemble=True)


def test_at_the_command_line(
    make_model: MakeModel, tmp_path: Path, verb: Callable[..., Any]
) -> None:
    make_model("gpt2", tokenizer="bpe", bos_token_id=0).save(tmp_path / "gpt")
    write(tmp_path / "a.jsonl", ROWS)
    done = verb("evaluate", "gpt", "--task", "choice", "--data", "a.jsonl", "--limit", 2)
    assert done.exit_code == 0, done.output
    assert "accuracy_norm" in done.output
    assert "zero-shot" in done.output
    assert "2 questions" in done.output
