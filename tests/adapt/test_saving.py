"""Saved adapters: their format and size, their base model, and errors that name the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from firth.adapt.apply import AppliedStrategy, apply, merge, remove
from firth.adapt.saving import adapter_base, fingerprint, load_adapter, save_adapter
from firth.formats.huggingface.directory import add_label_head
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import attach_head
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.models.small import KINDS


def tiny(name: str, **fields: Any) -> TransformerConfig:
    """A published shape, made small."""
    size: dict[str, Any] = dict(
        vocab_size=40, hidden_size=16, num_layers=2, num_heads=4, ffn_size=24, max_positions=32
    )
    derived = dict(num_kv_heads=0, head_dim=0, num_decoder_layers=0)
    return replace(preset(name).config, **size | derived | fields)


BERT = tiny("bert-base")


def bert(config: TransformerConfig = BERT, heads: tuple[str, ...] = ("language",)) -> Transformer:
    return initialise(Transformer(config, heads), seed=3).eval()


def saved(spec: str, path: Path, network: Transformer | None = None) -> Path:
    adapted = apply(network or bert(), spec)
    save_adapter(adapted, path, base="tiny")
    return path


def refusal(path: Path, network: Transformer | None = None) -> str:
    with pytest.raises(FirthError) as caught:
        load_adapter(network or bert(), path)
    assert isinstance(caught.value, InputError | MismatchError)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("kind", "spec", "why"),
    [
        ("bert", "lora:rank=2", ""),
        ("bert", "ia3", ""),
        ("bert", "prompt:2", ""),
        ("bert", "prefix:2", ""),
        ("bert", "prefix:length=2,projection=4", ""),
        ("bert", "bitfit", "PEFT has no equivalent of bitfit"),
        ("bert", "adapters:pfeiffer", "PEFT has no equivalent of adapters"),
        ("bert", "probe", "PEFT has no equivalent of probe"),
        ("t5", "prefix:2", "PEFT's prefix is used in decoder self-attention only"),
        ("t5", "prefix:length=2,where=decoder", ""),
        ("albert", "prefix:2", "PEFT ignores a prefix in this architecture"),
        ("albert", "lora:rank=2", ""),
        ("original", "lora:rank=2", "no model family of transformers has this architecture"),
    ],
)
def test_the_layout_is_pefts_where_it_can_be(
    kind: str, spec: str, why: str, tmp_path: Path
) -> None:
    shapes = {"bert": BERT, "t5": tiny("t5-small"), "original": KINDS["original"]}
    shapes["albert"] = tiny("albert-base", embedding_size=8)
    network = bert(shapes[kind])
    result = save_adapter(apply(network, spec), tmp_path, base="tiny")
    assert (result.layout, result.why) == ("firth" if why else "peft", why)
    theirs, ours = {"adapter_config.json", "adapter_model.safetensors"}, {"adapter.safetensors"}
    assert {file.name for file in tmp_path.iterdir()} == {"firth.json"} | (ours if why else theirs)
    about = json.loads((tmp_path / "firth.json").read_text())
    assert about["base"]["sha256"] == fingerprint(network)
    assert (about["layout"], about["why"]) == (result.layout, result.why)
    assert adapter_base(tmp_path) == "tiny"


def test_an_adapter_is_small(tmp_path: Path) -> None:
    """Rank 2 beside query and value, two layers of width 16: 2 x 2 x 2 x (16 + 16) numbers."""
    adapted = apply(bert(), "lora:rank=2,targets=query+value")
    assert adapted.trainable_parameters == 256
    save_adapter(adapted, tmp_path)
    held = load_file(tmp_path / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in held.values()) == 256


def test_another_base_is_refused(tmp_path: Path) -> None:
    for spec in ("lora:rank=2", "bitfit"):
        path = saved(spec, tmp_path / spec[:4])
        other = bert()
        with torch.no_grad():
            other.encoder.blocks[1].feed_forward.down.weight[3, 5] += 1e-4
        digits = fingerprint(bert())[:12]
        assert f"(tiny, SHA-256 {digits}…)" in refusal(path, other)
        assert "in float32 instead of bfloat16" in refusal(path, bert().bfloat16())
        load_adapter(bert(), path)


def test_heads_are_no_part_of_the_base(tmp_path: Path) -> None:
    adapted = load_adapter(bert(heads=()), saved("lora:rank=2", tmp_path))
    assert adapted.trainable_parameters > 0


def without_hash(path: Path) -> Path:
    """As PEFT itself would have written it."""
    (path / "firth.json").unlink()
    return path


@pytest.mark.parametrize(
    ("spec", "other", "message"),
    [
        ("lora:rank=2", tiny("bert-base", hidden_size=24), "this network needs [2, 24]"),
        ("lora:rank=2", tiny("bert-base", num_layers=1), "it holds bert.encoder.layer.1."),
        ("lora:rank=2", tiny("gpt2"), "which this network does not have"),
        ("lora:rank=2", KINDS["original"], "no model family of transformers"),
        ("prefix:2", tiny("bert-base", num_layers=1), "needs [2, 32]"),
        ("prefix:2", tiny("albert-base", embedding_size=8), "PEFT ignores a prefix"),
    ],
)
def test_an_adapter_for_another_network_is_refused(
    spec: str, other: TransformerConfig, message: str, tmp_path: Path
) -> None:
    assert message in refusal(without_hash(saved(spec, tmp_path)), bert(other))


def test_unexpected_tensors_are_refused(tmp_path: Path) -> None:
    """T5's encoder has no table of its own, so that files of models may name one in vain."""
    t5 = tiny("t5-small")
    path = without_hash(saved("lora:rank=2", tmp_path, bert(t5)))
    name = "base_model.model.encoder.embed_tokens.lora_embedding_A"
    stored(lambda held: held.update({name: torch.ones(2, 40)}))(path)
    assert f"it holds {name}" in refusal(path, bert(t5))


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    path = without_hash(saved("lora:rank=2", tmp_path))
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "adapter_model.bin is a pickle file" in refusal(path)


