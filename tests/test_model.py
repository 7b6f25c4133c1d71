"""The model people hold: opened, kept, exported and listed, from Python and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from firth import InputError, MismatchError, Misuse, Model, export, load, train_tokenizer
from firth.inference.generate import greedy
from firth.models.initial import initialise
from firth.models.masks import Mask
from firth.models.presets import PRESETS, preset
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer
from tests.conftest import Result

Firth = Callable[..., Result]
SIZE = 400  # tokens of the vocabulary


@pytest.fixture
def firth(firth_here: Firth) -> Firth:
    return firth_here


@pytest.fixture
def tokenizer(sample: Path) -> Tokenizer:
    return train_tokenizer([sample], kind="wordpiece", vocab_size=SIZE, workers=1)[0]


def network(name: str, **changes: Any) -> Transformer:
    """A preset's network, with few tokens, before it has learned anything."""
    row = preset(name)
    return initialise(Transformer(replace(row.config, **changes), row.heads), seed=1).eval()


@pytest.fixture
def bert(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    Model(network("bert-tiny", vocabulary=SIZE), tokenizer).save(tmp_path / "bert")
    return tmp_path / "bert"


SMALL: dict[str, Any] = dict(vocabulary=60, width=24, layers=2, heads=4, kv_heads=4, head_width=6)


# --- load and save


def test_a_model_comes_back_with_its_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = network("bert-tiny", vocabulary=SIZE)
    assert Model(before, tokenizer).save(tmp_path / "new" / "model") == "bert"
    model = load(tmp_path / "new" / "model")
    assert model.path == tmp_path / "new" / "model"
    assert model.config == before.config
    assert list(model.network.heads) == ["language", "pooler", "pair"]
    assert model.parameters == sum(parameter.numel() for parameter in before.parameters())
    assert not model.network.training
    assert model.tokenizer is not None
    assert model.tokenizer.fingerprint == tokenizer.fingerprint
    for name, tensor in before.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], tensor), name


def test_a_model_needs_no_tokenizer(tmp_path: Path) -> None:
    Model(network("bert-tiny", vocabulary=SIZE), tokenizer=None).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert load(tmp_path).tokenizer is None


def test_numbers_are_of_the_type_asked_for(bert: Path, tmp_path: Path) -> None:
    def types(model: Model) -> set[torch.dtype]:
        return {parameter.dtype for parameter in model.network.parameters()}

    assert types(load(bert)) == {torch.float32}
    assert types(load(bert, dtype="bfloat16")) == {torch.bfloat16}
    load(bert).save(tmp_path / "half", dtype=torch.float16)
    assert types(load(tmp_path / "half")) == {torch.float16}
    assert types(load(tmp_path / "half", dtype="float32")) == {torch.float32}
    with pytest.raises(Misuse, match="no dtype 'int8'; known are float32, bfloat16, float16"):
        load(bert, dtype="int8")


def test_what_generation_must_know_is_written_for_those_that_generate(
    bert: Path, tmp_path: Path
) -> None:
    assert not (bert / "generation_config.json").exists()
    ends = dict(padding_id=0, end_id=1, start_id=3)
    Model(network("t5-small", **SMALL | ends, decoder_layers=2), None).save(tmp_path / "t5")
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "t5")
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.bos_token_id) == (0, 1, None)
    assert theirs.decoder_start_token_id == 3


def test_a_decoder_generates_there_what_it_generates_here(tmp_path: Path) -> None:
    decoder = network("gpt2", **SMALL, inner=48, begin_id=1, end_id=2, spread=0.3)
    Model(decoder, tokenizer=None).save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = [5, 9, 14, 3]
    written = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        pad_token_id=0,
        do_sample=False,
        max_new_tokens=12,
    )[0, len(prompt) :].tolist()
    ours = greedy(decoder, [prompt], most=12, end=2)[0]
    assert ours == [token for token in written if token != 2]
    assert len(set(ours)) > 2


# --- what cannot be


def test_a_tokenizer_too_large_for_the_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    Model(network("bert-tiny", vocabulary=SIZE - 1), tokenizer).save(tmp_path)
    with pytest.raises(MismatchError) as refused:
        load(tmp_path)
    assert str(refused.value) == (
        f"The tokenizer in {tmp_path} has 400 tokens, the model only 399: "
        "they do not belong together."
    )


def test_there_is_nothing_to_open(firth: Firth, tmp_path: Path, sample: Path) -> None:
    with pytest.raises(InputError, match=r"There is no model at .*nosuch: no such directory\.$"):
        load(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"sample\.txt is not a directory with a model\.$"):
        load(sample)
    missing = firth("export", "nosuch", "out")
    assert missing.returncode == 1
    assert missing.error.startswith("There is no directory nosuch, the hub's cache ")
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_place_for_a_model(firth: Firth, bert: Path, sample: Path) -> None:
    with pytest.raises(Misuse, match=r"sample\.txt is a file; a model needs a directory\.$"):
        load(bert).save(sample)
    refused = firth("export", bert, sample)
    assert (refused.returncode, refused.error) == (
        2,
        f"{sample} is a file; a model needs a directory.",
    )


