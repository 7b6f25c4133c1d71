"""Fine-tuning a fine-tuned model, heads of every shape, and merged adapters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from firth.adapt import peft
from firth.adapt.apply import merge
from firth.adapt.lora import base_dtype, frozen_matrices
from firth.formats.safetensors import open_weights
from firth.jobs.exporting import export
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import load
from firth.tasks import task_trainer
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.devices import DeviceSpec
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.conftest import QUICK, save
from tests.jobs.finetuning.toys import TINY, coloured, table
from tests.nightly import mostly_nightly

STILL = {"learning_rate": 0.0, "steps": 1}  # changes no weight
Tune = Callable[..., FinetuneResult]
ALL = ("encoder", "decoder", "encoder-decoder")


def assert_same_after_loading(tuned: FinetuneResult, data: Path) -> None:
    scores = [
        [answer["scores"]["positive"] for answer in predict(model, data=data).answers]
        for model in (tuned.model, load(tuned.path))
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(load(path).network.named_parameters())


def test_another_task_starts_with_the_fine_tuned_weights(
    tune: Tune, stories: Path, tmp_path: Path
) -> None:
    """Intermediate-task training: entailment, then sentiment."""
    first = tune("encoder", "pair", "entailment", out=tmp_path / "first")
    files = {end: stories / "sentiment" / f"{end}.tsv" for end in ("train", "dev")}
    overrides = TINY | STILL | {"max_length": 48}
    second = finetune(
        first.path, task="classify", overrides=overrides, out=tmp_path / "second", **files
    )
    old, new = weights(first.path), weights(second.path)
    body = [name for name in old if not name.startswith("heads.")]
    assert all(old[name].equal(new[name]) for name in body)
    assert second.model.config.labels == ("negative", "positive")
    assert new["heads.classify.output.weight"].shape[0] == 2


@pytest.mark.parametrize("architecture", ALL)
def test_the_same_task_keeps_its_head(architecture: str, tune: Tune, tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    given = {"train": train, "dev": dev}
    first = tune(architecture, "classify", "", out=tmp_path / "first", **given)
    second = finetune(
        first.path, task="classify", overrides=TINY | STILL, out=tmp_path / "second", **given
    )
    old, new = weights(first.path), weights(second.path)
    assert old.keys() == new.keys()
    assert all(old[name].equal(new[name]) for name in old)


def test_other_labels_get_another_head(tune: Tune, tmp_path: Path) -> None:
    first = tune("encoder", "classify", "sentiment", out=tmp_path / "first")
    train, dev = coloured(tmp_path, labels={"red": "warm", "green": "cold"})
    files = {"train": train, "dev": dev, "out": tmp_path / "second"}
    second = finetune(first.path, task="classify", overrides=TINY | STILL, **files)
    assert second.model.config.labels == ("cold", "warm")
    old, new = (w["heads.classify.output.weight"] for w in map(weights, (first.path, second.path)))
    assert not old.equal(new)


@pytest.mark.parametrize(
    ("first", "then"),
    mostly_nightly(
        [("lora", "full"), ("bitfit", "lora"), ("ia3", "probe"), ("probe", "lora")],
        always=[("lora", "full"), ("ia3", "probe")],
    ),
)
def test_an_adapter_is_fine_tuned_again(
    first: str, then: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The first adapter is merged into the network before the second run."""
    model = save("bert-tiny", tokenizer, tmp_path / "model")
    train, dev = coloured(tmp_path)
    files: dict[str, Any] = {"task": "classify", "train": train, "dev": dev}
    head = {"head.pooling": "mean", "head.layers": 0}
    overrides = TINY | {"learning_rate": 1e-2, "steps": 8} | head
    one = finetune(model, strategy=first, overrides=overrides, out=tmp_path / "one", **files)
    two = finetune(one.path, strategy=then, overrides=TINY | STILL, out=tmp_path / "two", **files)
    (tmp_path / "two").rename(tmp_path / "elsewhere")
    before, after = (
        [answer["scores"]["x"] for answer in predict(path, data=dev).answers]
        for path in (one.path, tmp_path / "elsewhere")
    )
    if then != "probe":  # its head is solved again
        assert after == pytest.approx(before, abs=1e-5)
    said = [answer["label"] for answer in predict(two.model, data=dev).answers]
    assert said == [a["label"] for a in predict(tmp_path / "elsewhere", data=dev).answers]


