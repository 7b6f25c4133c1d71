"""A server in a thread for the browser, with small models for every tab of the playground."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn

import firth
from firth.serve.app import make_app
from firth.serve.running import bind
from firth.serve.server_config import ServeConfig
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import attach_head

TASKS = {
    "sentiment": TaskMetadata(task="classify", labels=("negative", "positive")),
    "names": TaskMetadata(
        task="tag",
        labels=("O", "B-PERSON", "I-PERSON", "B-PLACE"),
        options={"entities": True},
    ),
    "questions": TaskMetadata(task="span", options={"unanswered": False, "threshold": 0.0}),
}


def task_model(name: str) -> firth.Model:
    """Return the embedded encoder with an untrained head."""
    model, metadata = firth.load("stories-encoder"), TASKS[name]
    attach_head(model.network, metadata.task, metadata, {}, seed=1)
    model.network.eval()
    model.task = metadata
    return model


@contextmanager
def running_server(models: Mapping[str, firth.Model], api_key: str | None = None) -> Iterator[str]:
    """Serve models in a thread; yield the address."""
    config = ServeConfig(port=0)
    app = make_app(models, config, api_key=api_key)
    bound = bind(config)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False))
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
