"""Continued pre-training from an existing model, which needs no preset."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
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
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.pretrain_config import SIMILAR_PRESETS, nearest_preset
from firth.training.recipes import RECIPES
from firth.training.run_directory import read_run
from firth.utils.errors import FirthError, MismatchError, UsageError
from tests.conftest import Result
from tests.training.conftest import SMALL, Killed, kill_at, notes

QUICK = {name: value for name, value in SMALL.items() if not name.startswith("model.")}


def continue_from(
    source: Path | str, shards: Path, out: Path, steps: int = 2, **more: Any
) -> PretrainResult:
    overrides = QUICK | more.pop("overrides", {})
    return pretrain(source=source, data=shards, out=out, steps=steps, overrides=overrides, **more)


def tiny(name: str, tokenizer: Tokenizer, **fields: Any) -> Any:
    """A preset with small numbers and this vocabulary."""
    size = dict(num_layers=2, num_decoder_layers=0, hidden_size=32, num_heads=2, ffn_size=48)
    size |= dict(head_dim=0, num_kv_heads=0, vocab_size=len(tokenizer))
    return replace(preset(name).config, **size, bos_token_id=2, eos_token_id=3, **fields)


@pytest.fixture
def tokenizer(shards: Path) -> Tokenizer:
    return Tokenizer.load(shards)


def test_text_is_prepared_with_the_tokenizer_of_the_source(
    tokenizer: Tokenizer, sample: Path, tmp_path: Path, firth_here: Callable[..., Result]
) -> None:
    """A rejected call leaves neither shards nor the model in memory."""
    network = initialise(Transformer(tiny("bert-tiny", tokenizer), ["language"]), seed=0)
    model, run = Model(network, tokenizer), tmp_path / "run"
    given: dict[str, Any] = {"source": model, "data": [sample.read_text()], "steps": 1}
    with pytest.raises(UsageError, match="causal"):
        pretrain(**given, objective="causal", out=run)
    assert not any(path.is_file() for path in run.rglob("*"))
    with pytest.raises(UsageError, match="firth prepare"):
        pretrain(**given, dry_run=True)
    pretrain(**given, out=run, overrides=QUICK)
    assert Tokenizer.load(run / "shards").fingerprint == tokenizer.fingerprint
    model.save(tmp_path / "model")
    settings = ("--set", "precision=fp32", "--max-length", "32", "--batch-tokens", "256")
    command = ("pretrain", "--from", "model", "--data", sample, "--out", "again", "--steps", "1")
    assert firth_here(*command, *settings).returncode == 0
    assert read_run(tmp_path / "again")["parents"]["source"]["path"] == str(tmp_path / "model")


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
    trained = continue_from(bare, shards, out)
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
    theirs, info = transformers.BertForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert theirs.config.hidden_size == 32
    assert firth.load(out).fill("The [MASK] barked.", top=1)[0][0].score > 0


def test_all_missing_heads_are_named(bare: Path, shards: Path, tmp_path: Path) -> None:
    trained = continue_from(bare, shards, tmp_path / "run", objective="masked-nsp")
    assert set(trained.model.network.heads) == {"language", "pair", "pooler"}
    [note] = notes(tmp_path / "run")
    assert "has no language and no pair head" in note


SHAPE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
POSITIONS = dict(max_position_embeddings=64)
# The config of each kind of `transformers`, its class and its objective.
KINDS: dict[str, tuple[Any, str, str]] = {
    "gpt2": (
        transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=2, eos_token_id=3
        ),
        "AutoModelForCausalLM",
        "causal",
    ),
    "qwen2": (
        transformers.Qwen2Config(**SHAPE, **POSITIONS, intermediate_size=48, num_key_value_heads=1),
        "AutoModelForCausalLM",
        "causal",
    ),
    "t5": (
        transformers.T5Config(d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2),
        "AutoModelForSeq2SeqLM",
        "span-corruption",
    ),
    "bart": (
        transformers.BartConfig(
            d_model=32,
            **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
            **POSITIONS,
        ),
        "AutoModelForSeq2SeqLM",
        "infilling",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_transformers_keeps_its_logits(
    kind: str, shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config, cls, objective = KINDS[kind]
    torch.manual_seed(0)
    config = deepcopy(config)
    config.vocab_size = len(tokenizer)
    theirs = getattr(transformers, cls).from_config(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    trained = continue_from(tmp_path / "theirs", shards, tmp_path / "run")
    found = (trained.config.preset, trained.config.objective, trained.family)
    assert found == (kind, objective, kind)
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


def test_the_recipe_and_objective_of_a_run_are_kept(shards: Path, tmp_path: Path) -> None:
    """Also when the continued run is continued."""
    small = SMALL | {"model.num_layers": 2}
    options = {"preset": "decoder-tiny", "objective": "hybrid", "steps": 2, "overrides": small}
    pretrain(data=shards, out=tmp_path / "a", **options)
    for before, after in ("ab", "bc"):
        trained = continue_from(tmp_path / before, shards, tmp_path / after)
        assert (trained.config.preset, trained.config.objective) == ("decoder-tiny", "hybrid")
        assert trained.config.training.optimizer.optimizer == RECIPES["trio"].optimizer.optimizer
    named = continue_from(
        tmp_path / "b", shards, tmp_path / "d", preset="decoder-tiny", overrides=small
    )
    assert named.config.objective == "causal"  # of the named preset


def test_settings_that_keep_the_shape_may_change(bare: Path, shards: Path, tmp_path: Path) -> None:
    overrides = {"model.dropout": "0.3", "model.num_layers": "2", "learning_rate": "1e-3"}
    job = continue_from(bare, shards, tmp_path / "run", 1, overrides=overrides).config
    assert (job.model.dropout, job.training.optimizer.learning_rate) == (0.3, 1e-3)
    assert replace(job.model, dropout=0.1) == load(bare).config


def test_task_heads_are_dropped(shards: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    config, heads = add_label_head(tiny("roberta-base", tokenizer), "classify", ["a", "b"], "many")
    Model(initialise(Transformer(config, heads), 0), tokenizer).save(tmp_path / "tuned")
    trained = continue_from(tmp_path / "tuned", shards, tmp_path / "run")
    assert trained.family == "roberta"
    again = firth.load(tmp_path / "run")
    assert (again.task, again.config.labels) == (None, ())


def test_an_adapter_is_merged_into_its_base(
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
    trained = continue_from(tmp_path / "adapter", shards, tmp_path / "run")
    begun = build(trained.config, tokenizer).network.eval()
    with torch.no_grad():
        hidden, expected = (n(ids, Mask.causal([len(ids)])) for n in (begun, network.eval()))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)


def test_a_gguf_file_is_continued(sample: Path, tmp_path: Path) -> None:
    ggufs = pytest.importorskip("tests.formats.gguf_files")
    size = dict(vocab_size=128, intermediate_size=48, tie_word_embeddings=False)
    peer = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **POSITIONS, **size))
    file = ggufs.write_reference(tmp_path / "tiny.gguf", "llama", peer)
    firth.prepare([sample], tokenizer=file, out=tmp_path / "shards", workers=1)
    trained = continue_from(file, tmp_path / "shards", tmp_path / "run")
    found = (trained.config.preset, trained.config.objective, trained.family)
    assert found == ("llama", "causal", "llama")
    assert isinstance(firth.load(tmp_path / "run").generate("the", max_new_tokens=2), str)


def test_resumed_equals_uninterrupted(bare: Path, shards: Path, tmp_path: Path) -> None:
    whole = continue_from(bare, shards, tmp_path / "whole", 4)
    with pytest.raises(Killed):
        continue_from(bare, shards, tmp_path / "run", 4, callbacks=kill_at(2))
    resumed = continue_from(bare, shards, tmp_path / "run", 4, resume=True)
    state = resumed.model.network.state_dict()
    for name, tensor in whole.model.network.state_dict().items():
        assert torch.equal(state[name], tensor), name
    found = [note for note in notes(tmp_path / "run") if "head" in note]
    assert len(found) == 1
    assert read_run(tmp_path / "run")["job"]["preset"] == "bert"


@pytest.mark.parametrize("size", ["1MB", "10KB"], ids=["one file", "several files"])
def test_another_source_is_not_resumed(
    size: str, shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for name, seed in (("one", 3), ("other", 4)):
        torch.manual_seed(seed)
        config = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=48, **SHAPE)
        peer = transformers.BertForMaskedLM(config)
        peer.save_pretrained(tmp_path / name, max_shard_size=size)
        tokenizer.save(tmp_path / name)
    with pytest.raises(Killed):
        continue_from(tmp_path / "one", shards, tmp_path / "run", callbacks=kill_at(0))
    with pytest.raises(UsageError, match=r"parents\.source .*/one"):
        continue_from(tmp_path / "other", shards, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("options", "kind", "facts"),
    [
        ({"objective": "causal"}, UsageError, "encoder .*'causal'"),
        (
            {"overrides": {"model.num_layers": "3"}},
            MismatchError,
            r"num_layers 2.*model\.num_layers': '3'",
        ),
        ({"overrides": {"model.vocab_size": "700"}}, MismatchError, "bare .*weights differ"),
        ({"overrides": {"model.hiden_size": "3"}}, UsageError, "did you mean model.hidden_size"),
        ({"overrides": {"dropout": "0.2"}}, UsageError, "did you mean model.dropout"),
        ({"overrides": {"mask_prob": "0.2"}}, UsageError, "did you mean objective.mask_prob"),
        ({"preset": "decoder-tiny"}, MismatchError, "architecture encoder"),
        ({"source": "./nowhere"}, FirthError, r"\./nowhere"),
        ({"source": None}, UsageError, "`preset`.*`source`"),
    ],
)
def test_invalid_options_write_nothing(
    options: dict[str, Any],
    kind: type[FirthError],
    facts: str,
    bare: Path,
    shards: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind, match=facts) as raised:
        continue_from(**{"source": bare, "shards": shards, "out": tmp_path / "run"} | options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_refused(bare: Path, sample: Path, tmp_path: Path) -> None:
    other, _ = firth.train_tokenizer([sample], kind="bpe", vocab_size=300, workers=1)  # no mask
    other.save(tmp_path / "other")
    firth.prepare([sample], tokenizer=tmp_path / "other", out=tmp_path / "shards", workers=1)
    with pytest.raises(MismatchError, match=r"--tokenizer .*/bare"):
        continue_from(bare, tmp_path / "shards", tmp_path / "run")


def test_every_family_has_the_recipe_of_a_paper() -> None:
    """The trio's learning rates are for untrained networks."""
    config = preset("bert-tiny").config
    recipes = {
        f.name: nearest_preset(f.name, replace(config, family=f.name)).recipe for f in FAMILIES
    }
    assert "trio" not in recipes.values()
    assert set(SIMILAR_PRESETS.values()) <= set(PRESETS)


def test_continued_pretraining_on_the_command_line(
    firth_here: Callable[..., Result], bare: Path, shards: Path, tmp_path: Path
) -> None:
    sets = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    common = ("--data", shards, "--steps", 1, *sets)
    done = firth_here("pretrain", "--from", bare, *common, "--out", tmp_path / "run", "--json")
    assert (done.json["preset"], done.json["family"]) == ("bert", "bert")
    assert "has no language head" in done.stderr
    refused = firth_here("pretrain", *common, "--out", tmp_path / "none")
    assert refused.returncode == 2
    assert "--preset" in refused.error
    assert json.loads((tmp_path / "run/config.json").read_text())["model_type"] == "bert"
