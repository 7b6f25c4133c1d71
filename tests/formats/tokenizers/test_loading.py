"""Whatever opens as a model gives its tokenizer, the very one that it is opened with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firth.adapt.apply import apply
from firth.adapt.saving import save_adapter
from firth.formats.tokenizers.loading import holds_tokenizer, load_tokenizer
from firth.jobs.preparation import prepare
from firth.model import Model, load
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import InputError


@pytest.fixture
def model(sample: Path, tmp_path: Path) -> Path:
    """A small encoder in a directory, whose tokenizer keeps upper case."""
    tokenizer, _ = train_tokenizer([sample], kind="wordpiece", vocab_size=300, workers=1)
    Model(Transformer(preset("bert-tiny").config), tokenizer).save(tmp_path / "model")
    return tmp_path / "model"


def agree(source: Path) -> Tokenizer:
    """The tokenizer of a model, which is the one it is opened with."""
    tokenizer, opened = load_tokenizer(source), load(source).tokenizer
    assert opened is not None
    assert tokenizer.fingerprint == opened.fingerprint
    assert tokenizer.special_ids == opened.special_ids
    return tokenizer


def test_of_an_adapter(model: Path, tmp_path: Path) -> None:
    network = load(model).network
    save_adapter(apply(network, "lora:rank=2"), tmp_path / "adapter", base=str(model))
    assert not holds_tokenizer(tmp_path / "adapter")
    assert agree(tmp_path / "adapter").fingerprint == agree(model).fingerprint
    for name in ("firth.json", "adapter_config.json"):  # either will do
        text = (tmp_path / "adapter" / name).read_text()
        (tmp_path / "adapter" / name).unlink()
        assert len(load_tokenizer(tmp_path / "adapter")) == len(load_tokenizer(model))
        (tmp_path / "adapter" / name).write_text(text)


def test_of_an_adapter_that_names_itself(tmp_path: Path) -> None:
    named = {"base_model_name_or_path": str(tmp_path)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(named))
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match=r"adapter_config\.json is not JSON"):
        load_tokenizer(tmp_path)


def test_of_a_sentence_encoder_in_a_folder_that_reads_lower_case(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sentence"
    (folder / "1_Pooling").mkdir(parents=True)
    model.rename(folder / "0_Transformer")
    rows = [
        {"path": path, "type": f"sentence_transformers.models.{path[2:]}"}
        for path in ("0_Transformer", "1_Pooling")
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    settings = folder / "0_Transformer/sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 32, "do_lower_case": True}))
    tokenizer = agree(folder)
    assert tokenizer.encode("The DOG") == tokenizer.encode("the dog")


def test_of_a_gguf_file(sample: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ggufs = pytest.importorskip("tests.formats.gguf_files")
    size = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.LlamaConfig(vocab_size=128, max_position_embeddings=64, **size)
    reference = transformers.LlamaForCausalLM(config)
    file = ggufs.write_reference(tmp_path / "tiny.gguf", "llama", reference)
    tokenizer = agree(file)
    assert tokenizer.encode("the") == [tokenizer.backend.token_to_id(t) for t in ("t", "he")]
    made = prepare([sample], tokenizer=file, out=tmp_path / "shards", workers=1)
    assert load_tokenizer(made.path).fingerprint == tokenizer.fingerprint

    none = {"tokenizer.ggml.model": "none"}
    mute = ggufs.write_reference(tmp_path / "mute.gguf", "llama", reference, **none)
    with pytest.raises(InputError, match=r"mute\.gguf holds a model without a tokenizer"):
        load_tokenizer(mute)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sample.txt", "sample.txt is no model: it is neither a directory"),
        ("./nowhere", r"no model at \./nowhere"),
        ("broken.gguf", r"broken\.gguf"),
    ],
)
def test_what_has_none_is_named(
    name: str, sentence: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(InputError, match=sentence) as raised:
        prepare([sample], tokenizer=name, out="shards")
    assert "\n" not in str(raised.value)
    assert not Path("shards").exists()
