"""Access, limits, load, cancellation and the end of the server."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from starlette.requests import Request
from starlette.testclient import TestClient

import firth
from firth.cli.serve import serve
from firth.inference.generation.sequence_request import SequenceRequest
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.serve.admission import Admission
from firth.serve.app import make_app
from firth.serve.event_stream import EventStream
from firth.serve.model_worker import ModelWorker
from firth.serve.request_body import parse_json
from firth.serve.running import name_models
from firth.serve.served_model import ServedModel
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics
from firth.utils.errors import FirthError, UsageError
from tests.serve.conftest import LOCAL, events, running

KEY = "a-secret-key"


def test_other_hosts_are_refused(client: TestClient) -> None:
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/health", headers={"Host": "127.0.0.1:8000"}).status_code == 200


def test_invalid_logits_end_one_request() -> None:
    tokenizer = firth.load("stories-decoder").require_tokenizer()
    small: Any = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8)
    size: Any = dict(vocab_size=len(tokenizer), max_positions=64, tie_embeddings=False)
    config = replace(preset("gpt2").config, ffn_size=16, **small, **size)
    network = initialise(Transformer(config, ["language"]), seed=0).eval()
    damaged = tokenizer.encode(" cat")[0]
    with torch.no_grad():
        network.tokens.weight[damaged] = float("nan")
    bias = {"logit_bias": {str(damaged): -100}}
    with TestClient(make_app({"d": firth.Model(network, tokenizer)}), base_url=LOCAL) as client:
        send = partial(client.post, "/v1/completions")
        good = {"prompt": "The dog", "max_tokens": 40, **bias}
        with ThreadPoolExecutor() as pool:
            running = pool.submit(send, json=good)
            found = [send(json={"prompt": "The cat", "max_tokens": 5}) for _ in range(4)]
            alone = running.result()
        assert alone.status_code == 200, alone.text
        assert alone.json()["usage"]["completion_tokens"] == 40
        for one in [*found, send(json={"prompt": "The cat", "echo": True, "logprobs": 1})]:
            assert one.status_code == 500
            assert one.json()["error"]["code"] == "not_finite"
            assert "NaN" in one.json()["error"]["message"]
        streamed = send(json={"prompt": "The cat", "stream": True})
        assert events(streamed.text)[-1]["error"]["code"] == "not_finite"


def test_the_key_is_required(served_models: dict[str, firth.Model]) -> None:
    with pytest.raises(UsageError, match="FIRTH_API_KEY"):
        make_app(served_models, ServeConfig(host="0.0.0.0"))
    app = make_app({"encoder": served_models["encoder"]}, api_key=KEY)
    with TestClient(app, base_url=LOCAL) as client:
        assert client.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            found = client.get("/v1/models", headers=headers)
            assert found.status_code == 401
            assert found.json()["error"]["type"] == "authentication_error"
        right = {"Authorization": f"Bearer {KEY}"}
        assert client.get("/v1/models", headers=right).status_code == 200


def test_other_origins_are_off_by_default(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in client.get("/health", headers=origin).headers
    config = ServeConfig(allow_origins=("https://page.example",))
    with TestClient(make_app({"e": served_models["encoder"]}, config), base_url=LOCAL) as allowed:
        found = allowed.get("/health", headers=origin).headers
        assert found["access-control-allow-origin"] == "https://page.example"
        other = allowed.get("/health", headers={"Origin": "https://other.example"}).headers
        assert "access-control-allow-origin" not in other


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1' + b"0" * 5000 + b"}"),
        *(b'{"a": "\xff"}', b'{"a":' * 50_000, b'{"a": 1,}', b"{'a': 1}"),
    ],
)
def test_json_is_strict(body: bytes) -> None:
    with pytest.raises(FirthError):
        parse_json(body)


def test_requests_are_limited_in_bytes(served_models: dict[str, firth.Model]) -> None:
    config = ServeConfig(max_request_bytes=1000)
    with TestClient(make_app({"e": served_models["encoder"]}, config), base_url=LOCAL) as client:
        assert client.post("/tokenize", json={"text": "a" * 2000}).status_code == 413
        chunks = (b"x" * 100 for _ in range(20))  # without a Content-Length
        assert client.post("/tokenize", content=chunks).status_code == 413
        assert client.post("/tokenize", json={"text": "a"}).status_code == 200


def test_a_full_queue_is_a_429(served_models: dict[str, firth.Model]) -> None:
    config = ServeConfig(queue_tokens=60)
    statuses: list[int] = []

    def post(**more: Any) -> None:
        body = {"prompt": "The dog", "max_tokens": 40, "temperature": 0, **more}
        found = client.post("/v1/completions", json=body)
        statuses.append(found.status_code)
        if found.status_code == 429:
            assert int(found.headers["retry-after"]) >= 1
            assert found.json()["error"]["type"] == "rate_limit_error"

    with TestClient(make_app({"d": served_models["decoder"]}, config), base_url=LOCAL) as client:
        threads = [threading.Thread(target=post) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        post(max_tokens=400)  # larger than the limit, but nothing else waits
        assert statuses[-1] == 200


def test_every_route_that_reads_a_text_counts_its_tokens(
    served_models: dict[str, firth.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, counted = Admission.reserve, list[int]()

    def recorded(self: Admission, tokens: int) -> Any:
        counted.append(tokens)
        self.tokens = 60 if tokens > 40 else 0  # others wait
        return reserve(self, tokens)

    monkeypatch.setattr(Admission, "reserve", recorded)
    app = make_app({"d": served_models["decoder"]}, ServeConfig(queue_tokens=60))
    long = "The dog barked at the old cat. " * 8
    bodies: dict[str, Any] = {
        "/tokenize": ({"text": "The dog"}, {"text": long}),
        "/detokenize": ({"tokens": [5, 6]}, {"tokens": [5] * 50}),
        "/playground/masking": ({"text": "A", "objectives": ["causal"]}, {"text": long}),
    }
    with TestClient(app, base_url=LOCAL) as client:
        for path, pair in bodies.items():
            for model in ({"model": "d"}, {}):
                assert [client.post(path, json={**body, **model}).status_code for body in pair] == [
                    200,
                    429,
                ], path
    assert len(counted) == 12


def worker_of(model: firth.Model, **options: Any) -> ModelWorker:
    return ModelWorker(ServedModel("name", model), ServeConfig(**options), ServerMetrics())


def test_jobs_are_joined_and_errors_kept_apart(served_models: dict[str, firth.Model]) -> None:
    worker, calls, gate = worker_of(served_models["decoder"]), [], threading.Event()

    def compute(served: ServedModel, settings: Any, inputs: Any) -> list[int]:
        gate.wait()
        calls.append(list(inputs))
        if 13 in inputs:
            raise FirthError("unlucky")
        return [2 * one for one in inputs]

    async def run() -> list[Any]:
        jobs = [asyncio.create_task(worker.run(compute, None, [i], [1])) for i in (1, 2, 13, 4)]
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(*jobs, return_exceptions=True)

    first, second, bad, fourth = asyncio.run(run())
    worker.close()
    assert (first, second, fourth) == ([2], [4], [8])
    assert isinstance(bad, FirthError)
    assert max(map(len, calls)) >= 3  # the first may have started at once, alone


def test_deadlines_and_cancelled_requests(served_models: dict[str, firth.Model]) -> None:
    model = served_models["decoder"]
    worker = worker_of(model, timeout=0.3, max_sequences=2)
    request = SequenceRequest(prompt=(0, 5), limit=250)  # no end token: it takes long

    async def read(count: int) -> int:
        with worker.generate([request] * 8) as stream:  # all but two wait
            async for _ in stream:
                count -= 1
                if not count:
                    break
        return count

    async def run() -> None:
        assert await read(5) == 0
        started = time.monotonic()
        while worker._scheduler.busy and time.monotonic() < started + 5:
            await asyncio.sleep(0.01)
        assert not worker._scheduler.busy  # the rest is dropped
        with pytest.raises(FirthError, match="timeout"):
            await read(10_000)

    asyncio.run(run())
    worker.close()


def test_a_body_that_does_not_come_ends_at_the_deadline(
    served_models: dict[str, firth.Model],
) -> None:
    app = make_app({"e": served_models["encoder"]}, ServeConfig(timeout=0.3))
    with (
        running(app) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as slow,
    ):
        slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert b" 503 " in slow.recv(100)


def test_a_client_that_leaves_during_its_body_is_no_error(client: TestClient) -> None:
    [route] = [one for one in client.app.routes if getattr(one, "path", "") == "/tokenize"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    assert asyncio.run(route.endpoint(request)).status_code == 499


def test_a_client_that_does_not_read_its_stream_frees_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("firth.serve.event_stream.GRACE", 0.0)
    admission, resources = Admission(100), ExitStack()
    resources.enter_context(admission.reserve(80))

    async def events() -> AsyncIterator[dict[str, Any]]:
        yield {}

    async def block(message: Any = None) -> Any:
        await asyncio.Event().wait()

    stream = EventStream(events(), resources, timeout=0.05)
    asyncio.run(stream({"type": "http"}, block, block))
    assert admission.tokens == 0


def test_models_are_loading_at_first(served_models: dict[str, firth.Model]) -> None:
    gate, loaded = threading.Event(), threading.Event()

    def load() -> firth.Model:
        gate.wait()
        return served_models["encoder"]

    app = make_app({"encoder": load}, on_load=lambda error: loaded.set())
    with TestClient(app, base_url=LOCAL) as client:
        assert client.get("/health").status_code == 503
        found = client.post("/fill", json={"text": "The [MASK]."})
        assert found.status_code == 503
        assert found.headers["retry-after"]
        gate.set()
        loaded.wait()
        assert client.get("/health").status_code == 200


def test_names() -> None:
    with pytest.raises(UsageError, match="NAME="):
        name_models(["a/b/x", "c/d/x"])
    with pytest.raises(UsageError):
        name_models(["=x"])


@pytest.mark.nightly
def test_sigterm_finishes_running_requests() -> None:
    command = [sys.executable, "-m", "firth", "serve", "stories-decoder", "--port", "0", "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stderr.readline().startswith("Loading")
        port = int(process.stderr.readline().split("127.0.0.1:")[1].split()[0])
        body = {"prompt": "Once", "max_tokens": 400, "stream": True, "logit_bias": {"2": -100}}
        headers = {"Content-Type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            first = answer.readline()
            os.kill(process.pid, signal.SIGTERM)
            rest = answer.read().decode()
        assert first.startswith(b"data: ")
        assert rest.rstrip().endswith("[DONE]")
        assert '"finish_reason": "length"' in rest
        assert json.loads(process.stdout.read())["models"] == ["stories-decoder"]
        assert process.wait(30) == 0


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "firth.serve.running", raising=False)
    with pytest.raises(UsageError, match=r"firth\[serve\]"):
        serve(models=[])
