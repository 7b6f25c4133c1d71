"""The routes of the playground without a browser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import firth
from firth.serve.playground.page import page_files

TEXT = "The dog chased the cat."


def post(client: TestClient, route: str, **values: Any) -> Any:
    answer = client.post(f"/playground/{route}", json=values)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_may_load_only_what_this_server_has(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http:" not in page.text.replace("http://www.w3.org/2000/svg", "")
    for name in page_files():
        file = client.get(f"/playground/files/{name}")
        assert file.status_code == 200
        assert file.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["../page.py", "%2e%2e/page.py", "scripts", "", "/etc/passwd"])
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    assert client.get(f"/playground/files/{name}").status_code == 404


def test_attention_of_an_encoder_decoder(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    model = served_models["seq2seq"]
    found = post(client, "attention", model="seq2seq", text=TEXT, target="A dog ran.")
    arrays = model.attention(TEXT, target="A dog ran.")
    assert isinstance(arrays, dict)
    assert {part["name"] for part in found["parts"]} == set(arrays)
    parts = {part["name"]: part for part in found["parts"]}
    for name, part in parts.items():
        heads = [len(layer["heads"]) for layer in part["layers"]]
        assert (len(heads), heads[0]) == np.shape(arrays[name])[:2]
    assert parts["cross"]["queries"] == parts["decoder"]["queries"]
    assert parts["cross"]["keys"] == parts["encoder"]["queries"]


def test_long_texts_are_cut(client: TestClient) -> None:
    found = post(client, "attention", model="decoder", text="The dog ran. " * 400)
    assert len(found["parts"][0]["queries"]) <= 512
    assert "only its first" in found["caption"]


def test_masking(client: TestClient) -> None:
    found = post(client, "masking", text=TEXT, objectives=["causal"])
    examples, _ = firth.show_objectives(TEXT, ["causal"], tokenizer="words")
    assert found["examples"][0]["predicts"] == examples[0].predicts
    own = post(client, "masking", model="decoder", text=TEXT, objectives=["masked"], mask_prob=1)
    assert all(len(one["predicts"]["masked"]) > 4 for one in own["examples"])


def test_prompt(client: TestClient, served_models: dict[str, firth.Model]) -> None:
    settings = {"task": "classify", "labels": ["wonderful", "terrible"]}
    found = post(client, "prompt", model="decoder", query="I loved it.", **settings)
    expected = firth.prompt(served_models["decoder"], "I loved it.", **settings)
    assert found["answers"][0]["scores"] == pytest.approx(expected.answers[0]["scores"], abs=1e-4)


def test_beam_search(client: TestClient, served_models: dict[str, firth.Model]) -> None:
    found = post(client, "beam", model="decoder", prompt="Once upon", max_tokens=6, beams=3)
    [done] = served_models["decoder"].completions("Once upon", beams=3, max_new_tokens=6)
    [expected] = done.completions
    assert found["text"] == expected.text
    assert found["logprob"] == pytest.approx(expected.logprob, abs=1e-3)


@pytest.mark.parametrize(
    ("route", "values", "named"),
    [
        ("attention", {"text": TEXT}, "model"),
        ("attention", {"text": " ", "model": "decoder"}, "empty"),
        ("masking", {"text": TEXT, "objectives": ["magic"]}, "magic"),
        ("masking", {"text": TEXT, "mask_prob": 0}, "mask_prob"),
        ("masking", {"text": ""}, "empty"),
        ("prompt", {"query": "a", "model": "decoder", "data": "/etc/passwd"}, "data"),
        ("prompt", {"query": "a", "model": "decoder", "template": "{x}"}, "{x}"),
        ("prompt", {"query": "a", "model": "decoder", "task": "classify"}, "labels"),
        ("beam", {"prompt": "a", "model": "decoder", "beams": 1}, "beams"),
    ],
)
def test_wrong_requests_are_explained(
    client: TestClient, route: str, values: dict[str, Any], named: str
) -> None:
    answer = client.post(f"/playground/{route}", json=values)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


def test_a_template_cannot_multiply_a_text(client: TestClient) -> None:
    body = {"model": "decoder", "query": "x" * 10_000, "template": "{source}" * 1000 + "{target}"}
    assert client.post("/playground/prompt", json=body).status_code == 413
