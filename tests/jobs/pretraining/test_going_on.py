"""Pre-training goes on from an existing model, which needs no preset to describe it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import firth
from firth.adapt.apply import apply
from firth.adapt.saving import save_adapter
from firth.formats.huggingface.directory import FAMILIES, add_label_head
from firth.jobs.pretraining import PretrainResult, build, pretrain
from firth.model import Model, load
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.presets import PRESETS, preset
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.loop import Callbacks
from firth.training.pretrain_config import SIMILAR_PRESETS, nearest_preset
from firth.training.recipes import RECIPES
from firth.training.run_directory import read_metrics, read_run
from firth.utils.errors import FirthError, MismatchError, UsageError
from tests.conftest import Result
from tests.training.conftest import SMALL

QUICK = {name: value for name, value in SMALL.items() if not name.startswith("model.")}


def go_on(
    source: Path | str, shards: Path, out: Path, steps: int = 2, **more: Any
) -> PretrainResult:
    overrides = QUICK | more.pop("overrides", {})
    return pretrain(source=source, data=shards, out=out, steps=steps, overrides=overrides, **more)


def notes(out: Path) -> list[str]:
    return [line["note"] for line in read_metrics(out) if line["kind"] == "note"]


def tiny(name: str, tokenizer: Tokenizer, **fields: Any) -> Any:
    """A preset with small numbers and this vocabulary."""
    small = {
        "num_layers": 2,
        "num_decoder_layers": 0,
        "hidden_size": 32,
        "num_heads": 2,
        "head_dim": 0,
    }
    small |= {
        "num_kv_heads": 0,
        "ffn_size": 48,
        "vocab_size": len(tokenizer),
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return replace(preset(name).config, **small, **fields)


@pytest.fixture
def tokenizer(shards: Path) -> Tokenizer:
    return Tokenizer.load(shards)


@pytest.fixture
def bare(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """An encoder without a language head, as sentence encoders are."""
    network = initialise(Transformer(tiny("bert-tiny", tokenizer), ["pooler"]), 3)
    Model(network, tokenizer).save(tmp_path / "bare")
    return tmp_path / "bare"


def test_an_encoder_without_a_language_head_gets_one(
    bare: Path, shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    trained = go_on(bare, shards, out)
    assert (trained.config.preset, trained.config.objective) == ("bert", "masked")
    assert (
        trained.config.training.optimizer.learning_rate == RECIPES["bert"].optimizer.learning_rate
    )
    [note] = notes(out)
    assert f"{bare} has no language head, which 'masked' needs" in note
    assert "| preset | bert |" in (out / "README.md").read_text()
    before = load(bare).network.state_dict()
    begun = build(trained.config, tokenizer).network.state_dict()
    for name, tensor in before.items():
        assert name.startswith("heads.pooler") or torch.equal(begun[name], tensor), name
    theirs, told = transformers.BertForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not told["missing_keys"]
    assert theirs.config.hidden_size == 32
    assert firth.load(out).fill("The [MASK] barked.", top=1)[0][0].score > 0


def test_other_heads_are_named_too(bare: Path, shards: Path, tmp_path: Path) -> None:
    trained = go_on(bare, shards, tmp_path / "run", objective="masked-nsp")
    assert set(trained.model.network.heads) == {"language", "pair", "pooler"}
    [note] = notes(tmp_path / "run")
    assert "has no language and no pair head" in note


KINDS = {
    "gpt2": (
        lambda size: transformers.GPT2Config(
            vocab_size=size,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=64,
            bos_token_id=2,
            eos_token_id=3,
        ),
        "AutoModelForCausalLM",
        "causal",
    ),
    "qwen2": (
        lambda size: transformers.Qwen2Config(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
        ),
        "AutoModelForCausalLM",
        "causal",
    ),
    "t5": (
        lambda size: transformers.T5Config(
            vocab_size=size, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2
        ),
        "AutoModelForSeq2SeqLM",
        "span-corruption",
    ),
    "bart": (
        lambda size: transformers.BartConfig(
            vocab_size=size,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
        ),
        "AutoModelForSeq2SeqLM",
        "infilling",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_transformers_goes_on_as_it_is(
    kind: str, shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config, cls, objective = KINDS[kind]
    torch.manual_seed(0)
    theirs = getattr(transformers, cls).from_config(config(len(tokenizer))).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    trained = go_on(tmp_path / "theirs", shards, tmp_path / "run")
    assert (trained.config.preset, trained.config.objective, trained.family) == (
        kind,
        objective,
        kind,
    )
    assert notes(tmp_path / "run") == []

    ids = torch.tensor([tokenizer.encode("The dog barked.")])
    network, length = build(trained.config, tokenizer).network.eval(), ids.shape[1]
    with torch.no_grad():
        if network.config.has_encoder:
            reference = theirs(input_ids=ids, decoder_input_ids=ids).logits[0]
            memory = network.encode(ids[0], Mask([length]))
            own = {"memory": memory, "memory_mask": Mask([length])}
        else:
            reference, own = theirs(input_ids=ids).logits[0], {}
        logits = network.logits(network(ids[0], Mask.causal([length]), **own))
    torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4)
    getattr(transformers, cls).from_pretrained(tmp_path / "run")


def test_a_run_goes_on_as_it_began(shards: Path, tmp_path: Path) -> None:
    """With its own preset's recipe and its own objective, also a second time."""
    small = SMALL | {"model.num_layers": 2}
    options = {"preset": "decoder-tiny", "objective": "hybrid", "steps": 2, "overrides": small}
    pretrain(data=shards, out=tmp_path / "a", **options)
    for before, after in ("ab", "bc"):
        trained = go_on(tmp_path / before, shards, tmp_path / after)
        assert (trained.config.preset, trained.config.objective) == ("decoder-tiny", "hybrid")
        assert trained.config.training.optimizer.optimizer == RECIPES["trio"].optimizer.optimizer
    named = go_on(tmp_path / "b", shards, tmp_path / "d", preset="decoder-tiny", overrides=small)
    assert named.config.objective == "causal"  # a preset that is named says what it always said


