"""Pre-training runs: every objective, the files of a run, distillation, faults of the set-up."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth.jobs.pretraining import PretrainResult, build, pretrain
from firth.models.masks import Mask
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.run_directory import read_metrics, read_run
from firth.utils.errors import MismatchError, UsageError
from tests.conftest import SAMPLE
from tests.nightly import mostly_nightly
from tests.training.conftest import SMALL, losses, notes


def train(shards: Path, out: Path, preset: str, steps: int = 6, **more: Any) -> PretrainResult:
    overrides = {"model.num_layers": 2} | SMALL | more.pop("overrides", {})
    return pretrain(preset=preset, data=shards, out=out, steps=steps, overrides=overrides, **more)


# The first two losses of each recipe on a tiny network, which a refactoring must not change.
PINNED = {
    ("bert-tiny", "masked-nsp"): (7.109304, 7.084789),
    ("roberta-base", "masked"): (6.433936, 6.410562),
    ("spanbert-base", "masked-spans"): (12.837963, 12.757477),
    ("albert-base", "masked-sop"): (7.079475, 7.110157),
    ("electra-small", "replaced"): (41.020376, 40.910749),
    ("encoder-tiny", "masked"): (6.432233, 6.398777),
    ("encoder-tiny", "masked-words"): (6.419894, 6.376267),
    ("gpt2", "causal"): (6.409561, 6.394029),
    ("decoder-tiny", "causal"): (6.401280, 6.372112),
    ("decoder-tiny", "prefix"): (6.406132, 6.375740),
    ("decoder-tiny", "hybrid"): (12.844150, 12.762059),
    ("decoder-tiny", "causal-denoising"): (6.411459, 6.202111),
    ("decoder-tiny", "prefix-denoising"): (6.411459, 6.202111),
    ("t5-small", "span-corruption"): (6.799304, 6.655906),
    ("bart-base", "infilling"): (6.402611, 6.397161),
    ("seq2seq-tiny", "span-corruption"): (6.431412, 6.253544),
    ("seq2seq-tiny", "causal-seq2seq"): (6.398125, 6.349358),
    ("seq2seq-tiny", "prefix-seq2seq"): (6.407792, 6.336519),
}
# A method call in the model card.
USES = {
    ("encoder-tiny", "masked"): "model.fill(",
    ("electra-small", "replaced"): "model.embed(",
    ("decoder-tiny", "hybrid"): "model.generate(",
    ("decoder-tiny", "prefix-denoising"): "model.fill(",
    ("seq2seq-tiny", "span-corruption"): "<extra_id_0>",
    ("seq2seq-tiny", "prefix-seq2seq"): "model.generate(",
    ("bart-base", "infilling"): "model.fill(",
}


@pytest.mark.parametrize(("preset", "objective"), mostly_nightly(PINNED, always=USES))
def test_first_losses_and_the_use_in_the_model_card(
    preset: str, objective: str, shards: Path, tmp_path: Path
) -> None:
    overrides: dict[str, Any] = {"log_every": 1}
    overrides |= {"model.dropout": 0.0, "model.attention_dropout": 0.0}
    if preset in ("albert-base", "electra-small"):
        overrides["model.embedding_size"] = 16
    if preset == "t5-small":
        overrides["model.head_dim"] = 16
    trained = train(shards, tmp_path, preset, 2, objective=objective, overrides=overrides)
    np.testing.assert_allclose(losses(tmp_path), PINNED[preset, objective], rtol=2e-4)
    assert trained.loss is not None
    again = firth.load(tmp_path)
    if preset == "spanbert-base":  # its boundary head is only for training
        assert (trained.family, set(again.network.heads)) == ("bert", {"language"})
    else:
        assert again.num_parameters == trained.model.num_parameters
    lines = (tmp_path / "README.md").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("model.")]
    assert USES.get((preset, objective), "model.") in line
    result = eval(line, {"model": again})
    assert len(result) or (preset, objective) not in USES


@pytest.mark.parametrize(
    ("preset", "objective", "wanted"),
    [
        ("encoder-tiny", "masked", "[CLS] the dog [SEP]"),
        ("decoder-tiny", "causal", "[CLS] the dog"),
        ("decoder-tiny", "causal-denoising", "the dog"),
        ("seq2seq-tiny", "span-corruption", "the dog [SEP]"),
        ("bart-base", "infilling", "[CLS] the dog [SEP]"),
    ],
)
def test_the_tokenizer_adds_the_special_tokens_of_pretraining(
    preset: str, objective: str, wanted: str, shards: Path, tmp_path: Path
) -> None:
    train(shards, tmp_path, preset, 1, objective=objective)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("the dog").tokens() == firth.load(tmp_path).tokens("the dog") == wanted.split()


def test_the_special_tokens_are_those_of_the_objective(
    shards: Path, bert: Path, tmp_path: Path
) -> None:
    """Also if the tokenizer, or the model that is continued, is that of another objective."""
    train(shards, tmp_path / "t5", "seq2seq-tiny", 1)
    overrides = {name: value for name, value in SMALL.items() if not name.startswith("model.")}
    made: dict[str, Any] = dict(data=shards, steps=1, overrides=overrides)
    pretrain(source=tmp_path / "t5", objective="infilling", out=tmp_path / "bart", **made)
    whole = ["[CLS]", "the", "dog", "[SEP]"]
    assert firth.load(tmp_path / "bart").tokens("the dog") == whole
    data: dict[str, Any] = dict(tokenizer=tmp_path / "t5", workers=1, valid_fraction=0)
    firth.prepare([SAMPLE], **data, out=tmp_path / "shards")
    train(tmp_path / "shards", tmp_path / "encoder", "encoder-tiny", 1)
    assert firth.load(tmp_path / "encoder").tokens("the dog") == whole
    texts: dict[str, Any] = dict(train=["the dog sat", "a cat sat"], dev=["the dog"])
    texts |= dict(tokenizer=bert, scratch=True, overrides={"steps": 1})
    tuned = firth.finetune("decoder-tiny", task="lm", out=tmp_path / "lm", **texts)
    assert tuned.model.tokens("the dog") == whole[:-1]
    rows: dict[str, Any] = dict(
        train=[("the dog", "x"), ("a cat", "y")] * 4, overrides={"steps": 1}
    )
    tuned = firth.finetune(tuned.path, task="classify", out=tmp_path / "labels", **rows)
    assert firth.load(tuned.path).tokens("the dog") == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        ("encoder-tiny", "AutoModelForMaskedLM"),
        ("decoder-tiny", "AutoModelForCausalLM"),
        ("t5-small", "AutoModelForSeq2SeqLM"),
    ],
)
def test_transformers_computes_the_same_logits(
    preset: str, kind: str, shards: Path, tmp_path: Path
) -> None:
    trained = train(shards, tmp_path, preset, 3)
    theirs = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The dog barked."
    ids = torch.tensor([trained.model.tokenizer.encode(text)])
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids[0].tolist()
    network, length = trained.model.network.eval(), ids.shape[1]
    with torch.no_grad():
        if network.config.has_encoder and network.config.has_decoder:
            reference = theirs(input_ids=ids, decoder_input_ids=ids).logits[0]
            mask = Mask([length])
            memory = network.encode(ids[0], mask)
            hidden = network(ids[0], Mask.causal([length]), memory=memory, memory_mask=mask)
        else:
            reference = theirs(input_ids=ids).logits[0]
            causal = network.config.architecture == "decoder"
            hidden = network(ids[0], Mask.causal([length]) if causal else Mask([length]))
        torch.testing.assert_close(network.logits(hidden), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("draw_loss")
def test_the_files_of_a_run(shards: Path, tmp_path: Path) -> None:
    kinds: list[str] = []
    overrides = {"log_every": 2, "track": "tensorboard"}
    options = {"seed": 3, "overrides": overrides, "callback": lambda kind, _: kinds.append(kind)}
    trained = train(shards, tmp_path, "encoder-tiny", 8, **options)
    run = read_run(tmp_path)
    assert run["finished"]
    assert run["job"]["training"]["seed"] == 3
    assert len(run["data"]["shards"]["sha256"]) == 64
    assert run["versions"]["torch"] == version("torch")
    assert run["results"]["loss"] == trained.loss
    card = (tmp_path / "README.md").read_text()
    assert "encoder-tiny" in card
    assert f"{trained.model.num_parameters:,}" in card
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["kind"] == "validation"]
    assert len(validations) == 2
    assert "«" in validations[-1]["samples"][0]
    assert not (tmp_path / "best").exists() or validations[-1]["loss"] > validations[0]["loss"]
    steps = {line["step"]: line for line in lines if line["kind"] == "step"}
    assert list(steps) == [2, 4, 6, 8]
    speed = {"tokens_per_second", "mfu", "memory"}
    assert {"loss", "learning_rate", "grad_norm", "tokens"} | speed <= set(steps[4])
    assert not speed & set(steps[2])  # the first step includes compilation
    assert not speed & set(steps[6])  # includes a validation
    assert kinds.count("validation") == 2
    for place, kind in enumerate(kinds):
        assert (kind == "validation") == (place > 0 and kinds[place - 1] == "validating")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [event.value for event in events.Scalars("step/loss")]
    assert shown == pytest.approx(losses(tmp_path))


def test_overfitting_is_reported(shards: Path, tmp_path: Path) -> None:
    worse = {"learning_rate": 2.0, "optimizer": "adamw", "schedule": "constant", "warmup": 0.9}
    train(shards, tmp_path, "decoder-tiny", overrides=worse)
    found = losses(tmp_path, "validation")
    [note] = notes(tmp_path)
    assert found[-1] > min(found)
    assert f"{min(found):.3f}" in note
    assert f"{found[-1]:.3f}" in note
    repeated = any(line.get("epoch") for line in read_metrics(tmp_path))
    assert ("overfits" in note, "seen twice" in note) == (repeated, not repeated)
    assert firth.load(tmp_path / "best").config == firth.load(tmp_path).config


def test_the_baseline_of_the_plot_is_of_the_plotted_loss(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, float] = {}

    def plot(path: Path, runs: Any, unigram_loss: float, metric: str) -> None:
        drawn[metric] = unigram_loss

    monkeypatch.setattr("firth.jobs.pretraining.plot_loss", plot)
    train(shards, tmp_path / "a", "seq2seq-tiny", 2)
    train(shards, tmp_path / "b", "decoder-tiny", 2, objective="hybrid")
    assert set(drawn) == {"denoising", "masked"}  # the first of the hybrid's two, not their sum
    assert 0.5 * drawn["masked"] < drawn["denoising"] < 0.9 * drawn["masked"]  # sentinels are known


@pytest.fixture(scope="module")
def bert(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of BERT with masked tokens only."""
    out = tmp_path_factory.mktemp("bert") / "run"
    train(shards, out, "bert-tiny", 2, objective="masked")
    return out


