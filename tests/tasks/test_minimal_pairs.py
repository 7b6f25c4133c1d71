"""Minimal pairs: which sentence is likelier, counted by hand from the scores of each alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from firth import Model, evaluate, finetune, predict
from firth.inference.scoring.log_likelihood import log_likelihoods
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.utils.errors import InputError, MismatchError, UsageError
from tests.data.test_readers import piped

MakeModel = Callable[..., Model]
PAIRS = [
    ("The dogs run.", "The dogs runs.", "agreement", "syntax"),
    ("The dog runs to the river.", "The dog run to the river.", "agreement", "syntax"),
    ("She saw herself.", "She saw himself.", "anaphora", "morphology"),
    ("The old river rose again", "The old river rise again", "tense", "morphology"),
    ("The same.", "The same.", "tense", "morphology"),
]


def blimp(path: Path, pairs: Any = PAIRS) -> Path:
    keys = ("sentence_good", "sentence_bad", "UID", "field")
    rows = [dict(zip(keys, pair, strict=True)) for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["gpt2", "bert-tiny"])
def test_the_likelier_sentence_by_sum_and_by_mean(
    name: str, make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model(name, bos_token_id=2)
    score = pseudo_log_likelihoods if name == "bert-tiny" else log_likelihoods
    wins, means = [], []
    for good, bad, *_ in PAIRS:
        both = [
            next(score(model.network, model.require_tokenizer(), [text])) for text in (good, bad)
        ]
        wins.append(1.0 if both[0].sum > both[1].sum else 0.0)
        means.append(1.0 if both[0].mean > both[1].mean else 0.0)
    wins[-1] = means[-1] = 0.5  # twice the same
    found = evaluate(model, task="minimal-pairs", data=blimp(tmp_path / "a.jsonl"))
    assert found.n == 5
    assert found.metrics["accuracy"].value == np.mean(wins)
    assert found.metrics["accuracy_mean"].value == np.mean(means)
    error = np.std(wins, ddof=1) / np.sqrt(5)
    assert found.values()["metrics"]["accuracy"]["error"] == pytest.approx(error)
    assert {name: row["accuracy"].value for name, row in found.parts.items()} == {
        "agreement": np.mean(wins[:2]),
        "anaphora": wins[2],
        "tense": np.mean(wins[3:]),
    }
    assert found.groups["field"]["syntax"]["accuracy"].value == np.mean(wins[:2])
    assert found.groups["field"]["morphology"]["accuracy"].value == np.mean(wins[2:])
    assert found.details["ties"] == 1
    assert any("1 of 5 pairs" in note for note in found.notes)


def test_what_is_the_same_to_the_tokenizer_is_a_tie(make_model: MakeModel, tmp_path: Path) -> None:
    """BERT's reads no capitals: no last bit of two batches may decide."""
    pairs = [(f"The dog {'ran ' * n}home.", f"the DOG {'ran ' * n}home.") for n in range(12)] * 40
    data = blimp(tmp_path / "a.jsonl", [(*pair, "case", "none") for pair in pairs])
    tokenizer = make_model("bert-tiny").require_tokenizer()
    tokenizer.lowercase()
    model = make_model("bert-tiny")
    model.tokenizer = tokenizer
    found = evaluate(model, task="minimal-pairs", data=data)
    assert found.metrics["accuracy"].value == 0.5
    assert found.details["ties"] == len(pairs)


