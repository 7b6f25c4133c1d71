"""Probes of one layer, and of a learned weighting of all layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.adapt.apply import get_adapters
from firth.jobs.evaluation import evaluate
from firth.jobs.exporting import export
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.jobs.sweep import strategies
from firth.model import Model, load
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import TINY, Files, coloured, sums
from tests.nightly import mostly_nightly, pairs_mostly_nightly

ALL = ("encoder", "decoder", "encoder-decoder")
FEW = TINY | {"steps": 3, "learning_rate": 1e-2}
Probe = Callable[..., FinetuneResult]


@pytest.fixture
def probe(models: dict[str, Path], task_files: dict[str, Files], tmp_path: Path) -> Probe:
    """Probe a layer of a tiny network."""

    def run(layer: str, model: Any = "encoder", task: str = "classify", **options: Any) -> Any:
        train, dev = task_files[task]
        given = {"train": train, "dev": dev, "out": tmp_path / f"{layer}-{task}"} | options
        given["overrides"] = FEW | given.get("overrides", {})
        strategy = f"probe:layer={layer}" if layer else "probe"
        base = models[model] if isinstance(model, str) else model
        return finetune(base, task=task, **{"strategy": strategy} | given)

    return run


@pytest.mark.parametrize(("architecture", "layer"), pairs_mostly_nightly(ALL, [0, 1, 2]))
def test_the_features_are_the_hidden_states_of_the_layer(
    architecture: str, layer: int, probe: Probe
) -> None:
    """By hand: the head's matrix times the mean of the hidden states."""
    tuned = probe(str(layer), architecture)
    model = load(tuned.path)
    text = "dog red river"
    mean = model.hidden_states(text)[layer].mean(0)
    output = model.network.heads["classify"].get_submodule("output")
    with torch.no_grad():
        expected = output(mean).softmax(0)
    scores = model.predict(text)["scores"]
    assert [scores[label] for label in model.config.labels] == pytest.approx(
        expected.tolist(), abs=1e-6
    )
    assert model.config.label_input_layer == (layer if layer < 2 else None)


def test_the_last_layer_is_that_of_a_plain_probe(probe: Probe) -> None:
    plain, *others = (probe(layer) for layer in ("", "2", "-1", "last"))
    for other in others:
        assert sums(other.path) == sums(plain.path) != {}
        assert other.model.config == plain.model.config