# --- export


def test_what_is_exported_computes_the_same_elsewhere(
    firth: Firth, bert: Path, tmp_path: Path
) -> None:
    done = firth("export", bert, "out")
    assert done.returncode == 0, done.stderr
    assert "out is a bert checkpoint" in done.stdout
    text = "The sea was calm."
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    given = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")
    model = load(bert)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text, specials=True)
    assert given["input_ids"][0].tolist() == ids
    with torch.no_grad():
        wanted = theirs(**given).logits[0]
        ours = model.network.logits(model.network(torch.tensor(ids), Mask([len(ids)])))
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)
    assert wanted.std() > 0.01


def test_export_in_json_and_again_over_an_earlier_one(firth: Firth, bert: Path) -> None:
    for _ in range(2):
        assert firth("export", bert, "out", "--json").json == {"out": "out", "family": "bert"}


def test_a_model_of_no_family_is_not_exported(firth: Firth, tmp_path: Path) -> None:
    own = network("seq2seq-tiny", vocabulary=60, width=24, heads=4, kv_heads=4, head_width=6)
    assert Model(own, tokenizer=None).save(tmp_path / "own") == "firth"
    described = json.loads((tmp_path / "own" / "config.json").read_text())
    assert described["model_type"] == "firth"
    assert load_file(tmp_path / "own" / "model.safetensors").keys() == own.state_dict().keys()
    assert load(tmp_path / "own").config == own.config
    refused = firth("export", "own", "out")
    assert refused.returncode == 1
    assert refused.error == (
        "No family that transformers knows has the shape and the heads of own (encoder-decoder; "
        "language); it opens with firth.load alone."
    )
    assert not (tmp_path / "out").exists()


def test_there_is_one_thing_to_export_to(firth: Firth, bert: Path, tmp_path: Path) -> None:
    refused = firth("export", bert, "out", "--to", "onnx")
    assert (refused.returncode, refused.error) == (
        2,
        "A model can be exported to hf, not to 'onnx'.",
    )
    assert not (tmp_path / "out").exists()


def test_what_others_have_put_in_a_directory_stays(bert: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("A life's work.")
    with pytest.raises(Misuse, match="foreign holds something other than a model"):
        export(bert, foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


# --- presets


def test_presets_are_a_table(firth: Firth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shown = firth("presets")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["preset", *PRESETS]
    bert_base = next(line for line in lines if line.startswith("bert-base "))
    for figure in ("encoder", "12", "768", "110.1M", "512", "30522", "Devlin et al. 2019"):
        assert figure in bert_base


def test_presets_fit_a_narrow_terminal(firth: Firth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = firth("presets").stdout.splitlines()
    assert len(lines) == 1 + len(PRESETS)
    assert all(len(line) <= 60 for line in lines)


def test_presets_of_80_columns_are_whole_but_for_their_source(
    firth: Firth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for line, row in zip(firth("presets").stdout.splitlines()[1:], PRESETS.values(), strict=True):
        assert line.split()[:1] == [row.name]
        assert line.split()[7] == str(row.config.vocabulary)


def test_a_list_of_presets_builds_no_network() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from firth.cli import app\n"
        "assert CliRunner().invoke(app, ['presets']).exit_code == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_presets_in_json(firth: Firth) -> None:
    rows = firth("presets", "--json").json["presets"]
    assert len(rows) == len(PRESETS)
    fields = {"name", "architecture", "layers", "width", "heads", "parameters", "context"}
    fields |= {"vocabulary", "objective", "recipe", "source"}
    assert all(set(row) == fields for row in rows)
    gpt2 = next(row for row in rows if row["name"] == "gpt2")
    assert (gpt2["parameters"], gpt2["context"], gpt2["objective"]) == (124_439_808, 1024, "causal")


def test_one_preset_with_all_its_fields(firth: Firth) -> None:
    shown = firth("presets", "bert-base").stdout
    assert "bert-base: 110,106,428 parameters with language, pooler, pair" in shown
    assert "norm_place" in shown
    values = firth("presets", "bert-base", "--json").json
    assert values["parameters"] == 110_106_428
    assert values["config"] == preset("bert-base").config.to_dict()


def test_a_preset_misspelt(firth: Firth) -> None:
    refused = firth("presets", "bert-bse")
    assert refused.returncode == 2
    assert refused.error.startswith("There is no preset 'bert-bse'; did you mean bert-base")
    assert refused.stdout == ""