def test_equally_likely_tokens_favour_the_shorter_sentence(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """By sum, each token more costs the same more: the shorter one wins, equal ones tie."""
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    with torch.no_grad():
        model.network.tokens.weight.zero_()
    encode = model.require_tokenizer().encode
    sizes = np.array([[len(encode(text)) for text in pair[:2]] for pair in PAIRS])
    wanted = (np.sign(sizes[:, 1] - sizes[:, 0]) + 1) / 2
    found = evaluate(model, task="minimal-pairs", data=blimp(tmp_path / "a.jsonl"))
    assert found.metrics["accuracy"].value == wanted.mean()


def test_a_hybrid_is_measured_both_ways(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("gpt2", bos_token_id=2, eos_token_id=3)
    model.objective = "hybrid"
    data = blimp(tmp_path / "a.jsonl")
    found = evaluate(model, task="minimal-pairs", data=data)
    prefixes = ("", "masked_", "combined_")
    names = [prefix + name for prefix in prefixes for name in ("accuracy", "accuracy_mean")]
    assert list(found.metrics) == names
    both = model.network, model.require_tokenizer()
    texts = [text for good, bad, *_ in PAIRS[:-1] for text in (bad, good)]
    sums = np.array(
        [
            [score.sum for score in method(*both, texts)]
            for method in (log_likelihoods, pseudo_log_likelihoods)
        ]
    )
    for prefix, scores in zip(prefixes, [*sums, sums.sum(axis=0)], strict=True):
        wins = (np.diff(scores.reshape(-1, 2))[:, 0] > 0).tolist()
        assert found.metrics[prefix + "accuracy"].value == np.mean([*wins, 0.5])


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2"])
def test_logits_are_divided_by_the_temperature(
    make_model: MakeModel, tmp_path: Path, name: str
) -> None:
    model = make_model(name) if name == "bert-tiny" else make_model(name, bos_token_id=2)
    score = pseudo_log_likelihoods if name == "bert-tiny" else log_likelihoods
    both, text = (model.network, model.require_tokenizer()), [PAIRS[0][0]]
    (wanted,) = score(*both, text, temperature=2.0)
    plain = model.network.logits
    with patch.object(model.network, "logits", lambda hidden: plain(hidden) / 2):
        (found,) = score(*both, text)
    assert wanted.log_probs == pytest.approx(found.log_probs, abs=1e-6)
    data = blimp(tmp_path / "a.jsonl")
    evaluate(model, task="minimal-pairs", data=data, temperature=2.0)
    with pytest.raises(UsageError, match="temperature"):
        evaluate(model, task="minimal-pairs", data=data, temperature=0.0)
    with pytest.raises(UsageError, match="minimal-pairs"):
        evaluate(model, task="lm", data=data, temperature=2.0)


def test_a_folder_is_all_of_its_files(make_model: MakeModel, tmp_path: Path) -> None:
    model, folder = make_model("gpt2", bos_token_id=2), tmp_path / "blimp"
    folder.mkdir()
    for name, pairs in (("one", PAIRS[:2]), ("two", PAIRS[2:])):
        rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad, *_ in pairs]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    found = evaluate(model, task="minimal-pairs", data=folder)
    assert list(found.parts) == ["one", "two"]
    assert found.details["sizes"] == {"one": 2, "two": 3}
    assert evaluate(model, task="minimal-pairs", data=folder, limit=1).n == 2


def test_pairs_from_a_pipe(make_model: MakeModel, tmp_path: Path) -> None:
    model, file = make_model("gpt2", bos_token_id=2), blimp(tmp_path / "a.jsonl")
    with piped(file.read_bytes()):
        found = evaluate(model, task="minimal-pairs", data="-")
    assert found.metrics == evaluate(model, task="minimal-pairs", data=file).metrics


def test_bad_pairs(make_model: MakeModel, tmp_path: Path) -> None:
    model, path = make_model("gpt2", bos_token_id=2), tmp_path / "a.jsonl"

    def refused(content: str, says: str) -> None:
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=says):
            evaluate(model, task="minimal-pairs", data=path, strict=True)

    fine = '{"sentence_good": "He ran.", "sentence_bad": "He run."}\n'
    refused(
        fine + '{"sentence_good": "He ran.", "sentence_bad": ""}', "line 2: 'sentence_bad' is e"
    )
    refused('{"sentence_good": "He ran.", "UID": "x"}', "no column .*it has 'sentence_good', 'UID'")
    refused(fine + '{"sentence_good": "He ran."}', "line 2 has no field 'sentence_bad'")
    long = json.dumps({"sentence_good": "He ran " * 60, "sentence_bad": "He."})
    refused(fine + long, r"a.jsonl line 2: a sentence has \d+ tokens, more than .*62")
    refused("", "has no examples")


def test_models_that_cannot(make_model: MakeModel, tmp_path: Path) -> None:
    data = blimp(tmp_path / "a.jsonl")
    with pytest.raises(MismatchError, match="An encoder-decoder has no likelihood of a whole text"):
        evaluate(make_model("t5-small"), task="minimal-pairs", data=data)
    bare = make_model("bert-tiny")
    del bare.network.heads["language"]
    with pytest.raises(MismatchError, match="has no language head"):
        evaluate(bare, task="minimal-pairs", data=data)
    with pytest.raises(UsageError, match="`by_word` is for masked"):
        evaluate(make_model("gpt2"), task="minimal-pairs", data=data, by_word=True)
    with pytest.raises(UsageError, match="`stride` is for `task` lm"):
        evaluate(make_model("gpt2"), task="minimal-pairs", data=data, stride=3)


def test_there_is_nothing_to_teach(make_model: MakeModel, tmp_path: Path) -> None:
    make_model("bert-tiny").save(tmp_path / "bert")
    data = blimp(tmp_path / "a.jsonl")
    says = "minimal-pairs is for evaluation only: `firth evaluate"
    with pytest.raises(UsageError, match=says):
        finetune(tmp_path / "bert", task="minimal-pairs", train=data, out=tmp_path / "run")
    with pytest.raises(UsageError, match=says):
        predict(tmp_path / "bert", task="minimal-pairs", data=data)
    assert not (tmp_path / "run").exists()


def test_pairs_in_memory(make_model: MakeModel, tmp_path: Path) -> None:
    model, file = make_model("gpt2", bos_token_id=2), blimp(tmp_path / "a.jsonl")
    expected = evaluate(model, task="minimal-pairs", data=file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for data in (rows, [pair[:2] for pair in PAIRS]):
        found = evaluate(model, task="minimal-pairs", data=data)
        assert (found.n, found.metrics) == (expected.n, expected.metrics)
    for task in ("lm", "last-word"):
        texts = [good for good, *_ in PAIRS]
        for data in (texts, [(text,) for text in texts], [{"text": text} for text in texts]):
            assert evaluate(model, task=task, data=data).n == len(PAIRS)


def test_a_negative_limit(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"limit.*-2"):
        evaluate(make_model("gpt2"), task="minimal-pairs", data=blimp(tmp_path / "a"), limit=-2)
