"""Models loaded with int8 weights, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firth import Model, UsageError, evaluate, load
from firth.adapt.apply import apply
from firth.adapt.saving import save_adapter
from firth.cli.options import load_model
from firth.model import default_device, load_if_needed
from firth.quantization.int8 import Int8Linear
from tests.conftest import SAMPLE
from tests.inference.conftest import MakeModel

Verb = Callable[..., Any]


def test_the_command_equals_the_python_api(verb: Verb, gpt: Path) -> None:
    model = load(gpt, weights="int8")
    assert isinstance(model.network.decoder.blocks[0].feed_forward.down, Int8Linear)
    assert model.num_parameters == load(gpt).num_parameters
    options = ("--max-new-tokens", 12, "--json")
    done = verb("generate", gpt, "The sea", "--weights", "int8", *options)
    assert done.exit_code == 0, done.output
    [one] = json.loads(done.stdout)["completions"]
    assert one["text"] == model.generate("The sea", max_new_tokens=12)
    [plain] = json.loads(verb("generate", gpt, "The sea", *options).stdout)["completions"]
    assert one["logprob"] != plain["logprob"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_perplexity_with_and_without(
    verb: Verb, make_model: MakeModel, tmp_path: Path, dtype: str
) -> None:
    model = make_model("gpt2", "bpe", bos_token_id=None, eos_token_id=0, tie_embeddings=True)
    model.save(tmp_path / "gpt", dtype=getattr(torch, dtype))
    (tmp_path / "text.txt").write_text(SAMPLE[:2000], encoding="utf-8")
    ask = ("evaluate", "gpt", "--task", "lm", "--data", "text.txt")
    plain = json.loads(verb(*ask, "--json").stdout)
    small = json.loads(verb(*ask, "--weights", "int8", "--json").stdout)
    assert small["details"]["weights"] == "int8"
    assert small["details"]["counts"] == plain["details"]["counts"]
    ours, theirs = (one["metrics"]["token_perplexity"]["value"] for one in (small, plain))
    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=0.02)
    assert "Weights: int8." in " ".join(verb(*ask, "--weights", "int8").stdout.split())


def test_an_adapter_is_merged_and_one_that_cannot_be_is_refused(gpt: Path, tmp_path: Path) -> None:
    for spec in ("lora:rank=2", "prefix"):
        base = load(gpt)
        adapted = apply(base.network, spec, seed=1)
        with torch.no_grad():
            for parameter in adapted.parameters.values():
                parameter += 0.05
        save_adapter(adapted, tmp_path / spec[:4], base=str(gpt))
    model, plain = load(tmp_path / "lora", weights="int8"), load(tmp_path / "lora")
    [small], [whole] = (
        [one.score for one in each.completions(["The sea"], max_new_tokens=1)[0].completions]
        for each in (model, plain)
    )
    assert small == pytest.approx(whole, abs=0.05)
    assert (
        abs(load(gpt).completions(["The sea"], max_new_tokens=1)[0].completions[0].score - whole)
        > 0.05
    )
    with pytest.raises(UsageError, match="`weights`"):
        load(tmp_path / "pref", weights="int8")


def test_int8_weights_choose_the_cpu_of_a_machine_with_a_gpu(
    gpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert default_device(None).type == "cuda"
    assert default_device(None, "int8").type == "cpu"
    assert load_model(str(gpt), None, None, "int8").network.device.type == "cpu"
    assert load_if_needed(gpt, None, weights="int8").network.device.type == "cpu"
    with pytest.raises(UsageError, match="add `device` cpu"):
        load_if_needed(gpt, "cuda", weights="int8")


def test_invalid_int8_options(verb: Verb, gpt: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`weights` is int8, not 'int3'"):
        load(gpt, weights="int3")
    with pytest.raises(UsageError, match="add `device` cpu"):
        load(gpt, weights="int8", device="cuda")
    with pytest.raises(UsageError, match="`device`"):
        load(gpt, weights="int8", device="nosuch")
    with pytest.raises(UsageError, match="cannot be saved"):
        load(gpt, weights="int8").save(tmp_path / "out")
    (tmp_path / "text.txt").write_text("The sea.", encoding="utf-8")
    with pytest.raises(UsageError, match=r"weights=.int8"):
        evaluate(load(gpt), task="lm", data=tmp_path / "text.txt", weights="int8")
    refused = verb("generate", gpt, "The sea", "--weights", "int3")
    assert refused.exit_code == 2
    assert "--weights is int8" in refused.stderr
    suite = verb("evaluate", gpt, "--suite", "lm", "--data", tmp_path, "--weights", "int8")
    assert suite.exit_code == 2
    assert "--weights" in suite.stderr
    assert "--suite" in suite.stderr


def test_an_open_model_with_int8_weights_is_measured(gpt: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(SAMPLE[:500], encoding="utf-8")
    model: Model = load(gpt, weights="int8")
    ask: dict[str, Any] = dict(task="lm", data=tmp_path / "text.txt")
    opened = evaluate(model, **ask).metrics["token_perplexity"]
    assert opened == evaluate(gpt, weights="int8", **ask).metrics["token_perplexity"]


def test_files_are_searched_with_int8_weights(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the sea\nan old dog\na boat at sea\n", encoding="utf-8")
    model, plain = load(bert, weights="int8"), load(bert)
    found = model.search(tmp_path / "texts.txt", "an old dog", top=1)
    assert [hit.text for hit in found] == ["an old dog"]
    assert model.embedder().fingerprint != plain.embedder().fingerprint