def test_another_objective_continues_from_a_run(bert: Path, shards: Path, tmp_path: Path) -> None:
    trained = train(shards, tmp_path, "bert-tiny", 2, objective="masked-nsp", source=bert)
    assert set(trained.model.network.heads) == {"language", "pair", "pooler"}
    assert read_run(tmp_path)["parents"]["source"]["path"] == str(bert)
    begun = build(trained.config, Tokenizer.load(shards)).network.state_dict()
    for name, tensor in firth.load(bert).network.state_dict().items():
        assert torch.equal(begun[name], tensor), name


def test_models_that_do_not_fit_are_refused(bert: Path, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(MismatchError, match="num_layers 2"):
        train(shards, out, "bert-tiny", source=bert, overrides={"model.num_layers": 1})
    with pytest.raises(UsageError, match=r"teacher .*'causal'"):
        train(shards, out, "decoder-tiny", teacher=bert, objective="causal")
    assert not out.exists()


def test_distillation(shards: Path, tmp_path: Path) -> None:
    deep = {"model.num_layers": 4}
    train(shards, tmp_path / "teacher", "bert-tiny", 2, objective="masked", overrides=deep)
    student = tmp_path / "student"
    trained = train(shards, student, "distilbert-base", 4, teacher=tmp_path / "teacher")
    assert trained.family == "distilbert"
    *_, last = (line for line in read_metrics(student) if line["kind"] == "step")
    assert {"soft targets", "cosine", "masked", "soft targets accuracy"} <= set(last)
    assert "cosine accuracy" not in last


# The compiler causes warnings of its own.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "option", ["activation_checkpointing", pytest.param("compile", marks=pytest.mark.nightly)]
)
def test_compiled_and_recomputed_runs_have_the_same_loss(
    option: str, shards: Path, tmp_path: Path
) -> None:
    plain = train(shards, tmp_path / "plain", "encoder-tiny", 3)
    assert plain.loss is not None
    again = train(shards, tmp_path / option, "encoder-tiny", 3, overrides={option: "true"})
    assert again.loss == pytest.approx(plain.loss, rel=1e-5)