@pytest.fixture
def forgetful(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A network whose blocks return the same for every input: their norms multiply by zero."""
    model = load(save("bert-tiny", tokenizer, tmp_path / "bert"))
    with torch.no_grad():
        for block in model.transformer.stack.blocks:
            for norm in (block.attention_norm, block.feed_forward_norm):
                for parameter in norm.parameters():
                    parameter.zero_()
    model.save(tmp_path / "forgetful")
    return tmp_path / "forgetful"


def test_an_answer_in_the_embeddings_is_found_there(
    forgetful: Path, probe: Probe, tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path)
    files = {"train": train, "dev": dev}
    assert probe("0", forgetful, **files).metrics["accuracy"].value == 1.0
    assert probe("-1", forgetful, **files).metrics["accuracy"].value == 0.5
    overrides = {"steps": 60, "learning_rate": 3e-2}
    mix = probe("mix", forgetful, overrides=overrides, **files)
    assert mix.metrics["accuracy"].value > 0.9
    stored = json.loads((mix.path / "run.json").read_text())["results"]
    weights = stored["layer_weights"]
    assert sum(weights) == pytest.approx(1.0)
    assert weights[0] == max(weights) > 0.5
    assert stored["gamma"] > 1.0
    (note,) = [note for note in mix.notes if "embeddings" in note]
    assert f"embeddings {weights[0]:.1%}" in note
    assert note in (mix.path / "README.md").read_text()


def test_layers_are_compared_in_one_table(
    models: dict[str, Path], task_files: dict[str, Files], tmp_path: Path
) -> None:
    train, dev = task_files["classify"]
    options = {"model": models["encoder"], "task": "classify", "train": train, "dev": dev}
    specs = ["probe:layer=0", "probe:layer=mix"]
    swept = strategies(specs, tmp_path / "runs", overrides=FEW, **options)
    one, mix = swept.values()["runs"]
    assert len(mix["layer_weights"]) == 3
    assert "layer_weights" not in one


TASKS = ["classify", "pair", "regress", "choice", "tag", "span"]


@pytest.mark.parametrize(
    ("architecture", "task"),
    [*(("encoder", task) for task in TASKS), ("decoder", "tag"), ("encoder-decoder", "classify")],
)
@pytest.mark.parametrize("layer", mostly_nightly(["1", "mix"], always=["mix"]))
def test_every_task_is_saved_and_loaded(
    layer: str, architecture: str, task: str, probe: Probe, task_files: dict[str, Files]
) -> None:
    tuned, dev = probe(layer, architecture, task), task_files[task][1]
    assert predict(tuned.path, data=dev).answers == predict(tuned.model, data=dev).answers
    metrics = evaluate(tuned.path, data=dev).values()["metrics"]
    assert metrics == tuned.values()["metrics"]


@pytest.mark.nightly
def test_a_model_in_memory_is_saved_whole_and_continued(
    models: dict[str, Path], probe: Probe, task_files: dict[str, Files], tmp_path: Path
) -> None:
    """The model_type is firth, as `transformers` has no such head; later runs may read a layer."""
    memory = load(models["encoder"])
    whole = probe("mix", Model(memory.network, memory.tokenizer))
    assert json.loads((whole.path / "config.json").read_text())["model_type"] == "firth"
    dev, still = task_files["classify"][1], {"learning_rate": 0.0}
    for strategy in ("full", "lora:2"):  # the same labels keep the head and the mix
        again = probe(
            "mix", whole.path, strategy=strategy, overrides=still, out=tmp_path / strategy
        )
        scores = [
            [answer["scores"]["x"] for answer in predict(path, data=dev).answers]
            for path in (whole.path, again.path)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    plain = probe("", whole.path)
    assert plain.metrics == probe("2", models["encoder"]).metrics
    loaded = load(plain.path)
    assert get_adapters(loaded.network)
    assert predict(loaded, data=dev).answers == predict(plain.model, data=dev).answers
    tagged = probe("1", plain.path, "tag")  # from the probe of another task
    assert tagged.model.config.label_input_layer == 1
    assert "mix" not in tagged.model.network.heads


@pytest.mark.parametrize(("layer", "fact"), [("1", "classify of layer 1"), ("mix", "mix")])
def test_a_probe_of_other_layers_is_not_exported(
    layer: str, fact: str, probe: Probe, tmp_path: Path
) -> None:
    with pytest.raises(MismatchError, match=f"transformers has no .*{fact}"):
        export(probe(layer).path, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.mark.nightly
def test_dry_runs_and_cross_validation(probe: Probe, task_files: dict[str, Files]) -> None:
    row = probe("mix", dry_run=True).rows[0]
    whole = probe("mix", dev=None, limit=12)  # too few to hold out any
    assert whole.evaluated_on == "cross-validation"
    assert row.trainable_parameters == whole.trainable_parameters == 2 * 32 + 2 + 3 + 1


@pytest.mark.parametrize(
    ("layer", "model", "task", "facts"),
    [
        ("3", "encoder", "classify", ("probe:layer=3", "0 (embeddings) to 2")),
        ("-4", "encoder", "tag", ("probe:layer=-4", "-3 to -1")),
        ("top", "encoder", "classify", ("last or mix", "'top'")),
        ("mix", "encoder-decoder", "seq2seq", ("probe:layer=mix", "use probe")),
        ("1", "decoder", "lm", ("probe:layer=1", "use probe")),
    ],
)
def test_layers_that_cannot_be_probed(
    layer: str, model: str, task: str, facts: tuple[str, ...], probe: Probe, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        probe(layer, model, task)
    assert all(fact in str(error.value) for fact in facts)
    assert not list(tmp_path.iterdir())