def test_what_leaves_the_shape_alone_may_change(bare: Path, shards: Path, tmp_path: Path) -> None:
    overrides = {"model.dropout": "0.3", "model.num_layers": "2", "learning_rate": "1e-3"}
    job = go_on(bare, shards, tmp_path / "run", 1, overrides=overrides).config
    assert (job.model.dropout, job.training.optimizer.learning_rate) == (0.3, 1e-3)
    assert replace(job.model, dropout=0.1) == load(bare).config


def test_labels_are_left_behind(shards: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    config, heads = add_label_head(tiny("roberta-base", tokenizer), "classify", ["a", "b"], "many")
    Model(initialise(Transformer(config, heads), 0), tokenizer).save(tmp_path / "tuned")
    trained = go_on(tmp_path / "tuned", shards, tmp_path / "run")
    assert trained.family == "roberta"
    again = firth.load(tmp_path / "run")
    assert (again.task, again.config.labels) == (None, ())


def test_an_adapter_goes_on_as_part_of_its_base(
    shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    Model(initialise(Transformer(tiny("gpt2", tokenizer), ["language"]), 0), tokenizer).save(base)
    network = load(base).network
    adapted = apply(network, "lora:rank=2")
    with torch.no_grad():
        for change in adapted.modules.values():
            for parameter in change.parameters():
                parameter.normal_()
    save_adapter(adapted, tmp_path / "adapter", base=str(base))
    ids = torch.tensor(tokenizer.encode("The dog barked."))
    trained = go_on(tmp_path / "adapter", shards, tmp_path / "run")
    begun = build(trained.config, tokenizer).network.eval()
    with torch.no_grad():
        hidden, expected = (n(ids, Mask.causal([len(ids)])) for n in (begun, network.eval()))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)


def test_a_gguf_file_goes_on(sample: Path, tmp_path: Path) -> None:
    ggufs = pytest.importorskip("tests.formats.gguf_files")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    file = ggufs.write_reference(
        tmp_path / "tiny.gguf", "llama", transformers.LlamaForCausalLM(config)
    )
    firth.prepare([sample], tokenizer=file, out=tmp_path / "shards", workers=1)
    trained = go_on(file, tmp_path / "shards", tmp_path / "run")
    assert (trained.config.preset, trained.config.objective, trained.family) == (
        *("llama", "causal"),
        "llama",
    )
    assert firth.load(tmp_path / "run").generate("the", max_new_tokens=2) is not None


class Killed(Exception):
    """As if the power had gone."""


def test_it_resumes_with_the_same_bits(bare: Path, shards: Path, tmp_path: Path) -> None:
    def kill(step: int, part: Batch) -> None:
        if step == 2:
            raise Killed

    whole = go_on(bare, shards, tmp_path / "whole", 4)
    with pytest.raises(Killed):
        go_on(bare, shards, tmp_path / "run", 4, callbacks=Callbacks(before_micro_batch=kill))
    resumed = go_on(bare, shards, tmp_path / "run", 4, resume=True)
    state = resumed.model.network.state_dict()
    for name, tensor in whole.model.network.state_dict().items():
        assert torch.equal(state[name], tensor), name
    said = [note for note in notes(tmp_path / "run") if "head" in note]
    assert len(said) == 1
    assert read_run(tmp_path / "run")["job"]["preset"] == "bert"


@pytest.mark.parametrize("size", ["1MB", "10KB"], ids=["one file", "several files"])
def test_another_source_is_another_run(
    size: str, shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    def kill(step: int, part: Batch) -> None:
        raise Killed

    for name, seed in (("one", 3), ("other", 4)):
        torch.manual_seed(seed)
        shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        config = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=48, **shape)
        peer = transformers.BertForMaskedLM(config)
        peer.save_pretrained(tmp_path / name, max_shard_size=size)
        tokenizer.save(tmp_path / name)
    with pytest.raises(Killed):
        go_on(
            tmp_path / "one", shards, tmp_path / "run", callbacks=Callbacks(before_micro_batch=kill)
        )
    with pytest.raises(UsageError, match=r"parents\.source .*/one"):
        go_on(tmp_path / "other", shards, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        (
            {"objective": "causal"},
            UsageError,
            "bert is an encoder .*'causal'",
        ),
        (
            {"overrides": {"model.num_layers": "3"}},
            MismatchError,
            r"bare has num_layers 2.* model\.num_layers=3",
        ),
        ({"overrides": {"model.vocab_size": "700"}}, MismatchError, "bare .*weights differ"),
        ({"overrides": {"model.hiden_size": "3"}}, UsageError, "did you mean model.hidden_size"),
        ({"preset": "decoder-tiny"}, MismatchError, "architecture encoder"),
        ({"source": "./nowhere"}, FirthError, r"\./nowhere"),
        ({"source": None}, UsageError, "--preset.*--from"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    options: dict[str, Any],
    kind: type[FirthError],
    sentence: str,
    bare: Path,
    shards: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind, match=sentence) as raised:
        go_on(**{"source": bare, "shards": shards, "out": tmp_path / "run"} | options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_named_before_what_it_lacks(
    bare: Path, sample: Path, tmp_path: Path
) -> None:
    other, _ = firth.train_tokenizer([sample], kind="bpe", vocab_size=300, workers=1)  # no mask
    other.save(tmp_path / "other")
    firth.prepare([sample], tokenizer=tmp_path / "other", out=tmp_path / "shards", workers=1)
    with pytest.raises(MismatchError, match=r"prepare the text with --tokenizer .*/bare"):
        go_on(bare, tmp_path / "shards", tmp_path / "run")


def test_every_family_that_is_read_has_a_paper_s_recipe() -> None:
    """The trio's rates are for networks that begin from nothing."""
    config = preset("bert-tiny").config
    recipes = {
        f.name: nearest_preset(f.name, replace(config, family=f.name)).recipe for f in FAMILIES
    }
    assert "trio" not in recipes.values()
    assert set(SIMILAR_PRESETS.values()) <= set(PRESETS)


def test_on_the_command_line(
    firth_here: Callable[..., Result], bare: Path, shards: Path, tmp_path: Path
) -> None:
    sets = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    common = ("--data", shards, "--steps", 1, *sets)
    done = firth_here("pretrain", "--from", bare, *common, "--out", tmp_path / "run", "--json")
    assert (done.json["preset"], done.json["family"]) == ("bert", "bert")
    assert "has no language head" in done.stderr
    refused = firth_here("pretrain", *common, "--out", tmp_path / "none")
    assert refused.returncode == 2
    assert "Missing option '--preset'" in refused.error
    assert json.loads((tmp_path / "run/config.json").read_text())["model_type"] == "bert"