def edit(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply_to(path: Path) -> None:
        values = json.loads((path / file).read_text())
        change(values)
        (path / file).write_text(json.dumps(values))

    return apply_to


def peft_settings(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        without_hash(path)
        edit("adapter_config.json", lambda config: config.update(values))(path)

    return change


def own_settings(**values: Any) -> Callable[[Path], None]:
    return edit("firth.json", lambda about: about.update(values))


def stored(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply_to(path: Path) -> None:
        file = next(path.glob("*.safetensors"))
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return apply_to


def peft_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda path: stored(change)(without_hash(path))


def written(file: str, text: str) -> Callable[[Path], object]:
    return lambda path: (path / file).write_text(text)


@pytest.mark.parametrize(
    ("spec", "damage", "message"),
    [
        ("lora:rank=2", written("firth.json", "{"), "is not JSON"),
        ("lora:rank=2", written("firth.json", "[" * 100_000), "is not JSON"),
        ("lora:rank=2", written("firth.json", "[]"), "is not a JSON object"),
        ("lora:rank=2", written("firth.json", "{}"), "does not describe an adapter ('base')"),
        ("bitfit", own_settings(strategy="magic"), "There is no strategy 'magic'"),
        ("adapters", own_settings(options={"reduction": "x"}), "not 'x'"),
        ("adapters", own_settings(options={"reduction": 1}), "shape [1, 16], but this"),
        ("probe", own_settings(heads=["magic"]), "There is no head 'magic'"),
        ("bitfit", own_settings(model={"architecture": 3}), "is str, not 3"),
        ("bitfit", stored(lambda held: held.popitem()), "it lacks encoder."),
        ("bitfit", stored(lambda held: held.update(x=torch.ones(1))), "it holds x, which"),
        ("lora:rank=2", peft_settings(peft_type="VERA"), "type 'VERA'"),
        ("lora:rank=2", peft_settings(bias="all"), "bias = 'all'"),
        ("lora:rank=2", peft_settings(use_new_idea=True), "use_new_idea = True"),
        ("lora:rank=2", peft_settings(r=10**12), "rank 1000000000000"),
        ("lora:rank=2", peft_settings(r=None), "not 'None'"),
        ("lora:rank=2", peft_settings(r=3), "shape [2, 16], but this network needs [3, 16]"),
        ("lora:rank=2", peft_settings(use_dora=True), "it lacks "),
        ("prompt:2", peft_settings(num_virtual_tokens=10**12), "length 1000000000000"),
        ("prefix:2", peft_settings(num_virtual_tokens=3), "shape [2, 64], but"),
        ("prompt:2", stored(lambda h: h.update(prompt_embeddings=torch.ones(2))), "not two"),
        (
            "prompt:2",
            stored(lambda h: h.update(prompt_embeddings=torch.ones(2, 16, dtype=torch.int8))),
            "prompt_embeddings",
        ),
        ("lora:rank=2", written("adapter_model.safetensors", "x"), "cannot be read as safetensors"),
        ("ia3", peft_weights(lambda held: held.clear()), "it holds no weights"),
    ],
)
def test_damaged_adapters_are_refused(
    spec: str, damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    saved(spec, tmp_path, bert())
    damage(tmp_path)
    network = bert()
    assert message in refusal(tmp_path, network)
    assert list(network.state_dict()) == list(bert().state_dict())


def test_a_directory_without_an_adapter_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "adapter_config.json" in message
    assert "firth.json" in message
    assert adapter_base(tmp_path) is None


def test_unsaveable_strategies_are_refused(tmp_path: Path) -> None:
    network = bert()
    with pytest.raises(UsageError, match=r"full .*save the whole model"):
        save_adapter(apply(network, "full"), tmp_path)
    adapted = apply(network, "lora:rank=2")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        save_adapter(adapted, tmp_path / "file")
    merge(network)
    with pytest.raises(UsageError, match="unmerge"):
        save_adapter(adapted, tmp_path)


def test_a_new_adapter_replaces_one_in_another_layout(tmp_path: Path) -> None:
    saved("lora:rank=2", tmp_path)
    saved("bitfit", tmp_path)
    assert load_adapter(bert(), tmp_path).strategy.name == "bitfit"
    saved("lora:rank=2", tmp_path)
    assert load_adapter(bert(), tmp_path).strategy.name == "lora"


@pytest.mark.parametrize("spec", ["lora:rank=2", "bitfit", "probe"])
def test_an_adapter_brings_its_head_and_its_labels(spec: str, tmp_path: Path) -> None:
    config, heads = add_label_head(BERT, "classify", ["bad", "fair", "good"])
    network = bert(config, tuple(heads))
    save_adapter(randomized_heads(network, spec, heads), tmp_path)
    base = bert()
    load_adapter(base, tmp_path)
    assert base.config.labels == ("bad", "fair", "good")
    tokens = torch.arange(1, 6)
    with torch.no_grad():
        ours, again = (
            one.label_logits(one(tokens, Mask([3, 2])), torch.tensor([0, 3, 5]))
            for one in (network, base)
        )
    assert ours.shape == (2, 3)
    assert torch.equal(ours, again)
    remove(base, "default")
    assert base.config == BERT
    assert list(base.heads) == ["language"]


def randomized_heads(network: Transformer, spec: str, heads: list[str]) -> AppliedStrategy:
    adapted = apply(network, spec, heads=heads)
    with torch.no_grad():
        for parameter in adapted.parameters.values():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    return adapted


@torch.no_grad()
def test_an_unused_pooler_is_removed_while_the_adapter_is_active(tmp_path: Path) -> None:
    """RoBERTa's classifier reads the first token itself; published files have a pooler, too."""
    config = tiny("roberta-base")
    network, base = (bert(config, ("language", "pooler")) for _ in range(2))
    facts = TaskMetadata(task="classify", labels=("a", "b"))
    adapted = randomized_heads(
        network, "lora:rank=2", attach_head(network, "classify", facts, {}, 0)
    )
    save_adapter(adapted, tmp_path)
    load_adapter(base, tmp_path)
    mask = Mask([3, 3])
    scores = [n.label_logits(n(torch.arange(6), mask), mask.starts) for n in (network, base)]
    torch.testing.assert_close(*scores, rtol=0, atol=0)
    remove(base, "default")
    assert set(base.heads) == {"language", "pooler"}
