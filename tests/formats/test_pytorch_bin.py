"""Legacy pickles: the same numbers as safetensors, once they are allowed; nothing is ever run."""

from __future__ import annotations

import ast
import json
import os
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import firth
from firth import InputError, load
from firth.formats.pytorch_bin import as_safetensors
from firth.formats.safetensors import DTYPES, open_weights

NEW, OLD = True, False  # a zip archive, or one pickle after another as before PyTorch 1.6
SIZE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
BERT = transformers.BertConfig(vocab_size=40, max_position_embeddings=32, **SIZE)
GPT2 = transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2)
T5 = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertForMaskedLM(BERT),
    "gpt2": lambda: transformers.GPT2LMHeadModel(GPT2),
    "t5": lambda: transformers.T5ForConditionalGeneration(T5),
}


def save(value: Any, path: Path, zipped: bool = NEW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A directory whose weights are a pickle."""
    model = MODELS["bert"]()
    model.config.save_pretrained(tmp_path / "bert")
    save(model.state_dict(), tmp_path / "bert/pytorch_model.bin")
    return tmp_path / "bert"


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(InputError) as refused:
        as_safetensors(folder, **{"allowed": True, **options})
    assert "\n" not in str(refused.value)
    assert not list(folder.glob("*.safetensors*"))
    assert not list(folder.glob(".*"))
    return str(refused.value)


# --- the same numbers


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_from_a_pickle(name: str, tmp_path: Path) -> None:
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path / "new")
    theirs.config.save_pretrained(tmp_path / "old")
    save(theirs.state_dict(), tmp_path / "old/pytorch_model.bin")
    wanted, ours = load(tmp_path / "new"), load(tmp_path / "old", allow_legacy=True)
    assert ours.path == tmp_path / "old"
    assert ours.config == wanted.config
    assert list(ours.network.heads) == list(wanted.network.heads)
    for key, tensor in wanted.network.state_dict().items():
        assert torch.equal(ours.network.state_dict()[key], tensor), key
    rewritten = load_file(tmp_path / "old/model.safetensors")
    assert rewritten.keys() == theirs.state_dict().keys()  # tied ones under each of their names
    again = type(theirs).from_pretrained(tmp_path / "old", use_safetensors=True)
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(rewritten[key], tensor), key
        assert torch.equal(again.state_dict()[key], tensor), key


@pytest.mark.parametrize("zipped", [NEW, OLD])
def test_names_types_and_shapes_stay(zipped: bool, tmp_path: Path) -> None:
    tensors = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    tensors |= {"turned": torch.arange(6.0).reshape(2, 3).t(), "part": torch.arange(9.0)[2:5]}
    tensors |= {"parameter": nn.Parameter(torch.ones(3)), "é ü": torch.ones(1)}
    tensors["tied"] = tensors["parameter"]
    save(tensors, tmp_path / "pytorch_model.bin", zipped)
    assert as_safetensors(tmp_path, allowed=True) == tmp_path
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor.detach())


def test_several_pickles_become_as_many_files(tmp_path: Path) -> None:
    state = list(MODELS["bert"]().state_dict().items())
    shards = {f"pytorch_model-0000{i}-of-00003.bin": dict(state[i - 1 :: 3]) for i in (1, 2, 3)}
    for name, part in shards.items():
        save(part, tmp_path / name)
    homes = {key: name for name, part in shards.items() for key in part}
    index = {"metadata": {"total_size": 1}, "weight_map": homes}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert "only as pytorch_model.bin.index.json" in refusal(tmp_path, allowed=False)
    as_safetensors(tmp_path, allowed=True)
    weights = open_weights(tmp_path)
    assert weights.keys() == dict(state).keys()
    for name, tensor in state:
        assert torch.equal(weights[name], tensor)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_further_layers_of_a_sentence_encoder(bert: Path) -> None:
    save({"linear.weight": torch.ones(2, 2)}, bert / "2_Dense/pytorch_model.bin")
    (bert / "1_Pooling").mkdir()
    as_safetensors(bert, allowed=True)
    assert load_file(bert / "2_Dense/model.safetensors")["linear.weight"].sum() == 4
    (bert / "2_Dense/model.safetensors").unlink()
    assert as_safetensors(bert, allowed=False) == bert  # those who need it will say so
    assert not (bert / "2_Dense/model.safetensors").exists()


# --- only when it is allowed


def test_a_pickle_is_not_touched_until_it_is_allowed(bert: Path) -> None:
    before = {path.name: path.read_bytes() for path in bert.iterdir()}
    with pytest.raises(InputError) as refused:
        load(bert)
    for fact in (str(bert), "pytorch_model.bin", "`allow_legacy`"):
        assert fact in str(refused.value)
    assert {path.name: path.read_bytes() for path in bert.iterdir()} == before
    allowed = load(bert, allow_legacy=True)
    (bert / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")  # no longer opened
    again = load(bert, allow_legacy=True)
    for name, tensor in allowed.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], tensor)


def test_a_place_that_cannot_be_written_has_a_stand_in(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.access", lambda path, mode: bert not in (path, *Path(path).parents))
    save({"linear.weight": torch.ones(2, 2)}, bert / "2_Dense/pytorch_model.bin")
    (bert / "2_Dense/config.json").write_text("{}")
    (bert / "1_Pooling").mkdir()
    (bert / "1_Pooling/config.json").write_text("[]")
    before = sorted(bert.rglob("*"))
    with pytest.raises(InputError, match="allow_legacy"):
        load(bert)
    assert not (tmp_path / "cache").exists()
    allowed = load(bert, allow_legacy=True)
    assert sorted(bert.rglob("*")) == before
    assert allowed.path is not None
    assert allowed.path.parent == tmp_path / "cache/firth/legacy"
    held = {path.relative_to(allowed.path).as_posix() for path in allowed.path.rglob("*")}
    held |= {"1_Pooling/config.json"}  # behind a link
    assert held == {
        *("config.json", "model.safetensors", "1_Pooling", "1_Pooling/config.json"),
        *("2_Dense", "2_Dense/config.json", "2_Dense/model.safetensors"),
    }
    (bert / "vocab.txt").write_text("[PAD]")
    again = as_safetensors(bert, allowed=False)
    assert again == allowed.path
    assert (again / "vocab.txt").read_text() == "[PAD]"
    assert (again / "1_Pooling/config.json").read_text() == "[]"
    save(MODELS["bert"]().state_dict(), bert / "pytorch_model.bin")
    with pytest.raises(InputError, match="allow_legacy"):
        load(bert)  # it is another one now


# --- nothing is run


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [NEW, OLD, None])
def test_a_malicious_pickle_does_nothing(zipped: bool | None, tmp_path: Path) -> None:
    trap, file = tmp_path / "trap", tmp_path / "model/pytorch_model.bin"
    value = {"a": torch.ones(2), "b": [(Evil(trap),)]}
    save(value, file, bool(zipped))
    if zipped is None:
        file.write_bytes(pickle.dumps(value))
    message = refusal(file.parent)
    for fact in (str(file), "would run code" if zipped is None else "'posix.mkdir'", "safetensors"):
        assert fact in message
    assert not trap.exists()
    torch.load(file, weights_only=False) if zipped is not None else pickle.loads(file.read_bytes())
    assert trap.exists(), "it would have, had it been believed"


def test_one_bad_shard_spoils_all(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save({"a": torch.ones(2)}, model / "pytorch_model-00001-of-00002.bin")
    save({"b": Evil(tmp_path / "trap")}, model / "pytorch_model-00002-of-00002.bin")
    homes = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    index = model / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": homes}))
    assert "pytorch_model-00002-of-00002.bin calls 'posix.mkdir'" in refusal(model)
    assert not (tmp_path / "trap").exists()
    save({"c": torch.ones(2)}, model / "pytorch_model-00002-of-00002.bin")
    assert "says that pytorch_model-00002-of-00002.bin holds 'b'" in refusal(model)
    (model / "pytorch_model-00002-of-00002.bin").unlink()
    assert "pytorch_model-00002-of-00002.bin is not there" in refusal(model)
    for name in ("../outside.bin", "/etc/outside.bin", "a.safetensors", "b/c.bin"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        assert "which is not a bin file beside it" in refusal(model)


class Vast:
    """A thousand gigabytes in a few bytes, which `weights_only` would allow."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (10**12,)


def test_nothing_but_plain_tensors(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    one = torch.ones(2)
    save([one], file)
    assert "does not hold tensors with names" in refusal(tmp_path)
    values: list[Any] = [{"a": 1}, {"model": {"a": one}}, {"a": one.to(torch.complex64)}]
    values += [{1: one}, {"\ud800": one}, {"a\nb": one}, {"__metadata__": one}]
    for value in values:
        save(value, file)
        assert "which is not the name of a plain tensor of a known type" in refusal(tmp_path)
    for value in ({"a": one.to("meta")}, {"a": one.to(torch.uint16)}, {"a": one.to_sparse()}):
        save(value, file)
        assert "pytorch_model.bin calls 'torch." in refusal(tmp_path)
    save({"a": one, "b": Vast()}, file)
    assert "pytorch_model.bin calls '__builtin__.bytearray'" in refusal(tmp_path)


def test_small_files_cannot_fill_the_memory_or_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    tied = dict.fromkeys(map(str, range(100)), torch.zeros(10_000))
    for zipped in (NEW, OLD):
        for tensors in ({"a": torch.zeros(1).expand(10**6, 10**6)}, tied):
            save(tensors, file, zipped)
            assert "describes far more numbers than it holds" in refusal(tmp_path)
    save({"a": torch.zeros(10**6)}, file)
    shutil.move(file, tmp_path / "plain")
    with zipfile.ZipFile(tmp_path / "plain") as plain, zipfile.ZipFile(file, "w") as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name), zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 100_000
    assert "is damaged, or holds more than numbers" in refusal(tmp_path)


def test_random_files_never_do_worse_than_be_refused(tmp_path: Path) -> None:
    draw, file = random.Random(0), tmp_path / "pytorch_model.bin"
    tensors = {f"layer.{i}": torch.arange(20.0) for i in range(3)}
    wholes = [save(tensors, file, zipped).read_bytes() for zipped in (NEW, OLD)]

    def flipped(data: bytes) -> bytes:
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]

    damage: list[Callable[[bytes], bytes]] = [
        lambda whole: draw.randbytes(draw.randint(0, 2000)),
        lambda whole: whole[: draw.randrange(len(whole))],
        lambda whole: whole[(cut := draw.randrange(1, len(whole))) :] + whole[:cut],
        flipped,
    ]
    opened = 0
    for _ in range(200):
        file.write_bytes(draw.choice(damage)(draw.choice(wholes)))
        with suppress(InputError):
            as_safetensors(tmp_path, allowed=True)
            open_weights(tmp_path)  # a bit of a number, or of a name
            (tmp_path / "model.safetensors").unlink()
            opened += 1
        assert {path.name for path in tmp_path.iterdir()} == {"pytorch_model.bin"}
    assert opened < 100


def test_nothing_else_unpickles() -> None:
    """`torch.load` is called in one place, with `weights_only`; nobody imports `pickle`."""
    calls = []
    for path in Path(firth.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if not re.search(r"pickle|torch\.load|joblib|dill|shelve|marshal", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                calls.append((path.name, ast.unparse(node)))
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path
    assert [name for name, _ in calls] == ["pytorch_bin.py"]
    assert "weights_only=True" in calls[0][1]
