"""Models of the hub that cannot be had, or only if a pickle is allowed: one sentence each."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from firth import StorageError, load
from firth.formats.hub import hub_options
from tests.formats.conftest import made, pickled, refusal, seed_of
from tests.formats.local_hub import Hub


def test_there_is_no_such_model(hub: Hub) -> None:
    message = refusal("org/nosuch")
    for fact in ("no directory org/nosuch", "hub has no model org/nosuch", "HF_TOKEN"):
        assert fact in message


def test_a_private_model_needs_its_token_which_no_other_host_sees(
    hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repository("org/private").push(files)
    hub.repository("org/private").token = "hf_secret"
    assert "the hub has no model org/private" in refusal("org/private")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub has no model org/private" in refusal("org/private")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert seed_of(load("org/private")) == 1
    assert ("127.0.0.1", "hf_secret") in hub.tokens
    assert {token for host, token in hub.tokens if host == "localhost"} == {None}


@pytest.mark.parametrize("hidden", [True, False])
def test_a_gated_model(tiny: Hub, hidden: bool) -> None:
    repository = tiny.repository("org/tiny")
    repository.refusal, repository.hidden = (403, {"X-Error-Code": "GatedRepo"}), hidden
    message = refusal("org/tiny")
    for fact in ("is gated", f"{tiny.endpoint}/org/tiny", "HF_TOKEN"):
        assert fact in message


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "the token"),
        (403, {}, "does not give access (it answered 403 to a request for org/tiny)"),
        (500, {}, "has a problem of its own (it answered 500"),
    ],
)
def test_a_hub_that_refuses(tiny: Hub, status: int, headers: dict[str, str], said: str) -> None:
    repository = tiny.repository("org/tiny")
    repository.refusal, repository.hidden = (status, headers), True
    assert said in refusal("org/tiny")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full: org/tiny does not"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written; set HF_HUB_CACHE"),
    ],
)
def test_a_cache_without_room(
    hub: Hub, error: OSError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(StorageError, match=said):
        load("org/tiny")


def test_weights_of_a_model_that_cannot_be_read_are_not_fetched(
    hub: Hub, files: dict[str, bytes]
) -> None:
    hub.repository("org/odd").push(files | {"config.json": b'{"model_type": "odd"}'})
    assert "'odd'" in refusal("org/odd")
    assert "model.safetensors" not in hub.fetched()
    hub.repository("org/gguf").push({"model.Q4_K_M.gguf": b"GGUF", "README.md": b""})
    assert "org/gguf on the hub has no config.json" in refusal("org/gguf")
    hub.repository("org/flax").push(
        {"config.json": files["config.json"], "flax_model.msgpack": b""}
    )
    assert "org/flax on the hub holds no weights" in refusal("org/flax")


def test_only_a_pickle(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.repository("org/old").push(pickled(files, tmp_path))
    refused = refusal("org/old")
    for fact in ("org/old", "only as pytorch_model.bin", "allow_legacy"):
        assert fact in refused
    assert "pytorch_model.bin" not in hub.fetched()
    hub.forget()
    with hub_options(allow_legacy=True):
        assert seed_of(load("org/old")) == 1
    assert hub.fetched() == ["pytorch_model.bin"]
    hub.forget()
    assert seed_of(load("org/old")) == 1  # it is safetensors now
    assert seed_of(load("org/old", offline=True)) == 1
    assert hub.fetched() == []


def test_only_several_pickles(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    state = list(made(1).state_dict().items())
    shards = {"pytorch_model-00001-of-00002.bin": state[:9]}
    shards["pytorch_model-00002-of-00002.bin"] = state[9:]
    several = {name: data for name, data in files.items() if name != "model.safetensors"}
    for name, part in shards.items():
        torch.save(dict(part), tmp_path / name)
        several[name] = (tmp_path / name).read_bytes()
    homes = {key: name for name, part in shards.items() for key, _ in part}
    index = "pytorch_model.bin.index.json"
    several[index] = json.dumps({"weight_map": homes}).encode()
    dense = "1_Dense/pytorch_model.bin"  # a further layer of a sentence encoder
    torch.save({"linear.weight": torch.ones(2)}, tmp_path / "dense")
    several[dense] = (tmp_path / "dense").read_bytes()
    several |= {"2_Dense/pytorch_model.bin": b"not needed", "2_Dense/model.safetensors": b"new"}
    hub.repository("org/old").push(several)
    assert f"only as {index}" in refusal("org/old")
    hub.forget()
    assert seed_of(load("org/old", allow_legacy=True)) == 1
    assert hub.fetched() == sorted([index, *shards, dense])
    assert seed_of(load("org/old", offline=True)) == 1
