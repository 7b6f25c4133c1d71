"""Small models of the hub, and a hub of our own that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM

import firth
from tests.formats.local_hub import Hub, files_of

SIZE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the a dog sea sun is was calm . ,".split()]
NEEDED = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
UNNEEDED = dict.fromkeys(
    """README.md .gitattributes pytorch_model.bin tf_model.h5 flax_model.msgpack rust_model.ot
    onnx/model.onnx onnx/config.json openvino/openvino_model.bin original/consolidated.00.pth
    model.fp16.safetensors training_args.bin optimizer.pt checkpoints/step-1/model.safetensors
    runs/events eval/config.json""".split(),
    b"not needed",
)


def made(seed: int) -> BertForMaskedLM:
    torch.manual_seed(seed)
    return BertForMaskedLM(
        BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **SIZE)
    ).eval()


def saved(folder: Path, seed: int, **options: Any) -> dict[str, bytes]:
    """A model with its tokenizer as `transformers` writes it, as files of a repository."""
    made(seed).save_pretrained(folder, **options)
    vocabulary = models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    Tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    roles = {"mask_token": "[MASK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    roles |= {"sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return files_of(folder)


def refusal(source: str, **options: Any) -> str:
    """The one sentence that says why a model is not opened."""
    with pytest.raises(firth.InputError) as refused:
        firth.load(source, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def seed_of(model: firth.Model) -> int:
    """Which of the models it is, by every weight of the stack."""
    for seed in (1, 2):
        theirs = made(seed).state_dict()["bert.embeddings.word_embeddings.weight"]
        if torch.equal(model.network.state_dict()["tokens.weight"], theirs):
            return seed
    raise AssertionError("none of them")


def pickled(files: dict[str, bytes], tmp_path: Path) -> dict[str, bytes]:
    """The first model as older versions of `transformers` wrote it."""
    torch.save(made(1).state_dict(), tmp_path / "pickle")
    rest = {name: data for name, data in files.items() if name != "model.safetensors"}
    return rest | {"pytorch_model.bin": (tmp_path / "pickle").read_bytes()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return saved(tmp_path_factory.mktemp("first"), 1)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same model with other weights."""
    return saved(tmp_path_factory.mktemp("second"), 2)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of our own and an empty cache, for this process and for those it starts."""
    hub, constants = Hub(), huggingface_hub.constants
    home = tmp_path / "hf"
    for name, value in {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": 0}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(home / "none"), raising=False)
    yield hub
    hub.stop()


@pytest.fixture
def tiny(hub: Hub, files: dict[str, bytes]) -> Hub:
    """The hub with the first model as org/tiny."""
    hub.repository("org/tiny").push(files)
    return hub
