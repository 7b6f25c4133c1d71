"""`Model`: load, save and export, in Python and on the command line; the list of presets."""

from __future__ import annotations

import io
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
from rich.console import Console
from safetensors.torch import load_file

from firth import InputError, MismatchError, Model, UsageError, export, load, train_tokenizer
from firth.cli.views import presets as view
from firth.embedded import EMBEDDED_MODELS
from firth.formats.huggingface.directory import FAMILIES, add_label_head
from firth.formats.huggingface.family import auto_class
from firth.inference.generation.token_generation import greedy_decode
from firth.models.initialization import initialise
from firth.models.label_heads import LABEL_HEADS
from firth.models.masks import Mask
from firth.models.presets import PRESETS, preset
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.run_directory import check_run_directory
from tests.conftest import Result

Firth = Callable[..., Result]
SIZE = 400  # tokens of the vocabulary


@pytest.fixture
def firth(firth_here: Firth) -> Firth:
    return firth_here


@pytest.fixture
def tokenizer(sample: Path) -> Tokenizer:
    return train_tokenizer([sample], kind="wordpiece", vocab_size=SIZE, workers=1)[0]


def network(name: str, **overrides: Any) -> Transformer:
    """Build an untrained network of a preset."""
    row = preset(name)
    return initialise(Transformer(replace(row.config, **overrides), row.heads), seed=1).eval()


@pytest.fixture
def bert(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    Model(network("bert-tiny", vocab_size=SIZE), tokenizer).save(tmp_path / "bert")
    return tmp_path / "bert"


SMALL: dict[str, Any] = dict(
    vocab_size=60, hidden_size=24, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=6
)


# --- load and save


def test_save_and_load_with_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = network("bert-tiny", vocab_size=SIZE)
    assert Model(before, tokenizer).save(tmp_path / "new" / "model") == "bert"
    model = load(tmp_path / "new" / "model")
    assert model.path == tmp_path / "new" / "model"
    assert model.config == before.config
    assert list(model.network.heads) == ["language", "pooler", "pair"]
    assert model.num_parameters == sum(parameter.numel() for parameter in before.parameters())
    assert not model.network.training
    assert model.tokenizer is not None
    assert model.tokenizer.fingerprint == tokenizer.fingerprint
    for name, tensor in before.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], tensor), name


def test_save_and_load_without_tokenizer(tmp_path: Path) -> None:
    Model(network("bert-tiny", vocab_size=SIZE), tokenizer=None).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert load(tmp_path).tokenizer is None


def test_dtype(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def types(model: Model) -> set[torch.dtype]:
        return {parameter.dtype for parameter in model.network.parameters()}

    assert types(load(bert)) == {torch.float32}
    assert types(load(bert, dtype="bfloat16")) == {torch.bfloat16}
    load(bert).save(tmp_path / "half", dtype=torch.float16)
    assert types(load(tmp_path / "half")) == {torch.float32}  # on a CPU
    assert types(load(tmp_path / "half", dtype="auto")) == {torch.float16}
    export(tmp_path / "half", tmp_path / "exported")
    assert types(load(tmp_path / "exported", dtype="auto")) == {torch.float16}
    monkeypatch.setattr("firth.model.MAX_FLOAT32_BYTES", 0)
    assert types(load(tmp_path / "half")) == {torch.float16}
    with pytest.raises(UsageError, match=r"'int8'.*float32, bfloat16, float16"):
        load(bert, dtype="int8")


def test_decoders_have_a_generation_config(bert: Path, tmp_path: Path) -> None:
    assert not (bert / "generation_config.json").exists()
    ends = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=3)
    Model(network("t5-small", **SMALL | ends, num_decoder_layers=2), None).save(tmp_path / "t5")
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "t5")
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.bos_token_id) == (0, 1, None)
    assert theirs.decoder_start_token_id == 3


def test_transformers_generates_the_same_text(tmp_path: Path) -> None:
    decoder = network("gpt2", **SMALL, ffn_size=48, bos_token_id=1, eos_token_id=2, init_std=0.3)
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
    ours = greedy_decode(decoder, [prompt], max_new_tokens=12, eos_token_id=2)[0]
    assert ours == [token for token in written if token != 2]
    assert len(set(ours)) > 2


# --- errors


def test_a_tokenizer_too_large_for_the_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    Model(network("bert-tiny", vocab_size=SIZE - 1), tokenizer).save(tmp_path)
    with pytest.raises(MismatchError, match=rf"{tmp_path}.* 400 .*vocab_size is 399"):
        load(tmp_path)


def test_errors_name_the_missing_model(firth: Firth, tmp_path: Path, sample: Path) -> None:
    with pytest.raises(InputError, match=r"no model at .*nosuch"):
        load(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"sample\.txt is no model: .*directory"):
        load(sample)
    missing = firth("export", "nosuch", "out")
    assert missing.returncode == 1
    assert "nosuch" in missing.error
    assert not (tmp_path / "out").exists()


