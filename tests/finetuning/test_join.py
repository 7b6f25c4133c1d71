"""An encoder taught to write: joined to a decoder with another tokenizer, from file to answer."""

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

from firth.adapt.adapted import adapters_on
from firth.errors import MismatchError, Misuse
from firth.evaluation import evaluate
from firth.finetuning import Tuned, finetune
from firth.model import Model, export, load
from firth.models.join import crossing
from firth.prediction import predict
from firth.runs import fingerprint
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer
from firth.training.loop import Hooks
from tests.finetuning.conftest import QUICK, save

WORDS = ["red", "blue", "dog", "cat", "sun", "sea"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two words to be written as they are read."""
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
    small = {"head_width": 0, "kv_heads": 0, "dropout": 0.0, "attention_dropout": 0.0}
    shape = {"width": 48, "layers": 1, "heads": 4, "inner": 64, "context": 40, **small}
    save("bert-tiny", pieces, folder / "bert", **shape)
    bytes_, _ = train_tokenizer(words, kind="bpe", vocab_size=264, specials="gpt2", workers=1)
    end = bytes_.special_ids["eos"]
    shape = {"width": 32, "layers": 3, "heads": 2, "inner": 64, "context": 24, **small}
    roles = {"padding_id": None, "begin_id": end, "end_id": end, "vocabulary": len(bytes_)}
    _save_gpt2(bytes_, folder / "gpt2", {**shape, **roles})
    return {"model": folder / "bert", "decoder": folder / "gpt2"}


def _save_gpt2(tokenizer: Tokenizer, path: Path, shape: dict[str, Any]) -> None:
    from firth.models.initial import initialise
    from firth.models.presets import preset
    from firth.models.transformer import Transformer

    config = replace(preset("gpt2").config, **shape)
    Model(initialise(Transformer(config, ["language"]), seed=1), tokenizer).save(path)


@pytest.fixture
def teach(pair: dict[str, Path], files: dict[str, Path], tmp_path: Path) -> Callable[..., Tuned]:
    def run(**options: Any) -> Tuned:
        data = {"train": files["train"], "dev": files["dev"], "out": tmp_path / "run"}
        given = {"task": "seq2seq", **pair, **data, **options}
        given["changes"] = QUICK | {"length": "20"} | dict(given.get("changes", {}))
        return finetune(**given)

    return run


Teach = Callable[..., Tuned]
LEARN = {"steps": 60, "batch": "18", "rate": 1e-2, "validate_every": 0.2, "warmup": 0.1}


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "validation"]


def test_it_learns_to_copy_and_says_what_it_reads(teach: Teach, files: dict[str, Path]) -> None:
    tuned = teach(changes=LEARN)
    found = losses(tuned.path)
    assert min(found) < 0.25 * found[0]
    writes, rows = load(tuned.path).tokenizer, files["train"].read_text().splitlines()[1:]
    assert writes is not None
    tokens = [len(writes.encode(row.split("\t")[1])) + 1 for row in rows]
    # Who does not look at the source guesses one of six words, twice.
    assert min(found) < 0.7 * 2 * math.log(6) * len(rows) / sum(tokens)
    answers = predict(tuned.path, data=files["dev"]).answers
    again = load(tuned.path)
    texts = [line.split("\t")[0] for line in files["dev"].read_text().splitlines()[1:]]
    assert [answer["text"] for answer in answers] == [again.generate(t).strip() for t in texts]
    assert evaluate(again, data=files["dev"]).figures.keys() == tuned.figures.keys()


def test_a_run_holds_both_tokenizers_and_names_both_parents(
    teach: Teach, pair: dict[str, Path], files: dict[str, Path]
) -> None:
    tuned = teach()
    assert tuned.family == "firth"
    again = load(tuned.path)
    for own, parent in ((again.reader_tokenizer, "model"), (again.tokenizer, "decoder")):
        assert own is not None
        assert own.fingerprint == Tokenizer.load(pair[parent]).fingerprint
    assert again.config.reader == replace(load(pair["model"]).config)
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
    for name, figure in tuned.figures.items():
        assert found.figures[name].value == pytest.approx(figure.value, abs=1e-9)
    with pytest.raises(MismatchError, match="opens with firth"):
        export(tuned.path, tuned.path.parent / "hf")


def test_sources_and_targets_are_framed_each_in_its_own_way(
    teach: Teach, pair: dict[str, Path], files: dict[str, Path]
) -> None:
    from firth.tasks.frame import make_frame
    from firth.tasks.reading.examples import Translated
    from firth.tasks.table import task_named

    model = teach(changes={"steps": 1}).model
    assert model.tokenizer is not None
    assert model.task is not None
    reader, task = model.reader_needed(), task_named("seq2seq")
    frame = make_frame(model.config, model.tokenizer, 20, reader)
    item = task.encode([Translated(source="Red sun", target="dog cat")], frame, model.task)[0]
    read, written = Tokenizer.load(pair["model"]), Tokenizer.load(pair["decoder"])
    ids = read.special_ids
    assert item.rows[0].tokens.tolist() == [ids["cls"], *read.encode("red sun"), ids["sep"]]
    end = written.special_ids["eos"]
    assert item.target.tolist() == [*written.encode("dog cat"), end]
    batch = task.batch([item], model.task, model.config)
    assert batch.target is not None
    assert batch.target.tokens.tolist() == [end, *written.encode("dog cat")]


@pytest.mark.parametrize("strategy", ["full", "lora"])
def test_killed_and_resumed_it_ends_with_the_same_bits(
    strategy: str, teach: Teach, tmp_path: Path
) -> None:
    changes = {"steps": 8, "checkpoint_every": 2}
    whole = teach(strategy=strategy, out=tmp_path / "whole", changes=changes)

    class Killed(Exception):
        pass

    def kill(state: Any) -> None:
        if state.step == 5:
            raise Killed

    with pytest.raises(Killed):
        hooks = Hooks(before_step=kill)
        teach(strategy=strategy, out=tmp_path / "again", changes=changes, hooks=hooks)
    again = teach(strategy=strategy, out=tmp_path / "again", changes=changes, resume=True)
    ours, expected = again.model.network.state_dict(), whole.model.network.state_dict()
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


STRATEGIES = [
    "lora",
    "adapters",
    "bitfit",
    "ia3",
    "prefix",
    "prompt",
    "freeze:3",
    "gradual",
    "probe",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_every_strategy_what_is_new_learns_and_is_kept(
    strategy: str, teach: Teach, files: dict[str, Path], tmp_path: Path
) -> None:
    spec = f"{strategy}:length=4" if strategy in ("prefix", "prompt") else strategy
    tuned = teach(strategy=spec, changes={"steps": 4, "rate": 5e-3})
    moved = shutil.move(tuned.path, tmp_path / "elsewhere")  # a run is one piece
    again, network = load(moved), tuned.model.network
    assert again.network.state_dict().keys() == network.state_dict().keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    outputs = [name for name in crossing(network) if name.endswith("cross.output.weight")]
    assert len(outputs) == 3
    assert tuned.size > 4 * tuned.model.parameters  # bytes: the joined base is there, too
    for name in outputs:  # they were zero, and had no other way to become something
        assert network.get_parameter(name).abs().max() > 0
    assert bool(adapters_on(again.network)) == (strategy in STRATEGIES[:6])
    found = evaluate(again, data=files["dev"])
    for name, figure in tuned.figures.items():
        assert found.figures[name].value == pytest.approx(figure.value, abs=1e-9)


def test_what_an_adapter_does_not_touch_stays(teach: Teach, pair: dict[str, Path]) -> None:
    network = teach(strategy="lora", changes={"rate": 5e-3}).model.network
    new = set(crossing(network))
    for side, model in (("encoder.", load(pair["model"])), ("decoder.", load(pair["decoder"]))):
        state = model.network.state_dict()
        kept = [name for name in state if name.startswith(side) and name not in new]
        assert kept
        assert all(torch.equal(network.get_parameter(name), state[name]) for name in kept)


def test_a_joined_model_learns_on_like_any_other(
    teach: Teach, files: dict[str, Path], tmp_path: Path
) -> None:
    first = teach(out=tmp_path / "first", changes={"steps": 10, "rate": 3e-3})
    for strategy in ("full", "lora"):
        out = tmp_path / strategy
        changes = {"rate": 1e-3}
        more = teach(model=first.path, decoder=None, strategy=strategy, out=out, changes=changes)
        assert load(out).reader_tokenizer is not None
        assert losses(out)[-1] <= losses(first.path)[0]
        assert more.job.decoder is None
        assert predict(out, data=files["dev"]).answers
    again = teach(model=tmp_path / "lora", decoder=None, strategy="lora", out=tmp_path / "twice")
    kept = load(tmp_path / "twice").network.state_dict()
    for name, tensor in again.model.network.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    with pytest.raises(MismatchError, match="can be taught seq2seq, not classify"):
        teach(model=first.path, decoder=None, task="classify", out=tmp_path / "no")


def test_vectors_of_texts_are_the_encoders_own(teach: Teach, pair: dict[str, Path]) -> None:
    tuned = teach(strategy="lora:targets=cross.query", changes={"steps": 1})
    ours, alone = load(tuned.path).embed(["red dog"]), load(pair["model"]).embed(["red dog"])
    assert ours.shape == (1, 48)
    assert ours == pytest.approx(alone, abs=1e-6)


def test_what_does_not_go_together_is_said_in_one_sentence(
    teach: Teach, pair: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(Misuse, match="--decoder gives an encoder the means to write: for seq2seq"):
        teach(task="classify")
    with pytest.raises(MismatchError, match="must be an encoder, but its architecture is decoder"):
        teach(model=pair["decoder"])
    with pytest.raises(MismatchError, match="must be a decoder, but its architecture is encoder"):
        teach(decoder=pair["model"])
    with pytest.raises(MismatchError, match="with --decoder MODEL"):
        teach(decoder=None)
    with pytest.raises(MismatchError, match="two vocabularies"):
        teach(replay=files["words"])
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_without_its_readers_tokenizer_says_so(teach: Teach, tmp_path: Path) -> None:
    run = teach(changes={"steps": 1}).path
    (run / "reader").rename(tmp_path / "gone")
    with pytest.raises(MismatchError, match=r"lacks the tokenizer of its encoder.* reader"):
        load(run).generate("red dog")


def test_the_command_line_knows_it(
    firth: Callable[..., Any], pair: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    made = firth(
        *("finetune", pair["model"], "--decoder", pair["decoder"], "--task", "seq2seq"),
        *("--train", files["train"], "--dev", files["dev"], "--out", "run", "--json"),
        *("--set", "steps=2", "--set", "length=20", "--device", "cpu"),
    )
    assert made.returncode == 0, made.stderr
    assert made.json["family"] == "firth"
    assert made.json["size"] > 0
    assert (tmp_path / "run" / "reader" / "tokenizer.json").is_file()
