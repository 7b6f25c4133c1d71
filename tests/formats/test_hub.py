"""Models of the hub: only what is needed, only once, also without a network."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from typer.testing import CliRunner

from firth import InputError, UsageError, load
from firth.cli.app import app
from firth.formats.hub import hub_options, resolve
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.models.masks import Mask
from tests.conftest import Result
from tests.formats.conftest import NEEDED, UNNEEDED, made, pickled, refusal, saved, seed_of
from tests.formats.local_hub import Hub

# --- only what is needed, only once


def test_only_what_is_needed_is_fetched_and_only_once(hub: Hub, files: dict[str, bytes]) -> None:
    commit = hub.repository("org/tiny").push(files | UNNEEDED)
    model = load("org/tiny")
    assert hub.fetched() == NEEDED
    assert model.path is not None
    assert model.source == "org/tiny"
    assert model.path.parts[-3:] == ("models--org--tiny", "snapshots", commit)
    assert sorted(path.name for path in model.path.iterdir()) == NEEDED
    hub.forget()
    again = load("org/tiny")
    assert hub.fetched() == []
    asked = [path for _, path in hub.requests if not path.startswith("/api/agent")]
    assert asked == ["/api/models/org/tiny/revision/main"]
    ids = torch.tensor([[2, 5, 7, 4, 3]])
    wanted = made(1)(ids).logits[0]
    for one in (model, again):
        vectors = one.network(ids[0], Mask([5]))
        torch.testing.assert_close(one.network.logits(vectors), wanted, rtol=0, atol=1e-5)
        assert one.tokenizer is not None
        assert one.tokenizer.special_ids["mask"] == 4


def test_shards_are_those_that_the_index_names(hub: Hub, tmp_path: Path) -> None:
    sharded = saved(tmp_path / "sharded", 1, max_shard_size="10KB")
    index = "model.safetensors.index.json"
    shards = sorted(set(json.loads(sharded[index])["weight_map"].values()))
    assert len(shards) > 1
    stray = {"model-00009-of-00009.safetensors": b"of another time"}
    hub.repository("org/tiny").push(sharded | UNNEEDED | stray)
    assert seed_of(load("org/tiny")) == 1
    rest = [name for name in NEEDED if name != "model.safetensors"]
    assert hub.fetched() == sorted([*rest, index, *shards])
    hub.forget()
    assert seed_of(load("org/tiny")) == 1
    assert hub.fetched() == []
    assert seed_of(load("org/tiny", offline=True)) == 1
    del sharded[shards[1]]
    hub.repository("org/torn").push(sharded)
    assert "org/torn on the hub lacks files that its model.saf" in refusal("org/torn")


def test_a_hostile_index_fetches_nothing_else(hub: Hub, files: dict[str, bytes]) -> None:
    index = {"weight_map": {"a": "../../secret.safetensors"}}
    rest = {name: data for name, data in files.items() if name != "model.safetensors"}
    hostile = rest | {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.repository("org/tiny").push(hostile)
    assert "which is not a safetensors file beside it" in refusal("org/tiny")


def test_sentence_encoders_and_adapters_come_with_their_parts(
    hub: Hub, files: dict[str, bytes]
) -> None:
    parts = "modules.json sentence_bert_config.json config_sentence_transformers.json".split()
    parts += ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    dense = {"2_Dense/pytorch_model.bin": b"not needed"}
    encoder = files | UNNEEDED | dense | {part: part.encode() for part in parts}
    hub.repository("org/encoder").push(encoder)
    folder = resolve("org/encoder")
    assert hub.fetched() == sorted([*NEEDED, *parts])
    assert (folder / "2_Dense/model.safetensors").read_bytes() == b"2_Dense/model.safetensors"
    hub.forget()
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    hub.repository("org/adapter").push(adapter | UNNEEDED)
    assert (resolve("org/adapter") / "adapter_model.safetensors").read_bytes() == b"weights"
    assert hub.fetched() == sorted(adapter)


# --- revisions


def test_a_revision_has_its_own_weights(
    hub: Hub, files: dict[str, bytes], others: dict[str, bytes]
) -> None:
    repository = hub.repository("org/tiny")
    first = repository.push(files, "v1", "refs/pr/1")
    second = repository.push(others)
    for name in ("org/tiny@v1", f"org/tiny@{first}", "org/tiny@refs/pr/1"):
        assert seed_of(load(name)) == 1
    for name in ("org/tiny", "org/tiny@main", f"org/tiny@{second}"):
        assert seed_of(load(name)) == 2
    assert seed_of(load("org/tiny", revision="v1")) == 1
    assert seed_of(load("org/tiny@v1", offline=True)) == 1
    assert seed_of(load("org/tiny", offline=True)) == 2
    with pytest.raises(UsageError, match=r"org/tiny@v1 .*'v1'"):
        load("org/tiny@v1", revision="v1")


def test_a_new_commit_is_picked_up(tiny: Hub, others: dict[str, bytes]) -> None:
    assert seed_of(load("org/tiny")) == 1
    tiny.forget()
    tiny.repository("org/tiny").push(others)
    assert seed_of(load("org/tiny")) == 2
    assert tiny.fetched() == ["model.safetensors"]  # the other files are the same


def test_a_revision_that_does_not_exist(tiny: Hub) -> None:
    assert "org/tiny on the hub has no revision 'v7'" in refusal("org/tiny@v7")
    assert "no revision '../../main'" in refusal("org/tiny", revision="../../main")


# --- offline, and without a network


def test_offline_the_cache_will_do(tiny: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = refusal("org/tiny", offline=True)
    for fact in (huggingface_hub.constants.HF_HUB_CACHE, "does not hold the whole", "offline"):
        assert fact in before
    assert tiny.requests == []
    load("org/tiny")
    tiny.forget()
    assert seed_of(load("org/tiny", offline=True)) == 1
    with hub_options(offline=True):
        assert seed_of(load("org/tiny")) == 1
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert seed_of(load("org/tiny")) == 1
    assert "offline" in refusal("org/other")
    assert tiny.requests == []


def test_without_a_network_the_cache_will_do(tiny: Hub) -> None:
    load("org/tiny")
    tiny.stop()
    assert seed_of(load("org/tiny")) == 1
    assert f"{tiny.endpoint} cannot be reached" in refusal("org/other")


def test_what_another_program_has_cached_in_part_is_completed(
    tiny: Hub, files: dict[str, bytes]
) -> None:
    huggingface_hub.hf_hub_download("org/tiny", "model.safetensors")
    tiny.forget()
    assert load("org/tiny").tokenizer is not None
    assert tiny.fetched() == [name for name in NEEDED if name != "model.safetensors"]
    for name in ("model.safetensors", "config.json"):
        tiny.repository(f"org/only-{name}").push(files)
        huggingface_hub.hf_hub_download(f"org/only-{name}", name)
        assert "does not hold the whole model" in refusal(f"org/only-{name}", offline=True)


@pytest.mark.filterwarnings("ignore:.*IncompleteRead")
def test_an_interrupted_download_leaves_nothing_that_looks_finished(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.breaks.add("model.safetensors")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the library's attempts
    assert refusal("org/tiny").startswith("org/tiny could not be fetched from the hub (")
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    assert not list(cache.rglob("model.safetensors"))
    assert "does not hold the whole model" in refusal("org/tiny", offline=True)
    tiny.breaks.clear()
    assert seed_of(load("org/tiny")) == 1


# --- what is meant


def test_a_place_on_this_machine_is_meant_first(
    tiny: Hub, others: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in others.items():
        path = tmp_path / "org/tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert seed_of(load("org/tiny")) == 2
    assert tiny.requests == []
    assert seed_of(load("org/tiny@main")) == 1
    with pytest.raises(UsageError, match="only a model of the hub has a revision"):
        load("org/tiny", revision="main")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert resolve("model.gguf") == Path("model.gguf")


def test_what_is_no_name_is_not_asked_for(hub: Hub) -> None:
    for source in ("./org/tiny", "~/tiny", "a/b/c", "a b", "é", "-x", "org/tiny@", "@v", "a\0b"):
        assert "no such directory" in refusal(source)
    with pytest.raises(InputError, match="no such directory"):
        load(Path("org/tiny"))
    for source in ("a--b", "tiny.", "x" * 200, "org/tiny.git"):
        assert "no model on the hub can have that name" in refusal(source)
    assert hub.requests == []


# --- the command line


def test_export_takes_a_name_on_the_hub_and_is_quiet(
    firth_here: Callable[..., Result], hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repository("tiny").push(files | UNNEEDED)  # without an organisation
    done = firth_here("export", "tiny@main", "out", "--json")
    assert done.json["family"] == "bert"
    assert done.stderr == ""
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    for name, tensor in made(1).state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name


def test_the_options_of_verbs_that_open_models(
    tiny: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    def export(name: str, *options: str) -> Any:
        return CliRunner().invoke(app, ["export", name, str(tmp_path / "out"), *options])

    before = export("org/tiny", "--offline")
    assert (before.exit_code, tiny.requests) == (1, [])
    assert before.stderr.startswith("firth: There is no directory org/tiny")
    assert not (tmp_path / "out").exists()
    tiny.repository("org/old").push(pickled(files, tmp_path))
    assert "add --allow-legacy" in export("org/old").stderr
    assert export("org/old", "--allow-legacy").exit_code == 0


def test_a_progress_bar_on_a_terminal_when_it_takes_a_while(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.set_blocking(master, False)
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr("firth.formats.hub.PROGRESS_DELAY", 60.0)
        load("org/tiny")
        with pytest.raises(BlockingIOError):  # there is nothing to read
            os.read(master, 100_000)
        monkeypatch.setattr("firth.formats.hub.PROGRESS_DELAY", 0.0)
        load("org/tiny@main")
        terminal.flush()
        assert "Fetching 3 files" in os.read(master, 100_000).decode()
        monkeypatch.undo()
    os.close(master)


def test_pretraining_goes_on_from_a_model_of_the_hub(
    hub: Hub, files: dict[str, bytes], tmp_path: Path, sample: Path
) -> None:
    commit = hub.repository("org/tiny").push(files)
    folder = resolve("org/tiny")
    prepare([sample], tokenizer=folder, out=tmp_path / "shards", workers=1)
    shape = dict(hidden_size=16, num_heads=2, ffn_size=32, num_layers=2)
    overrides = {f"model.{name}": value for name, value in shape.items()}
    overrides |= {"max_length": "16", "batch_tokens": "64", "precision": "fp32"}
    trained = pretrain(
        preset="bert-tiny",
        data=tmp_path / "shards",
        out=tmp_path / "run",
        objective="masked",
        steps=1,
        source="org/tiny@main",
        overrides=overrides,
    )
    assert trained.config.source == str(folder)
    lineage = json.loads((tmp_path / "run/run.json").read_text())["parents"]["source"]
    assert lineage["path"].endswith(f"models--org--tiny/snapshots/{commit}")