def test_a_model_is_not_saved_over_a_file(firth: Firth, bert: Path, sample: Path) -> None:
    with pytest.raises(UsageError, match=r"sample\.txt is a file"):
        load(bert).save(sample)
    refused = firth("export", bert, sample)
    assert refused.returncode == 2
    assert f"{sample} is a file" in refused.error


# --- export


def test_transformers_computes_the_same_logits(firth: Firth, bert: Path, tmp_path: Path) -> None:
    done = firth("export", bert, "out")
    assert done.returncode == 0, done.stderr
    assert "bert checkpoint in out" in done.stdout
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


def test_export_in_json_over_an_earlier_export(firth: Firth, bert: Path) -> None:
    for options in ([], ["--overwrite"]):
        done = firth("export", bert, "out", "--json", *options)
        wanted = {"out": "out", "family": "bert", "auto_class": "AutoModelForPreTraining"}
        assert done.json == wanted


@pytest.mark.parametrize(
    ("name", "heads", "wanted"),
    [
        ("bert-tiny", ["language"], "AutoModelForMaskedLM"),
        ("bert-tiny", ["classify"], "AutoModelForSequenceClassification"),
        ("bert-tiny", ["tag"], "AutoModelForTokenClassification"),
        ("bert-tiny", ["span"], "AutoModelForQuestionAnswering"),
        ("bert-tiny", ["pooler"], "AutoModel"),
        ("gpt2", ["language"], "AutoModelForCausalLM"),
        ("t5-small", ["language"], "AutoModelForSeq2SeqLM"),
    ],
)
def test_export_names_the_class_that_loads_it(
    name: str, heads: list[str], wanted: str, firth: Firth, tmp_path: Path
) -> None:
    sizes = SMALL | ({"num_decoder_layers": 2} if name == "t5-small" else {})
    config = replace(preset(name).config, **sizes)
    if heads[0] in LABEL_HEADS:
        labels = [] if heads == ["span"] else ["a", "b"]
        config, heads = add_label_head(config, heads[0], labels)
    Model(initialise(Transformer(config, heads), seed=1), None).save(tmp_path / "model")
    assert f"transformers.{wanted}." in firth("export", "model", "out").stdout
    auto = getattr(transformers, wanted)
    _, info = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    card = (tmp_path / "out/README.md").read_text()
    assert f"model = {wanted}.from_pretrained(" in card
    assert "AutoTokenizer" not in card


def test_every_class_has_its_auto_class() -> None:
    for family in FAMILIES:
        for name in family.all_classes:
            classes = getattr(transformers, auto_class(name))._model_mapping._model_mapping
            assert classes[family.name] == name


def test_export_keeps_the_model_card(firth: Firth, bert: Path, tmp_path: Path) -> None:
    (bert / "README.md").write_text("# My Igbo model\n\n![loss](loss.png)\n")
    (bert / "loss.png").write_bytes(b"png")
    for source, out in (("bert", "once"), ("once", "twice")):
        assert firth("export", source, out).returncode == 0
        card = (tmp_path / out / "README.md").read_text()
        assert card.startswith("# My Igbo model\n")
        assert card.count("## Exported") == 1
        for fact in (f"from `{source}`", f'AutoTokenizer.from_pretrained("{out}")'):
            assert fact in card
        assert (tmp_path / out / "loss.png").read_bytes() == b"png"


def test_an_unknown_architecture_is_not_exported(firth: Firth, tmp_path: Path) -> None:
    own = network(
        "seq2seq-tiny", vocab_size=60, hidden_size=24, num_heads=4, num_kv_heads=4, head_dim=6
    )
    assert Model(own, tokenizer=None).save(tmp_path / "own") == "firth"
    described = json.loads((tmp_path / "own" / "config.json").read_text())
    assert described["model_type"] == "firth"
    assert load_file(tmp_path / "own" / "model.safetensors").keys() == own.state_dict().keys()
    assert load(tmp_path / "own").config == own.config
    refused = firth("export", "own", "out")
    assert refused.returncode == 1
    assert "own (encoder-decoder; language)" in refused.error
    assert not (tmp_path / "out").exists()


def test_an_unknown_export_format(firth: Firth, bert: Path, tmp_path: Path) -> None:
    refused = firth("export", bert, "out", "--to", "onnx")
    assert refused.returncode == 2
    assert "hf" in refused.error
    assert "'onnx'" in refused.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"not JSON", b"\xff\x00", b'{"job": "train", "task": 3}', b'{"id": "firth"}'],
)
def test_a_run_json_of_another_program_is_ignored(content: bytes, bert: Path) -> None:
    (bert / "run.json").write_bytes(content)
    model = load(bert)
    assert (model.task, model.objective) == (None, None)
    with pytest.raises(UsageError, match="holds no run"):
        check_run_directory(bert, {}, resume=True)


