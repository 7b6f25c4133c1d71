"""ULMFiT: the language model is fine-tuned on the task's texts before the classifier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.model import Model
from firth.models.initialization import initialise
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.run_directory import read_run
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.toys import TOYS, sums
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at

SIX = {"steps": 6, "batch_size": 4, "max_length": 32, "precision": "fp32", "checkpoint_every": 2}
SETTINGS = SIX | {f"lm.{name}": value for name, value in SIX.items()}


@pytest.fixture(scope="module")
def awd_lstm(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids = tokenizer.special_ids
    sizes = dict(hidden_size=16, lstm_size=24, vocab_size=len(tokenizer))
    roles = dict(pad_token_id=ids["pad"], bos_token_id=ids["cls"], eos_token_id=ids["sep"])
    config = replace(preset("awd-lstm").config, num_layers=2, **sizes, **roles)
    network = initialise(build_network(config, ["language"]), seed=0)
    path = tmp_path_factory.mktemp("awd") / "model"
    Model(network, tokenizer).save(path)
    return path


def tune(model: Path | str, folder: Path, name: str = "run", **options: Any) -> FinetuneResult:
    train, dev = TOYS["classify"](folder)
    given = {"recipe": "ulmfit", "overrides": SETTINGS, "limit": 16, "dev": dev} | options
    return finetune(model, task="classify", train=train, out=folder / name, **given)


def test_both_stages_are_runs(awd_lstm: Path, tmp_path: Path) -> None:
    result = tune(awd_lstm, tmp_path)
    stage = result.values()["language_model"]
    assert stage["loss"] < stage["loss_before"]
    assert stage["texts"] > result.examples[0] == 16  # also those that --limit leaves out
    config = result.model.config
    assert (config.pooling, result.config.strategy) == ("concat", "gradual")
    training = read_run(tmp_path / "run/language-model")["job"]["training"]
    assert training["schedule"] == "slanted"
    assert training["optimizer"]["layer_lr_decay"] == pytest.approx(1 / 2.6)
    assert read_run(tmp_path / "run")["parents"]["model"]["path"].endswith("language-model")
    again = firth.load(tmp_path / "run")
    assert again.predict("red")["label"] == result.model.predict("red")["label"]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("step", mostly_nightly([3, 9], always=[9]))
def test_resumed_equals_uninterrupted(step: int, awd_lstm: Path, tmp_path: Path) -> None:
    """Killed in the first stage, or in the second after the six steps of the first."""
    whole, steps = tune(awd_lstm, tmp_path, "whole"), iter(range(1, 20))

    def kill(state: Any) -> None:
        if next(steps) == step:
            raise Killed

    with pytest.raises(Killed):
        tune(awd_lstm, tmp_path, "stopped", callbacks=replace(kill_at(99), before_step=kill))
    again = tune(awd_lstm, tmp_path, "stopped", resume=True)
    assert sums(again.path) == sums(whole.path) != {}
    assert sums(again.path / "language-model") == sums(whole.path / "language-model")
    assert again.values()["language_model"]["loss"] == whole.values()["language_model"]["loss"]


def test_which_models_it_needs(
    awd_lstm: Path, models: dict[str, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(MismatchError, match="decoder"):
        tune(models["encoder"], tmp_path, "encoder")
    with pytest.raises(UsageError, match="scratch"):
        tune(awd_lstm, tmp_path, "scratch", scratch=True)
    result = tune(models["decoder"], tmp_path, "decoder")  # a Transformer
    assert result.model.config.pooling == "concat"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full", "probe", "freeze:1", "gradual"])
def test_strategies_of_a_recurrent_network(strategy: str, awd_lstm: Path, tmp_path: Path) -> None:
    options = {"recipe": None, "strategy": strategy, "overrides": SIX}
    result = tune(awd_lstm, tmp_path, **options)
    before, after = firth.load(awd_lstm).network, result.model.network
    name = "decoder.blocks.0.rnn.weight_hh_l0"
    same = torch.equal(before.get_parameter(name), after.get_parameter(name))
    assert same == (strategy in ("probe", "freeze:1"))
    assert firth.load(result.path).predict("red") is not None


def general_text(folder: Path) -> dict[str, Any]:
    """Options for a small first stage of three steps."""
    text = folder / "general.txt"
    text.write_text("A red apple is good .\nA blue plum is bad .\n" * 40)
    sizes = {"model.hidden_size": 16, "model.lstm_size": 24, "batch_tokens": 256}
    general = {"steps": "3", **sizes}  # as the command line gives it
    overrides = SETTINGS | {f"general.{name}": value for name, value in general.items()}
    return {"general_text": text, "overrides": overrides}


def test_a_preset_is_pretrained_on_general_text_first(tmp_path: Path) -> None:
    result = tune("awd-lstm", tmp_path, **general_text(tmp_path))
    stages = [read_run(result.path / name) for name in ("general-language-model", "language-model")]
    assert stages[0]["results"]["steps"] == 3
    assert stages[1]["parents"]["model"]["path"].endswith("general-language-model")
    assert result.model.require_tokenizer().kind == "word"


@pytest.mark.nightly
def test_pretraining_on_general_text_can_be_resumed(tmp_path: Path) -> None:
    options = general_text(tmp_path)
    whole = tune("awd-lstm", tmp_path, "whole", **options)
    with pytest.raises(Killed):
        tune("awd-lstm", tmp_path, "stopped", callbacks=kill_at(2), **options)
    again = tune("awd-lstm", tmp_path, "stopped", resume=True, **options)
    assert sums(again.path) == sums(whole.path) != {}


def test_general_text_is_for_presets(awd_lstm: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pre-trained already"):
        tune(awd_lstm, tmp_path, general_text=["A text."])
    with pytest.raises(UsageError, match="random weights"):
        tune("awd-lstm", tmp_path)
    with pytest.raises(UsageError, match="ulmfit"):
        tune(awd_lstm, tmp_path, general_text=["A text."], recipe=None)
