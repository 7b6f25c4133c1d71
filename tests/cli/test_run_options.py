"""Options of verbs: the documented fields of configs; each gives the same run as `--set`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import firth as api
from firth import Model
from firth.data.memory import Data
from firth.inference.generation.generation_config import GenerationConfig
from firth.jobs.inspect_config import InspectConfig
from firth.jobs.job_configs import FinetuneConfig, PretrainConfig
from firth.jobs.prompt_config import PromptConfig
from firth.jobs.report_config import ReportConfig
from firth.model import AnyModel
from firth.study.study_config import StudyConfig
from firth.utils.config_fields import Doc, flag
from firth.utils.devices import Device, Dtype
from tests.cli.test_cli import commands
from tests.conftest import Result

Firth = Callable[..., Result]

PRETRAIN = {
    "--lr": ("learning_rate", "2e-3"),
    "--batch-tokens": ("batch_tokens", "64:0.5,128"),
    "--max-length": ("max_length", "16:0.8,32"),
    "--warmup": ("warmup", "0.25"),
    "--weight-decay": ("weight_decay", "0.02"),
    "--optimizer": ("optimizer", "muon"),
    "--precision": ("precision", "fp32"),
    "--mask-prob": ("objective.mask_prob", "0.3-0.15"),
}
FINETUNE = {
    "--lr": ("learning_rate", "3e-4"),
    "--epochs": ("epochs", "1"),
    "--batch-size": ("batch_size", "4"),
    "--max-length": ("max_length", "24"),
    "--warmup": ("warmup", "0.25"),
    "--weight-decay": ("weight_decay", "0.02"),
    "--precision": ("precision", "fp32"),
}


@pytest.fixture
def shards(sample: Path, tmp_path: Path) -> Path:
    tokenizer, _ = api.train_tokenizer(
        [sample], kind="wordpiece", vocab_size=400, sentinels=10, workers=1
    )
    tokenizer.save(tmp_path / "tokenizer")
    api.prepare([sample], tokenizer=tmp_path / "tokenizer", out=tmp_path / "shards", workers=1)
    return tmp_path / "shards"


def as_options(rows: dict[str, tuple[str, str]]) -> list[str]:
    return [word for option, (_, value) in rows.items() for word in (option, value)]


def as_settings(rows: dict[str, tuple[str, str]]) -> list[str]:
    return [word for name, value in rows.values() for word in ("--set", f"{name}={value}")]


def run_config(folder: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(folder, "run.json").read_text())["job"]
    return values


def pretrain_words(shards: Path, out: str, *more: str) -> tuple[Any, ...]:
    model = ("--set", "model.num_layers=1", "--set", "model.hidden_size=24")
    model += ("--set", "model.num_heads=2", "--set", "model.ffn_size=32")
    start = ("pretrain", "--preset", "encoder-tiny", "--data", shards, "--out", out)
    return (*start, "--steps", "2", *model, "--device", "cpu", *more)


def test_pretraining_options_are_those_of_set(firth_here: Firth, shards: Path) -> None:
    for out, words in (("a", as_options(PRETRAIN)), ("b", as_settings(PRETRAIN))):
        done = firth_here(*pretrain_words(shards, out, *words))
        assert done.returncode == 0, done.stderr
    config = run_config("a")
    assert config == run_config("b")
    assert config["training"]["optimizer"]["learning_rate"] == 2e-3
    assert config["training"]["max_length"] == "16:0.8,32"
    assert config["objective_options"]["mask_prob"] == "0.3-0.15"


def test_finetuning_options_are_those_of_set(firth_here: Firth, shards: Path) -> None:
    assert firth_here(*pretrain_words(shards, "base")).returncode == 0
    rows = [f"{word} sea\t{label}" for word, label in (("calm", "a"), ("wild", "b")) * 8]
    Path("train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    start = ("finetune", "base", "--task", "classify", "--train", "train.tsv")
    for out, words in (("a", as_options(FINETUNE)), ("b", as_settings(FINETUNE))):
        done = firth_here(*start, "--out", out, "--device", "cpu", *words)
        assert done.returncode == 0, done.stderr
    config = run_config("a")
    assert config == run_config("b")
    assert config["training"]["epochs"] == 1
    assert config["training"]["batch_size"] == 4
    searched = firth_here(*start, "--out", "c", "--search", "--lr", "1e-3")
    assert searched.returncode == 2
    assert "learning_rate" in searched.error


def test_an_option_given_twice_is_a_usage_error(firth_here: Firth, shards: Path) -> None:
    for option, (name, value) in PRETRAIN.items():
        words = pretrain_words(shards, "out", option, value, "--set", f"{name}={value}")
        refused = firth_here(*words)
        assert refused.returncode == 2
        assert option in refused.error
        assert f"--set {name}=" in refused.error
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("preset", "objective", "named"),
    [
        ("decoder-tiny", "causal", "causal"),
        ("seq2seq-tiny", "span-corruption", "--set objective.noise_density"),
        ("seq2seq-tiny", "infilling", "--set objective.noise_density"),
    ],
)
def test_mask_prob_needs_an_objective_that_masks(
    preset: str, objective: str, named: str, firth_here: Firth, shards: Path
) -> None:
    words = ("--preset", preset, "--objective", objective, "--data", shards, "--out", "out")
    refused = firth_here("pretrain", *words, "--steps", "1", "--mask-prob", "0.3")
    assert refused.returncode == 2
    assert "--mask-prob" in refused.error
    assert named in refused.error
    assert not Path("out").exists()


def test_set_suggests_the_nearest_name(firth_here: Firth, shards: Path) -> None:
    for wrong, right in (("learning_rat", "learning_rate"), ("model.num_layer", "num_layers")):
        refused = firth_here(*pretrain_words(shards, "out", "--set", f"{wrong}=1"))
        assert refused.returncode == 2
        assert wrong in refused.error
        assert right in refused.error


def test_the_options_with_a_setting_are_tested() -> None:
    """What is compared with --set are the training options of both verbs."""
    docs = {
        flag(name): doc
        for config in (PretrainConfig, FinetuneConfig)
        for name, doc in documented(config).items()
    }
    of_recipes = {
        option
        for option, doc in docs.items()
        if "the recipe's" in doc.help or option == "--precision"
    }
    assert {*PRETRAIN, *FINETUNE} == of_recipes - {"--strategy"}


TYPES = {
    "Model": Model,
    "AnyModel": AnyModel,
    "Data": Data,
    "Tokenizer": api.Tokenizer,
    "Device": Device,
    "Dtype": Dtype,
}


def documented(config: Any) -> dict[str, Doc]:
    hints = get_type_hints(config, localns=TYPES, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")
    }


@pytest.mark.parametrize(
    ("verb", "config"),
    [
        ("pretrain", PretrainConfig),
        ("finetune", FinetuneConfig),
        ("generate", GenerationConfig),
        ("prompt", PromptConfig),
        ("inspect", InspectConfig),
        ("report", ReportConfig),
        ("study", StudyConfig),
    ],
)
def test_every_documented_field_is_an_option_with_its_help(verb: str, config: Any) -> None:
    options = {option.name: option for option in commands()[verb].params}
    for name, doc in documented(config).items():
        assert options[name].help.startswith(doc.help)
        assert options[name].opts == (doc.flags or flag(name)).split("/")[0].split()
        assert (
            "Default:" in options[name].help
            or options[name].default is not None
            or options[name].required
        )


@pytest.mark.parametrize(
    ("function", "config", "others"),
    [
        (api.pretrain, PretrainConfig, {"callback", "callbacks"}),
        (api.finetune, FinetuneConfig, {"callback", "callbacks"}),
        (api.prompt, PromptConfig, {"model", "progress"}),
        (api.inspect, InspectConfig, {"model", "progress"}),
        (api.report, ReportConfig, set()),
        (api.run_study, StudyConfig, {"name", "on_result"}),
    ],
)
def test_the_arguments_of_functions_are_the_fields_of_configs(
    function: Any, config: Any, others: set[str]
) -> None:
    parameters, hints = inspect.signature(function).parameters, get_type_hints(function)
    kinds = get_type_hints(config, localns=TYPES)
    assert parameters.keys() == {field.name for field in fields(config)} | others
    for field in fields(config):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        assert parameters[field.name].default == default
        assert hints[field.name] == kinds[field.name], field.name
