"""Models and clients of the server's tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

import firth
from firth.formats.huggingface.directory import add_label_head
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.serve.app import make_app
from firth.serve.server_config import ServeConfig
from firth.tasks.task import TaskMetadata

LOCAL = "http://localhost"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LABELS = {"one": ("bad", "good"), "number": ("score",), "tag": ("O", "B-A"), "span": ()}


def task_model(task: str, head: str, label_type: str = "one") -> firth.Model:
    """A random encoder with a head for a task."""
    tokenizer = firth.load("stories-encoder").tokenizer
    assert tokenizer is not None
    labels = LABELS[task if task in LABELS else label_type]
    plain = replace(preset("bert-tiny").config, vocab_size=len(tokenizer))
    config, heads = add_label_head(plain, head, labels, label_type)
    torch.manual_seed(0)
    network = Transformer(config, heads).eval()
    options: dict[str, Any] = {"tag": {"entities": True}}.get(task, {})
    if task == "span":
        options = {"unanswered": False, "threshold": 0.0}
    metadata = TaskMetadata(
        task=task, labels=labels, label_type=label_type, max_length=64, options=options
    )
    return firth.Model(network, tokenizer, task=metadata)


@pytest.fixture(scope="session")
def served_models() -> dict[str, firth.Model]:
    names = ("stories-encoder", "stories-decoder", "stories-seq2seq")
    found = {name.removeprefix("stories-"): firth.load(name) for name in names}
    chat = firth.load("stories-decoder")
    assert chat.tokenizer is not None
    chat.tokenizer.config["chat_template"] = TEMPLATE
    return {**found, "chat": chat}


@pytest.fixture(scope="session")
def client(served_models: dict[str, firth.Model]) -> Iterator[TestClient]:
    with TestClient(make_app(served_models), base_url=LOCAL) as client:
        yield client


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Serve an app on a free port, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def address(served_models: dict[str, firth.Model]) -> Iterator[str]:
    with running(make_app(served_models, ServeConfig())) as url:
        yield url


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