def test_export_keeps_other_files(bert: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("A life's work.")
    with pytest.raises(UsageError, match="foreign contains other files"):
        export(bert, foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_export_overwrites_only_the_files_of_a_model(bert: Path, tmp_path: Path) -> None:
    export(bert, out := tmp_path / "out")
    mine = {"token_counts.tsv", "vectors.bin", "vectors.safetensors", "tokenized.txt"}
    old = {
        "pytorch_model.bin",
        "model-00001-of-00002.safetensors",
        "spiece.model",
        "added_tokens.json",
    }
    for name in mine | old:
        (out / name).touch()
    export(bert, out, overwrite=True)
    assert {path.name for path in out.iterdir()} & (mine | old) == mine


def test_a_saved_model_has_its_own_chat_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.config["chat_template"] = "new"
    (tmp_path / "chat_template.jinja").write_text("old")
    Model(network("bert-tiny", vocab_size=SIZE), tokenizer).save(tmp_path)
    loaded = load(tmp_path).tokenizer
    assert loaded is not None
    assert loaded.config["chat_template"] == "new"


def test_export_takes_a_loaded_model(bert: Path, tmp_path: Path) -> None:
    model = load(bert)
    assert export(model, tmp_path / "out") == "bert"
    assert export(replace(model, path=None, source=None), tmp_path / "unsaved") == "bert"
    assert str(bert) in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(UsageError, match=r"firth\.load"):
        export(model, tmp_path / "other", verify=True)


def test_a_model_is_not_saved_over_another_or_a_run(bert: Path, tmp_path: Path) -> None:
    model, run = load(bert), tmp_path / "run"
    run.mkdir()
    for file in ("run.json", "notes.txt"):
        (run / file).write_text("{}")
    for taken in (bert, run):
        with pytest.raises(UsageError, match=r"exists.*overwrite"):
            model.save(taken)
    model.save(run, overwrite=True)
    assert load(run).task is None
    assert not (run / "run.json").exists()
    assert (run / "notes.txt").exists()


# --- presets


def test_presets_are_a_table(firth: Firth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # of a terminal: a pipe has all of a line
    shown = firth("presets")
    assert (shown.returncode, shown.stderr) == (0, "")
    table, embedded = shown.stdout.split("\n\n")
    lines = table.splitlines()
    assert [line.split()[0] for line in lines] == ["preset", *PRESETS]
    assert [line.split()[0] for line in embedded.splitlines()[1:]] == list(EMBEDDED_MODELS)
    bert_base = next(line for line in lines if line.startswith("bert-base "))
    for figure in ("encoder", "12", "768", "110.1M", "512", "30522", "Devlin et al. 2019"):
        assert figure in bert_base


def test_presets_fit_a_narrow_terminal() -> None:
    """In 80 columns only the source is truncated."""

    def lines(width: int) -> list[str]:
        shown = io.StringIO()
        Console(width=width, file=shown).print(view.presets(list(PRESETS.values())))
        return shown.getvalue().splitlines()

    assert len(lines(60)) == 1 + len(PRESETS)
    assert all(len(line) <= 60 for line in lines(60))
    for line, row in zip(lines(80)[1:], PRESETS.values(), strict=True):
        assert line.split()[0] == row.name
        assert line.split()[7] == ("–" if row.is_fitted else str(row.config.vocab_size))


def test_listing_presets_does_not_import_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from firth.cli.app import app\n"
        "assert CliRunner().invoke(app, ['presets']).exit_code == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_presets_in_json(firth: Firth) -> None:
    rows = firth("presets", "--json").json["presets"]
    assert len(rows) == len(PRESETS)
    fields = {"name", "architecture", "num_layers", "hidden_size", "num_heads", "parameters"}
    fields |= {"max_positions", "vocab_size", "objective", "recipe", "source"}
    assert all(set(row) == fields for row in rows)
    gpt2 = next(row for row in rows if row["name"] == "gpt2")
    assert (gpt2["parameters"], gpt2["max_positions"]) == (124_439_808, 1024)
    assert gpt2["objective"] == "causal"


def test_one_preset_with_all_its_fields(firth: Firth) -> None:
    shown = firth("presets", "bert-base").stdout
    assert "bert-base: 110,106,428 parameters with language, pooler, pair" in shown
    assert "norm_position" in shown
    values = firth("presets", "bert-base", "--json").json
    assert values["parameters"] == 110_106_428
    assert values["config"] == preset("bert-base").config.to_dict()


def test_a_fitted_preset_shows_its_settings(firth: Firth) -> None:
    values = firth("presets", "fasttext", "--json").json
    assert values["settings"].items() >= {"model.max_n": 6, "window": 5, "epochs": 5}.items()
    assert (values["vocab_size"], values["parameters"], values["num_layers"]) == (None, None, None)
    assert "window" in firth("presets", "fasttext").stdout
    assert firth("presets", "ngram-3", "--json").json["settings"] == {}


def test_a_misspelt_preset(firth: Firth) -> None:
    refused = firth("presets", "bert-bse")
    assert refused.returncode == 2
    assert "did you mean bert-base" in refused.error
    assert refused.stdout == ""
