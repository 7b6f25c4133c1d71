"""A model in a directory: what goes in comes out, and what cannot be read is refused in a sentence.

That every family is read and written as `transformers` does it, `tests/parity` shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from firth.formats.huggingface.directory import FAMILIES, family_of, read_network, write_network
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import FirthError, InputError, MismatchError
from tests.formats.helpers import error_sentence, is_mapped, measure_memory
from tests.parity.reference_models import DEBERTA

SIZE = dict(vocab_size=40, hidden_size=16, num_layers=2, num_heads=4, ffn_size=24, max_positions=32)
BERT = TransformerConfig(
    architecture="encoder", num_segments=2, head_transform=True, head_bias="trained", **SIZE
)
ROTARY = TransformerConfig(
    **dict(architecture="encoder-decoder", position_embedding="rotary", num_decoder_layers=3),
    **dict(norm="rms", norm_position="both", norm_bias=False, gated=True),
    **dict(num_kv_heads=2, tie_embeddings=False),
    **SIZE,
)


def network(config: TransformerConfig, *heads: str) -> Transformer:
    return initialise(Transformer(config, heads), seed=1).eval()


def assert_same(first: Transformer, second: Transformer) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    outside = dict(initialization="", init_std=0.0, family="")  # what no weight depends on
    assert {**first.config.to_dict(), **outside} == {**second.config.to_dict(), **outside}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BERT."""
    assert write_network(network(BERT, "language"), tmp_path / "bert") == "bert"
    return tmp_path / "bert"


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """A network of a shape that no family has."""
    assert write_network(network(ROTARY, "language"), tmp_path / "own") == "firth"
    return tmp_path / "own"


def change(folder: Path, **values: Any) -> None:
    """Other values in the configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def refusal(folder: Path, kind: type[FirthError] = InputError) -> str:
    return error_sentence(read_network, folder, kind)


# --- what goes in comes out


def test_a_shape_of_no_family_comes_back(native: Path) -> None:
    first, second = network(ROTARY, "language"), read_network(native).eval()
    assert list(second.heads) == ["language"]
    assert_same(first, second)
    source, target = Mask([4, 7]), Mask.causal([3, 2])
    logits = []
    for model in (first, second):
        memory = model.encode(torch.arange(11), source)
        hidden = model(torch.arange(5), target, memory=memory, memory_mask=source)
        logits.append(model.logits(hidden))
    assert torch.equal(*logits)


def test_a_head_of_no_family_makes_it_our_own(tmp_path: Path) -> None:
    first = network(BERT, "language", "boundary")
    assert write_network(first, tmp_path) == "firth"
    assert_same(first, read_network(tmp_path))


def test_a_family_is_kept_where_several_have_the_shape(tmp_path: Path) -> None:
    config = TransformerConfig.from_dict({**BERT.to_dict(), "family": "electra"})
    assert family_of(BERT).name == "bert"
    assert family_of(config).name == "electra"
    assert family_of(BERT, ["replaced"]).name == "electra"
    assert write_network(network(config, "language"), tmp_path) == "electra"
    assert read_network(tmp_path).config.family == "electra"
    assert_same(network(config, "language"), read_network(tmp_path))


def test_numbers_are_converted_when_written_or_read(folder: Path, tmp_path: Path) -> None:
    first = network(BERT, "language")
    write_network(first, tmp_path / "half", dtype=torch.bfloat16)
    assert first.tokens.weight.dtype == torch.float32
    for path, dtype in ((folder, torch.float32), (tmp_path / "half", torch.bfloat16)):
        assert {file.name for file in path.iterdir()} == {"config.json", "model.safetensors"}
        assert f"torch.{json.loads((path / 'config.json').read_text())['dtype']}" == str(dtype)
        stored = load_file(path / "model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {dtype}
    first.to(torch.bfloat16)
    assert_same(first, read_network(tmp_path / "half"))
    assert_same(first, read_network(folder, dtype=torch.bfloat16))


# --- memory


def test_weights_stay_in_the_file(folder: Path) -> None:
    model, file = read_network(folder), folder / "model.safetensors"
    block = model.get_submodule("encoder.blocks.0")
    assert is_mapped(file, model.tokens.weight)
    assert is_mapped(file, block.feed_forward.down.weight)
    assert is_mapped(file, block.attention.qkv.weight)  # three tensors, one after another
    before = file.read_bytes()
    with torch.no_grad():
        model.tokens.weight.zero_()
    assert file.read_bytes() == before


def test_matrices_that_are_apart_in_the_file_are_joined_by_copying(folder: Path) -> None:
    model, file = read_network(folder), folder / "model.safetensors"
    apart = folder / "apart"
    apart.mkdir()
    (apart / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(load_file(file), apart / file.name, metadata={"format": "pt"})  # in order of names
    copied = read_network(apart)
    qkv = copied.get_submodule("encoder.blocks.0.attention.qkv")
    assert not is_mapped(apart / file.name, qkv.weight)
    assert is_mapped(apart / file.name, copied.tokens.weight)
    assert_same(model, copied)


LOAD = """
from firth.formats.huggingface.directory import read_network

