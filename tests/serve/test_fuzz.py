"""Arbitrary requests: no status 500, no hang, an error in JSON."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from firth.serve.app import ROUTES

POSTS = [route for route in ROUTES if route.method == "POST"]
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "decoder", "prompt": "The dog", "max_tokens": 2},
    "/v1/chat/completions": {
        "model": "chat",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
    },
    "/v1/embeddings": {"model": "encoder", "input": "The dog"},
    "/v1/rerank": {"model": "encoder", "query": "dog", "documents": ["a", "b"]},
    "/fill": {"model": "encoder", "text": "The [MASK]."},
    "/score": {"model": "decoder", "text": "The dog."},
    "/tokenize": {"model": "decoder", "text": "The dog."},
    "/detokenize": {"model": "decoder", "tokens": [5, 6]},
    "/playground/attention": {"model": "seq2seq", "text": "The dog", "target": "A cat"},
    "/playground/masking": {"text": "The dog ran.", "objectives": ["masked"]},
    "/playground/prompt": {
        "model": "decoder",
        "query": "fine",
        "task": "classify",
        "labels": ["good", "bad"],
        "examples": [["dull", "bad"]],
    },
    "/playground/beam": {"model": "decoder", "prompt": "The dog", "max_tokens": 2, "beams": 2},
}
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(0, 20),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=30),
    st.sampled_from(["\ud800", "\x00", "[MASK] " * 40, "a" * 30_000, "é" * 700, "<s></s>", ""]),
    st.sampled_from([[], {}, [[]], [0], [[0, 1], [2]], [4095], [4096], {"text": "a"}, {"0": 1e9}]),
)
NESTED = st.recursive(
    ODD,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=8,
)


STRINGS = st.text(max_size=30) | st.sampled_from(
    ["\ud800", "\x00", "[MASK] " * 8, "a" * 3000, "é" * 700, "<s></s>", "", "encoder", "decoder"]
)


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a field's JSON schema, some of them odd."""
    if "anyOf" in schema:
        return st.one_of([from_schema(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    low = schema.get("minimum", 0)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": STRINGS,
        "boolean": st.booleans(),
        "integer": st.integers(low, min(schema.get("maximum", 5000), low + 5000)),
        "number": st.floats(low, min(schema.get("maximum", 10), low + 10)),
    }
    if schema["type"] == "array":
        return st.lists(from_schema(schema["items"]), min_size=schema["minItems"], max_size=4)
    return kinds.get(schema["type"], st.fixed_dictionaries({"text": STRINGS}))


PLAUSIBLE = {
    route.path: {
        one.name: from_schema(one.metadata["kind"].schema)
        for one in fields(route.fields)
        if one.name != "model"
    }
    for route in POSTS
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A route and a body: bytes, damaged JSON, or a valid request with odd values."""
    route = draw(st.sampled_from(POSTS))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return route.path, draw(st.binary(max_size=60))
    if kind == 1:
        depth = draw(st.sampled_from([10, 900, 5_000, 100_000]))
        return route.path, b'{"model":' + b"[" * depth + b"]" * depth + b"}"
    names = list(PLAUSIBLE[route.path]) + ["model"] * (kind == 3)
    values = dict(VALID.get(route.path, {}))
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        values[name] = draw(NESTED if kind == 3 else PLAUSIBLE[route.path][name])
    body = json.dumps(values).encode()
    if kind == 2 and body:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + draw(st.binary(max_size=3)) + body[at + 1 :]
    return route.path, body


def check(client: TestClient, path: str, body: bytes) -> None:
    found = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert found.status_code in (200, 400, 404, 413), (path, found.text[:300])
    if found.status_code != 200:
        error = found.json()["error"]
        assert error["message"]
        assert set(error) == {"message", "type", "param", "code"}
    assert client.get("/health").status_code == 200


@settings(
    max_examples=int(os.environ.get("FIRTH_FUZZ_QUICK", "200")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(request=requests())
def test_odd_requests(client: TestClient, request: tuple[str, bytes]) -> None:
    check(client, *request)


@pytest.mark.nightly
@settings(
    max_examples=int(os.environ.get("FIRTH_FUZZ", "10000")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(request=requests())
def test_ten_thousand_odd_requests(client: TestClient, request: tuple[str, bytes]) -> None:
    check(client, *request)