def test_a_run_without_validation_text(shards: Path, tmp_path: Path, sample: Path) -> None:
    options = {"tokenizer": shards, "out": tmp_path / "shards", "valid_fraction": 0.0}
    firth.prepare([sample], workers=1, **options)
    trained = train(tmp_path / "shards", tmp_path / "run", "encoder-tiny", 3)
    assert trained.loss is None
    assert "| validation | none |" in (tmp_path / "run/README.md").read_text()


def test_hybrid_micro_batches_keep_both_losses(shards: Path, tmp_path: Path) -> None:
    overrides = {"micro_batch_tokens": 32, "log_every": 1}
    train(shards, tmp_path, "decoder-tiny", 3, objective="hybrid", overrides=overrides)
    steps = [line for line in read_metrics(tmp_path) if line["kind"] == "step"]
    assert len(steps) == 3
    assert all({"causal", "masked"} <= set(line) for line in steps)


def test_runs_and_files_are_not_overwritten(bert: Path, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out, fact in (
        (tmp_path, "holds no run"),
        (tmp_path / "file", "is a file"),
        (bert, "a finished run"),
    ):
        with pytest.raises(UsageError, match=fact):
            train(shards, out, "bert-tiny", 2, objective="masked")
    with pytest.raises(UsageError, match="is finished"):
        train(shards, bert, "bert-tiny", 2, objective="masked", resume=True)