@pytest.mark.parametrize("strategy", ["prefix", "adapters"])
def test_adapters_that_cannot_be_merged_are_refused(
    strategy: str, tune: Tune, tmp_path: Path
) -> None:
    first = tune("encoder", "classify", "sentiment", strategy=strategy, out=tmp_path / "first")
    train, dev = coloured(tmp_path)
    with pytest.raises(MismatchError, match="first is an adapter"):
        finetune(first.path, task="classify", train=train, dev=dev, out=tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_an_adapter_finds_its_base_from_another_directory(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the base was given as a relative path."""
    train, dev = coloured(tmp_path)
    monkeypatch.chdir(models["encoder"].parent)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"steps": 1}
    finetune("encoder", task="classify", strategy="lora", overrides=overrides, **files)
    monkeypatch.chdir(tmp_path)
    assert len(predict("run", data=dev).answers) == 32


# ---- heads


@pytest.mark.parametrize(
    ("architecture", "head", "fields"),
    [
        ("encoder", {"layers": "2"}, {"label_layers": 2}),
        ("encoder", {"pooling": "mean"}, {"pooling": "mean"}),
        ("encoder", {"pooling": "last", "layers": 0}, {"pooling": "last", "label_layers": 0}),
        ("decoder", {"layers": "2", "pooling": "mean"}, {"label_layers": 2, "pooling": "mean"}),
        ("encoder-decoder", {"layers": 1, "norm": "true"}, {"label_layers": 1}),
    ],
)
def test_options_of_a_head(
    architecture: str,
    head: dict[str, Any],
    fields: dict[str, Any],
    tune: Tune,
    stories: Path,
) -> None:
    overrides = {f"head.{name}": value for name, value in head.items()}
    tuned = tune(architecture, "classify", "sentiment", overrides=overrides | {"steps": 2})
    again = load(tuned.path)
    for name, value in fields.items():
        assert getattr(again.config, name) == value
    assert again.network.config == tuned.model.config
    assert_same_after_loading(tuned, stories / "sentiment" / "dev.tsv")


@pytest.mark.parametrize(
    ("strategy", "pooling"), [("probe", None), ("lora:rank=2", "first"), ("full", "mean")]
)
def test_predictions_of_a_base_with_a_pooler_are_the_same_after_loading(
    strategy: str, pooling: str | None, tokenizer: Tokenizer, stories: Path, tmp_path: Path
) -> None:
    """A head that was trained without the pooler must be loaded without it."""
    base = save("bert-tiny", tokenizer, tmp_path / "base")
    assert "pooler" in load(base).network.heads
    files = {end: stories / "sentiment" / f"{end}.tsv" for end in ("train", "dev")}
    overrides = QUICK | ({"head.pooling": pooling} if pooling else {})
    options = {"task": "classify", "strategy": strategy, "limit": 24, "overrides": overrides}
    tuned = finetune(base, out=tmp_path / "run", **files, **options)
    assert_same_after_loading(tuned, files["dev"])


def test_a_probe_with_layers_uses_gradient_descent(tune: Tune) -> None:
    """Only a plain matrix can be solved for."""
    tuned = tune("encoder", "classify", "sentiment", strategy="probe", overrides={"head.layers": 1})
    assert any("gradient descent" in note for note in tuned.notes)
    assert tuned.steps == 6


def test_options_of_a_task_are_saved(tune: Tune, stories: Path) -> None:
    overrides = {"task.prefix": "rewrite: ", "task.written": "5"}
    tuned = tune("encoder-decoder", "seq2seq", "rewrite", overrides=overrides)
    again = load(tuned.path)
    assert again.task is not None
    assert again.task.options["prefix"] == "rewrite: "
    assert again.task.options["written"] == 5
    data = stories / "rewrite" / "dev.tsv"
    tokenizer = again.require_tokenizer()
    for answer in predict(again, data=data).answers:
        assert len(tokenizer.encode(answer["text"])) <= 7


def test_an_adapter_is_exported_merged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """LoRA on BERT becomes one plain model with the same scores; a prefix cannot be merged."""
    base = save("bert-tiny", tokenizer, tmp_path / "base")
    rows = [("good day", "yes"), ("bad day", "no")] * 4
    train = table(tmp_path / "train.tsv", "text label", rows)
    options = {"task": "classify", "train": train, "dev": train, "overrides": QUICK}
    tuned = finetune(base, out=tmp_path / "lora", strategy="lora", **options)
    with pytest.raises(UsageError, match="adapter"):
        load(tuned.path).save(tmp_path / "no")
    assert export(tuned.path, tmp_path / "hf") == "bert"
    said, again = (predict(path, data=train).answers for path in (tuned.path, tmp_path / "hf"))
    for one, other in zip(said, again, strict=True):
        assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
    tuned = finetune(base, out=tmp_path / "prefix", strategy="prefix:4", **options)
    with pytest.raises(UsageError, match="cannot be merged"):
        export(tuned.path, tmp_path / "prefixed")
    assert load(tuned.path).embed(["a good day"]).shape == (1, 32)


@pytest.mark.parametrize(("preset", "family"), [("bert-tiny", "bert"), ("gpt2", "gpt2")])
def test_a_merged_model_is_saved_as_its_run_is_exported(
    preset: str, family: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The base's language head, which stays in memory beside the task's, is not saved."""
    base = save(preset, tokenizer, tmp_path / "base")
    rows = [("good day", "yes"), ("bad day", "no")] * 4
    options: dict[str, Any] = {"train": rows, "dev": rows, "overrides": QUICK | {"steps": 1}}
    finetune(base, task="classify", out=tmp_path / "lora", strategy="lora:rank=2", **options)
    model = load(tmp_path / "lora")
    merge(model.network, keep=False)
    assert model.save(tmp_path / "saved") == family
    assert export(model, tmp_path / "exported") == family
    assert export(tmp_path / "lora", tmp_path / "of-run") == family
    assert {"language", "classify"} <= set(model.network.heads)
    expected = load_file(tmp_path / "of-run" / "model.safetensors")
    ids = model.require_tokenizer().encode("good day", specials=True)
    for name in ("saved", "exported"):
        stored = load_file(tmp_path / name / "model.safetensors")
        assert stored.keys() == expected.keys()
        assert all(stored[key].equal(expected[key]) for key in expected)
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / name).eval()
        probabilities = theirs(torch.tensor([ids])).logits.softmax(-1)[0].tolist()
        scores = model.predict("good day")["scores"]
        assert [scores[label] for label in model.config.labels] == pytest.approx(
            probabilities, abs=1e-5
        )


def test_lora_is_trained_on_a_bf16_base_where_the_device_has_bf16(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save("bert-tiny", tokenizer, tmp_path / "base")
    train = table(tmp_path / "train.tsv", "text label", [("good day", "yes"), ("bad day", "no")])
    held: list[torch.dtype] = []

    def see(network: torch.nn.Module, dtype: torch.dtype) -> AbstractContextManager[None]:
        held.append(dtype)
        return frozen_matrices(network, dtype)

    gpu = DeviceSpec(type="cuda", compute_capability=(8, 0))
    monkeypatch.setattr(task_trainer, "base_dtype", lambda *args: base_dtype(*args[:2], gpu))
    monkeypatch.setattr(task_trainer, "frozen_matrices", see)
    half = {**QUICK, "precision": "force-bf16"}
    options = {"task": "classify", "train": train, "dev": train, "overrides": half}
    out = tmp_path / "lora"
    finetune(base, out=out, strategy="lora", device="cpu", **options)
    assert held == [torch.bfloat16]
    assert {tensor.dtype for tensor in open_weights(out / peft.WEIGHTS).values()} == {torch.float32}
    assert load(out).network.tokens.weight.dtype == torch.float32  # on the base it was trained on