before = peak()
for parameter in read_network(Path(sys.argv[1])).parameters():
    parameter.detach().sum()  # touch every page
print(peak() - before)
"""


@pytest.mark.nightly
def test_loading_takes_the_memory_of_the_weights_and_little_more(tmp_path: Path) -> None:
    size = dict(vocab_size=8000, hidden_size=1024, num_layers=4, num_heads=16, ffn_size=4096)
    config = replace(BERT, **size, max_positions=64, head_dim=64, num_kv_heads=16)
    assert write_network(Transformer(config, ["language"]), tmp_path) == "bert"
    file = (tmp_path / "model.safetensors").stat().st_size
    assert file > 200e6
    assert measure_memory(LOAD, tmp_path)[0] < 1.3 * file


# --- what cannot be read


def test_no_directory_or_no_configuration(tmp_path: Path, folder: Path) -> None:
    assert "is not a directory" in refusal(tmp_path / "nowhere")
    (folder / "config.json").unlink()
    assert "there is no config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{not json", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        ('{"model_type": 1' + "0" * 5000 + "}", "is not JSON"),
        ("[1, 2]", "has no model_type"),
        ('{"model_type": 7}', "has no model_type"),
        (" " * 20_000_000, "too large"),
        ('{"model_type": "bert"}', "lacks vocab_size"),
        ('{"model_type": "firth", "model": [1]}', '"model"'),
    ],
)
def test_no_json(folder: Path, text: str | bytes, said: str) -> None:
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert said in refusal(folder)


def test_an_unknown_family(folder: Path) -> None:
    change(folder, model_type="bloom")
    message = refusal(folder)
    assert "'bloom'" in message
    assert all(family.name in message for family in FAMILIES)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(num_attention_heads=5), "5"),
        (dict(hidden_act="tanhshrink"), "activation 'tanhshrink'"),
        (dict(hidden_act=["gelu"]), "invalid value"),
        (dict(hidden_size="16"), "hidden_size of a model config is int, not '16'"),
        (dict(hidden_size=-16), "hidden_size must be between 1 and"),
        (dict(num_hidden_layers=10**9), "num_layers must be between 1 and 10,000"),
        (dict(hidden_dropout_prob=1.5), "dropout must be between 0 and 1, not 1.5"),
        (dict(is_decoder=True), "is_decoder = True"),
        (dict(position_embedding_type="relative_key"), "only 'absolute'"),
    ],
)
def test_a_value_that_cannot_be(folder: Path, values: dict[str, Any], said: str) -> None:
    change(folder, **values)
    message = refusal(folder)
    assert said in message
    assert message.startswith("/config.json")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(hiden_size=16), "no field 'hiden_size'; did you mean hidden_size?"),
        (dict(num_layers=2.0), "num_layers of a model config is int, not 2.0"),
        (dict(norm="batch"), "norm cannot be 'batch'; known are layer, rms"),
        (dict(head_dim=5), "head_dim, not 5"),
        (dict(num_kv_heads=3), "num_kv_heads"),
        (dict(windowed_layers=[0]), "window of at least 1"),
        (dict(windowed_layers=[9], window=2), "windowed_layers must be indices from 0 to 1"),
    ],
)
def test_a_value_of_our_own_that_cannot_be(native: Path, values: dict[str, Any], said: str) -> None:
    change(native, model={**ROTARY.to_dict(), **values})
    assert said in refusal(native)


@pytest.mark.parametrize(
    ("family", "values", "said"),
    [
        ("albert", dict(num_hidden_groups=2), "num_hidden_groups = 2"),
        ("deberta-v2", dict(DEBERTA, conv_kernel_size=3), "conv_kernel_size = 3"),
        ("deberta-v2", dict(DEBERTA, pos_att_type=["c2p"]), "pos_att_type = ['c2p']"),
        ("deberta-v2", dict(DEBERTA, position_buckets=-1), "without position_buckets"),
        ("deberta-v2", dict(DEBERTA, embedding_size=4), "embedding_size is 4"),
        ("mobilebert", dict(normalization_type="layer_norm"), "normalization_type = 'layer_norm'"),
        ("mpnet", dict(relative_attention_num_buckets=64), "relative_attention_num_buckets = 64"),
        ("xlm", dict(asm=True), "asm = True"),
        ("xlm", dict(n_langs=15), "its 15 languages"),
        ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        ("llama", dict(attention_bias=True), "attention_bias = True"),
        ("llama", dict(rope_parameters=None, rope_scaling=dict(type="dynamic")), "'dynamic'"),
        ("llama", dict(rope_parameters=None, rope_scaling=dict(type="linear")), "factor"),
        ("qwen3", dict(attention_bias=True), "attention_bias = True"),
        ("gemma3_text", dict(final_logit_softcapping=30.0), "final_logit_softcapping = 30.0"),
        ("bart", dict(decoder_ffn_dim=9), "decoder_ffn_dim is 9"),
        ("mbart", dict(tie_word_embeddings=False), "tie_word_embeddings = False"),
        ("modernbert", dict(decoder_bias=False), "decoder_bias = False"),
    ],
)
def test_what_a_family_has_and_we_do_not(
    tmp_path: Path, family: str, values: dict[str, Any], said: str
) -> None:
    usual = AutoConfig.for_model(family).to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**usual, **values}))
    assert said in refusal(tmp_path)


# --- weights


ATTENTION = "bert.encoder.layer.0.attention.self"
ADAPTERS = [f"bert.encoder.layer.{i}.adapter.weight" for i in range(2)]
Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
DAMAGED: dict[str, tuple[Change, list[str]]] = {
    "missing": (
        lambda held: {name: held[name] for name in held if ".layer.1." not in name},
        ["lacks 16 weights", "layer.1.attention.output.LayerNorm.bias", "and 12 others"],
    ),
    "too many": (
        lambda held: held | dict.fromkeys(ADAPTERS, torch.ones(1)),
        ["has more than the model: 2 weights", ", ".join(ADAPTERS)],
    ),
    "a part of another shape": (
        lambda held: held | {f"{ATTENTION}.key.weight": torch.ones(16, 17)},
        [f"{ATTENTION}.key.weight has the shape [16, 17], but its config"],
    ),
    "parts that add up": (
        lambda held: (
            held
            | {f"{ATTENTION}.query.bias": torch.ones(10), f"{ATTENTION}.key.bias": torch.ones(22)}
        ),
        [f"{ATTENTION}.query.bias has the shape [10]"],
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_weights_that_do_not_fit(folder: Path, case: str) -> None:
    (change_weights, facts), file = DAMAGED[case], folder / "model.safetensors"
    save_file({name: t.clone() for name, t in change_weights(load_file(file)).items()}, file)
    message = refusal(folder, MismatchError)
    assert message.startswith("/model.safetensors")
    assert all(fact in message for fact in facts), message
