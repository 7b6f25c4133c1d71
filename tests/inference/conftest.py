"""Tiny models that understand text, for what people do with a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from firth import Model, Tokenizer, train_tokenizer
from firth.cli.app import app
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from tests.conftest import SAMPLE

SIZE = 400
TOKENIZERS = {"wordpiece": "bert", "bpe": "gpt2"}
MakeModel = Callable[..., Model]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One that puts tokens around a text, and one that does not."""
    file = tmp_path_factory.mktemp("text") / "sample.txt"
    file.write_text(SAMPLE, encoding="utf-8")
    options: dict[str, Any] = dict(vocab_size=SIZE, workers=1)
    return {
        kind: train_tokenizer([file], kind=kind, specials=specials, **options)[0]
        for kind, specials in TOKENIZERS.items()
    }


@pytest.fixture
def make_model(tokenizers: dict[str, Tokenizer]) -> MakeModel:
    """A small network of a preset's kind in which every weight makes a difference."""

    def make(name: str, tokenizer: str = "wordpiece", seed: int = 3, **overrides: Any) -> Model:
        row = preset(name)
        size = dict(
            vocab_size=SIZE, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=8
        )
        usual = dict(ffn_size=48, max_positions=64, windowed_layers=(), window=0)
        config = replace(row.config, **{**size, **usual, **overrides})
        network = initialise(Transformer(config, row.heads), seed=seed).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return Model(network, tokenizers[tokenizer])

    return make


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `firth …` in the temporary directory and in this process, which is quicker."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path | int, input: str | None = None) -> Any:
        return CliRunner().invoke(app, [str(word) for word in arguments], input=input)

    return run


@pytest.fixture
def bert(make_model: MakeModel, tmp_path: Path) -> Path:
    """A directory with a small BERT."""
    make_model("bert-tiny").save(tmp_path / "bert")
    return tmp_path / "bert"
