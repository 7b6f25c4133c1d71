"""The heads of pre-training predict what they predict in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth import Tokenizer
from firth.jobs.evaluation import evaluate
from firth.jobs.prediction import predict
from tests.conftest import SAMPLE, in_process
from tests.inference.conftest import SIZE, memorize

PAIRS = [
    ("The boat left the harbour.", "It was a calm day."),
    ("He sang.", "The farmer sold apples at the market, and the sea was far away."),
    ("An old woman carried water from the river.", "No."),
]
BERT: dict[str, Any] = dict(
    **dict(vocab_size=SIZE, hidden_size=24, num_hidden_layers=2, num_attention_heads=4),
    **dict(intermediate_size=40, max_position_embeddings=48),
)
CLASSES = {
    "BertForNextSentencePrediction": ("BertConfig", {}, "next-sentence"),
    "BertForPreTraining": ("BertConfig", {}, "next-sentence"),
    "AlbertForPreTraining": ("AlbertConfig", {"embedding_size": 16}, "sentence-order"),
}


def reference(
    name: str, config: str, more: dict[str, Any], tokenizer: Tokenizer, path: Path
) -> Any:
    """A tiny model of theirs with random weights, saved with a tokenizer."""
    torch.manual_seed(0)
    made = getattr(transformers, name)(getattr(transformers, config)(**BERT, **more)).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    made.save_pretrained(path)
    tokenizer.save(path)
    return made


def write_pairs(file: Path, labels: list[str]) -> Path:
    rows = [f"{a}\t{b}\t{label}" for (a, b), label in zip(PAIRS, labels, strict=True)]
    file.write_text("\n".join(["text_a\ttext_b\tlabel", *rows]), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", CLASSES)
def test_sentence_pairs(name: str, tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    config, more, task = CLASSES[name]
    theirs = reference(name, config, more, tokenizers["wordpiece"], tmp_path / "model")
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    file = write_pairs(tmp_path / "pairs.tsv", ["0", "1", "0"])
    found = predict(tmp_path / "model", data=file, task=task).answers
    for (first, second), answer in zip(PAIRS, found, strict=True):
        with torch.no_grad():
            output = theirs(**encode(first, second, return_tensors="pt"))
        logits = output[1] if "PreTraining" in name else output[0]
        assert list(answer["scores"].values()) == pytest.approx(
            logits.softmax(-1)[0].tolist(), abs=1e-5
        )
    right = np.mean([row["label"] in ("is_next", "in_order") for row in found])
    labels = [row["label"] for row in found]
    result = evaluate(tmp_path / "model", data=write_pairs(file, labels), task=task)
    assert (result.task, result.metrics["accuracy"].value) == (task, 1.0)
    first = {"next-sentence": "is_next", "sentence-order": "in_order"}[task]
    always = evaluate(tmp_path / "model", data=write_pairs(file, [first] * 3), task=task)
    assert always.metrics["accuracy"].value == pytest.approx(right)
    with pytest.raises(firth.MismatchError, match=r"next-sentence.*sentence-order"):
        predict(tmp_path / "model", data=file)


def test_replaced_tokens(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer, folder = tokenizers["wordpiece"], tmp_path / "model"
    theirs = reference("ElectraForPreTraining", "ElectraConfig", {}, tokenizer, folder)
    encode = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():  # probabilities on both sides of 0.5
        head = theirs.discriminator_predictions.dense_prediction
        head.weight *= 30
        head.bias -= theirs(**encode(PAIRS[0][1], return_tensors="pt")).logits.median()
    theirs.save_pretrained(folder)
    rows = []
    for text in [*PAIRS[0], " ".join(PAIRS[2] * 8)]:  # the last does not fit into 48 positions
        ids = encode(text, add_special_tokens=False)["input_ids"]
        logits = []
        for begin in range(0, len(ids), 46):
            window = [encode.cls_token_id, *ids[begin : begin + 46], encode.sep_token_id]
            with torch.no_grad():
                logits += theirs(torch.tensor([window])).logits[0, 1:-1].sigmoid().tolist()
        [answer] = predict(folder, [text]).answers
        assert answer["scores"] == pytest.approx(logits, abs=1e-5)
        assert answer["replaced"] == [
            token for token, score in zip(answer["tokens"], logits, strict=True) if score > 0.5
        ]
        rows.append((answer, text))
    originals = [
        "The boat left the big harbour.",
        "It was a calm.",
    ]  # without a word, with one more
    data = [
        {"text": text, "original": other} for (_, text), other in zip(rows, originals, strict=False)
    ]
    expected = [[False] * len(encode.tokenize(text)) for text in PAIRS[0]]
    expected[1][len(encode.tokenize("It was a calm")) : -1] = [True] * len(encode.tokenize("day"))
    scores = [answer["scores"] for answer, _ in rows[:2]]
    pairs = [
        (s > 0.5, g)
        for own, right in zip(scores, expected, strict=True)
        for s, g in zip(own, right, strict=True)
    ]
    found = evaluate(folder, data=data)
    assert found.task == "replaced"
    assert found.metrics["accuracy"].value == pytest.approx(np.mean([s == g for s, g in pairs]))
    hits = sum(s and g for s, g in pairs)
    assert {s for s, _ in pairs} == {True, False}
    f1 = 2 * hits / sum(s + g for s, g in pairs)
    assert found.metrics["f1"].value == pytest.approx(f1)
    shown = in_process("predict", folder, PAIRS[0][0], "--json").json
    assert (shown["task"], shown["predictions"]) == ("replaced", [rows[0][0]])
    assert PAIRS[0][0] in in_process("predict", folder, PAIRS[0][0]).stdout


def test_a_run_knows_its_task(tmp_path: Path) -> None:
    run = memorize(SAMPLE.split("\n\n"), tmp_path, "bert-tiny", steps=1, objective="masked-nsp")
    file = write_pairs(tmp_path / "pairs.tsv", ["is_next", "not_next", "is_next"])
    done = in_process("predict", run, "--data", file)
    assert all(line.startswith(("is_next\t", "not_next\t")) for line in done.stdout.splitlines())
    found = in_process("evaluate", run, "--data", file, "--json").json
    assert (found["task"], found["n"]) == ("next-sentence", 3)
    assert "accuracy" in in_process("evaluate", run, run, "--data", file).stdout
    wrong = in_process("predict", run, "--data", file, "--task", "replaced")
    assert (wrong.returncode, "replaced" in wrong.error) == (1, True)
    trained = ("--train", file, "--out", tmp_path / "no")
    assert in_process("finetune", run, "--task", "next-sentence", *trained).returncode == 2
