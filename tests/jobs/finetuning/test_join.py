"""An encoder joined to a decoder with another tokenizer, fine-tuned to generate text."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.adapt.apply import get_adapters
from firth.formats.tokenizers.loading import load_tokenizer
from firth.jobs.evaluation import evaluate
from firth.jobs.exporting import export
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import Model, load
from firth.models.encoder_decoder import cross_attention_names
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.tasks.inputs import make_input_template
from firth.tasks.readers.examples import Seq2SeqExample
from firth.tasks.registry import task_named
from firth.tokenizers.trainer import train_tokenizer
from firth.training.run_directory import fingerprint
from firth.utils.errors import MismatchError, UsageError
from tests.conftest import Result
from tests.jobs.finetuning.conftest import QUICK, save
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at, losses

WORDS = ["red", "blue", "dog", "cat", "sun", "sea"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pairs of words, to be copied."""
    folder = tmp_path_factory.mktemp("copying")
    pairs = [f"{a} {b}" for a in WORDS for b in WORDS]
    (folder / "words.txt").write_text("\n\n".join(pairs * 4), encoding="utf-8")
    for name, rows in (("train", pairs), ("dev", pairs[::5])):
        lines = "".join(f"{row}\t{row}\n" for row in rows)
        (folder / f"{name}.tsv").write_text("source\ttarget\n" + lines, encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def pair(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wide BERT and a deep GPT-2, each with its tokenizer."""
    folder = tmp_path_factory.mktemp("pair")
    words = [files["words"]]
    pieces, _ = train_tokenizer(words, kind="wordpiece", vocab_size=40, lowercase=True, workers=1)
    small = {"head_dim": 0, "num_kv_heads": 0, "dropout": 0.0, "attention_dropout": 0.0}
    shape = dict(hidden_size=48, num_layers=1, num_heads=4, ffn_size=64, max_positions=40)
    save("bert-tiny", pieces, folder / "bert", **shape, **small)
    bytes_, _ = train_tokenizer(words, kind="bpe", vocab_size=264, specials="gpt2", workers=1)
    end = bytes_.special_ids["eos"]
    shape = dict(hidden_size=32, num_layers=3, num_heads=2, ffn_size=64, max_positions=24)
    roles = dict(pad_token_id=None, bos_token_id=end, eos_token_id=end, vocab_size=len(bytes_))
    config = replace(preset("gpt2").config, **shape, **small, **roles)
    network = initialise(Transformer(config, ["language"]), seed=1)
    Model(network, bytes_).save(folder / "gpt2")
    return {"model": folder / "bert", "decoder": folder / "gpt2"}


@pytest.fixture
def tune(
    pair: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> Callable[..., FinetuneResult]:
    def run(**options: Any) -> FinetuneResult:
        data = {"train": files["train"], "dev": files["dev"], "out": tmp_path / "run"}
        given = {"task": "seq2seq", **pair, **data, **options}
        given["overrides"] = QUICK | {"max_length": "20"} | dict(given.get("overrides", {}))
        return finetune(**given)

    return run


Tune = Callable[..., FinetuneResult]
LEARN = {"steps": 60, "batch_size": "18", "learning_rate": 1e-2, "validate_every": 0.2}
LEARN |= {"warmup": 0.1}


def test_a_joined_model_learns_to_copy(tune: Tune, files: dict[str, Path]) -> None:
    tuned = tune(overrides=LEARN)
    found = losses(tuned.path, "validation")
    assert min(found) < 0.25 * found[0]
    target_tokenizer, rows = load(tuned.path).tokenizer, files["train"].read_text().splitlines()[1:]
    assert target_tokenizer is not None
    tokens = [len(target_tokenizer.encode(row.split("\t")[1])) + 1 for row in rows]
    # Without the source, each of two words is a guess among six.
    assert min(found) < 0.7 * 2 * math.log(6) * len(rows) / sum(tokens)
    answers = predict(tuned.path, data=files["dev"]).answers
    again = load(tuned.path)
    texts = [line.split("\t")[0] for line in files["dev"].read_text().splitlines()[1:]]
    assert [answer["text"] for answer in answers] == [again.generate(t).strip() for t in texts]
    assert evaluate(again, data=files["dev"]).metrics.keys() == tuned.metrics.keys()


def test_a_run_has_two_tokenizers_and_two_parents(
    tune: Tune, pair: dict[str, Path], files: dict[str, Path]
) -> None:
    tuned = tune()
    assert tuned.family == "firth"
    again = load(tuned.path)
    for own, parent in ((again.encoder_tokenizer, "model"), (again.tokenizer, "decoder")):
        assert own is not None
        assert own.fingerprint == load_tokenizer(pair[parent]).fingerprint
    assert again.config.encoder == replace(load(pair["model"]).config)
    run = json.loads((tuned.path / "run.json").read_text())
    for name, path in pair.items():
        assert run["parents"][name] == {"path": str(path), "sha256": fingerprint(path)}
    assert run["job"]["decoder"] == str(pair["decoder"])
    assert any("firth.load" in note for note in tuned.notes)
    card = (tuned.path / "README.md").read_text()
    assert all(str(path) in card for path in pair.values())
    for name, tensor in tuned.model.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    found = evaluate(again, data=files["dev"])
    for name, metric in tuned.metrics.items():
        assert found.metrics[name].value == pytest.approx(metric.value, abs=1e-9)
    with pytest.raises(MismatchError, match=r"only firth\.load"):
        export(tuned.path, tuned.path.parent / "hf")


def test_special_tokens_of_sources_and_targets(
    tune: Tune, pair: dict[str, Path], files: dict[str, Path]
) -> None:
    model = tune(overrides={"steps": 1}).model
    assert model.tokenizer is not None
    assert model.task is not None
    reader, task = model.require_encoder_tokenizer(), task_named("seq2seq")
    template = make_input_template(model.config, model.tokenizer, 20, reader)
    example = Seq2SeqExample(source="Red sun", target="dog cat")
    [item] = task.encode([example], template, model.task)
    read, written = load_tokenizer(pair["model"]), load_tokenizer(pair["decoder"])
    ids = read.special_ids
    assert item.rows[0].tokens.tolist() == [ids["cls"], *read.encode("red sun"), ids["sep"]]
    end = written.special_ids["eos"]
    assert item.target.tolist() == [*written.encode("dog cat"), end]
    batch = task.batch([item], model.task, model.config)
    assert batch.target is not None
    assert batch.target.tokens.tolist() == [end, *written.encode("dog cat")]


@pytest.mark.parametrize("strategy", mostly_nightly(["full", "lora"], always=["lora"]))
def test_resumed_equals_uninterrupted(strategy: str, tune: Tune, tmp_path: Path) -> None:
    overrides = {"steps": 8, "checkpoint_every": 2}
    whole = tune(strategy=strategy, out=tmp_path / "whole", overrides=overrides)

    options = {"strategy": strategy, "out": tmp_path / "again", "overrides": overrides}
    with pytest.raises(Killed):
        tune(callbacks=kill_at(5), **options)
    again = tune(resume=True, **options)
    ours, expected = again.model.network.state_dict(), whole.model.network.state_dict()
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


STRATEGIES = "lora adapters bitfit ia3 prefix prompt freeze:3 gradual probe".split()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", mostly_nightly(STRATEGIES, always=["lora", "prefix", "probe"]))
def test_every_strategy_trains_and_saves_cross_attention(
    strategy: str, tune: Tune, files: dict[str, Path], tmp_path: Path
) -> None:
    spec = f"{strategy}:length=4" if strategy in ("prefix", "prompt") else strategy
    tuned = tune(strategy=spec, overrides={"steps": 4, "learning_rate": 5e-3})
    moved = shutil.move(tuned.path, tmp_path / "elsewhere")
    again, network = load(moved), tuned.model.network
    assert again.network.state_dict().keys() == network.state_dict().keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    outputs = [
        name for name in cross_attention_names(network) if name.endswith("cross.output.weight")
    ]
    assert len(outputs) == 3
    assert tuned.saved_bytes > 4 * tuned.model.num_parameters  # with the joined base
    for name in outputs:  # they were initialised with zeros
        assert network.get_parameter(name).abs().max() > 0
    assert bool(get_adapters(again.network)) == (strategy in STRATEGIES[:6])
    found = evaluate(again, data=files["dev"])
    for name, metric in tuned.metrics.items():
        assert found.metrics[name].value == pytest.approx(metric.value, abs=1e-9)


def test_an_adapter_leaves_other_weights_unchanged(tune: Tune, pair: dict[str, Path]) -> None:
    network = tune(strategy="lora", overrides={"learning_rate": 5e-3}).model.network
    new = set(cross_attention_names(network))
    for side, model in (("encoder.", load(pair["model"])), ("decoder.", load(pair["decoder"]))):
        state = model.network.state_dict()
        kept = [name for name in state if name.startswith(side) and name not in new]
        assert kept
        assert all(torch.equal(network.get_parameter(name), state[name]) for name in kept)


@pytest.mark.nightly
def test_a_joined_model_is_fine_tuned_again(
    tune: Tune, files: dict[str, Path], tmp_path: Path
) -> None:
    first = tune(out=tmp_path / "first", overrides={"steps": 10, "learning_rate": 3e-3})
    for strategy in ("full", "lora"):
        out = tmp_path / strategy
        overrides = {"learning_rate": 1e-3}
        options = {"strategy": strategy, "out": out, "overrides": overrides}
        more = tune(model=first.path, decoder=None, **options)
        assert load(out).encoder_tokenizer is not None
        assert losses(out, "validation")[-1] <= losses(first.path, "validation")[0]
        assert more.config.decoder is None
        assert predict(out, data=files["dev"]).answers
    again = tune(model=tmp_path / "lora", decoder=None, strategy="lora", out=tmp_path / "twice")
    kept = load(tmp_path / "twice").network.state_dict()
    for name, tensor in again.model.network.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    with pytest.raises(MismatchError, match="can be fine-tuned on seq2seq, not on classify"):
        tune(model=first.path, decoder=None, task="classify", out=tmp_path / "no")


def test_embeddings_are_those_of_the_encoder(tune: Tune, pair: dict[str, Path]) -> None:
    tuned = tune(strategy="lora:targets=cross.query", overrides={"steps": 1})
    ours, alone = load(tuned.path).embed(["red dog"]), load(pair["model"]).embed(["red dog"])
    assert ours.shape == (1, 48)
    assert ours == pytest.approx(alone, abs=1e-6)


def test_invalid_combinations(
    tune: Tune, pair: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="`decoder` is for seq2seq"):
        tune(task="classify")
    with pytest.raises(MismatchError, match="must be an encoder, but its architecture is decoder"):
        tune(model=pair["decoder"])
    with pytest.raises(MismatchError, match="must be a decoder, but its architecture is encoder"):
        tune(decoder=pair["model"])
    with pytest.raises(MismatchError, match="--decoder"):
        tune(decoder=None)
    with pytest.raises(MismatchError, match="two tokenizers"):
        tune(replay=files["words"])
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_missing_encoder_tokenizer_is_an_error(tune: Tune, tmp_path: Path) -> None:
    run = tune(overrides={"steps": 1}).path
    (run / "reader").rename(tmp_path / "gone")
    with pytest.raises(MismatchError, match=r"lacks the tokenizer of its encoder.* reader"):
        load(run).generate("red dog")


def test_a_decoder_on_the_command_line(
    firth_here: Callable[..., Result], pair: dict[str, Path], files: dict[str, Path]
) -> None:
    made = firth_here(
        *("finetune", pair["model"], "--decoder", pair["decoder"], "--task", "seq2seq"),
        *("--train", files["train"], "--dev", files["dev"], "--out", "run", "--json"),
        *("--set", "steps=2", "--set", "max_length=20", "--device", "cpu"),
    )
    assert made.returncode == 0, made.stderr
    assert made.json["family"] == "firth"
    assert made.json["saved_bytes"] > 0
    assert Path("run/reader/tokenizer.json").is_file()
