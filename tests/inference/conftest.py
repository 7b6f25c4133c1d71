"""Tiny models with tokenizers, untrained or trained on six sentences; the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from firth import Model, Tokenizer, train_tokenizer
from firth.cli.app import app
from firth.inference.generation.special_tokens import as_list
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.tokenizers.special_tokens import with_special_tokens
from tests.conftest import SAMPLE, standard_input

SIZE = 400
SAMPLE_FILE = Path(__file__).parents[1] / "sample.txt"
UNUSUAL = "The sea was calm, and don't they know: 日本語 🙂 naïve—it's fine.\n\nA boat!"
KINDS: dict[str, dict[str, Any]] = {
    "wordpiece": dict(vocab_size=420, specials="bert"),
    "bpe": dict(vocab_size=420, specials="roberta"),
    "bpe-word": dict(vocab_size=420),
    "unigram": dict(vocab_size=300),
    "char": dict(vocab_size=60),
}
TOKENIZERS = {"wordpiece": "bert", "bpe": "gpt2"}
MakeModel = Callable[..., Model]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """One that adds special tokens to a text, and one that does not."""
    options: dict[str, Any] = dict(vocab_size=SIZE, workers=1)
    return {
        kind: train_tokenizer([SAMPLE_FILE], kind=kind, specials=specials, **options)[0]
        for kind, specials in TOKENIZERS.items()
    }


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One tokenizer of each kind, which know the letters of `UNUSUAL`."""
    file = tmp_path_factory.mktemp("text") / "unusual.txt"
    file.write_text(UNUSUAL, encoding="utf-8")
    return {
        kind: train_tokenizer([SAMPLE_FILE, file], kind=kind, workers=1, **options)[0]
        for kind, options in KINDS.items()
    }


def with_own_special_tokens(tokenizer: Tokenizer, config: TransformerConfig) -> Tokenizer:
    """Make a tokenizer add the special tokens of GPT, T5 or BART that a config names."""
    begin, end = map(as_list, (config.bos_token_id, config.eos_token_id))
    if config.architecture == "decoder":
        return with_special_tokens(tokenizer, begin, [])
    if config.architecture == "encoder":
        return tokenizer
    is_bart = config.decoder_start_token_id == config.eos_token_id
    return with_special_tokens(tokenizer, begin if is_bart else [], end)


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
        return Model(network, with_own_special_tokens(tokenizers[tokenizer], config))

    return make


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `firth …` in the temporary directory and in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path | int, input: str = "") -> Any:
        with standard_input(input):
            return CliRunner().invoke(app, [str(word) for word in arguments])

    return run


@pytest.fixture
def bert(make_model: MakeModel, tmp_path: Path) -> Path:
    """A directory with a small BERT."""
    make_model("bert-tiny").save(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def decoder(make_model: MakeModel) -> Model:
    """A small GPT-2 without a beginning-of-text token."""
    return make_model("gpt2", "bpe", bos_token_id=None, eos_token_id=0, tie_embeddings=True)


@pytest.fixture
def gpt(decoder: Model, tmp_path: Path) -> Path:
    """A directory with the small GPT-2."""
    decoder.save(tmp_path / "gpt")
    return tmp_path / "gpt"


TEXTS = [line[:80] for line in SAMPLE.splitlines() if line.strip()][:11]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of texts, one per line."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    os.utime(path, (1e9, 1e9))
    return path


SENTENCES = [
    "The dog barked at the mailman.",
    "The cat slept on the warm table.",
    "The girl walked home from school.",
    "The boy played with the small boat.",
    "An old woman carried water from the river.",
    "The farmer sold apples at the market.",
]


def memorize(
    passages: list[str], folder: Path, preset: str, steps: int, objective: str | None = None
) -> Path:
    """Pre-train a small model on passages until it knows them by heart."""
    text, shards, run = folder / "text.txt", folder / "shards", folder / "run"
    text.write_text("\n\n".join(passages), encoding="utf-8")
    options: dict[str, Any] = dict(kind="wordpiece", vocab_size=140, lowercase=True, sentinels=10)
    train_tokenizer([text], workers=1, **options)[0].save(folder / "tokenizer")
    prepare([text], tokenizer=folder / "tokenizer", out=shards, valid_fraction=0, workers=1)
    overrides = {"model.hidden_size": 64, "model.num_heads": 2, "model.ffn_size": 128}
    overrides |= {"max_length": "48", "batch_tokens": "512", "learning_rate": "5e-3"}
    options = dict(objective=objective, steps=steps, precision="fp32", overrides=overrides)
    pretrain(preset=preset, data=shards, out=run, **options)
    return run
