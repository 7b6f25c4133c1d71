"""Routes of embeddings, tasks, scores and tokens against the functions of `Model`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import firth
from firth.models.ngram.config import NgramConfig
from firth.models.ngram.model import NgramModel
from firth.serve.app import make_app
from firth.serve.openapi import make_openapi
from firth.serve.served_model import ServedModel
from tests.serve.conftest import LOCAL, task_model

TEXTS = ["The dog barked.", "A cat", "In the garden there was an old tree with green leaves.", "."]


def vectors(client: TestClient, **fields: Any) -> np.ndarray[Any, Any]:
    found = client.post("/v1/embeddings", json={"model": "encoder", **fields})
    assert found.status_code == 200, found.text
    return np.array([one["embedding"] for one in found.json()["data"]])


def test_vectors_do_not_depend_on_other_requests(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    embed = served_models["encoder"].embed
    alone = np.concatenate([embed([text], normalize=True) for text in TEXTS])
    np.testing.assert_allclose(vectors(client, input=TEXTS, normalize=True), alone, atol=1e-6)
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda text: vectors(client, input=text, normalize=True)[0], TEXTS * 4)
        np.testing.assert_allclose(list(found), np.tile(alone, (4, 1)), atol=1e-6)


def test_formats_of_vectors(client: TestClient, served_models: dict[str, firth.Model]) -> None:
    expected = served_models["encoder"].embed(TEXTS[:1])[0]
    [data] = client.post(
        "/v1/embeddings",
        json={"model": "encoder", "input": TEXTS[:1], "encoding_format": "base64"},
    ).json()["data"]
    decoded = np.frombuffer(base64.b64decode(data["embedding"]), dtype="<f4")
    np.testing.assert_allclose(decoded, expected, atol=1e-6)
    ids = served_models["encoder"].tokenizer.encode(TEXTS[0], specials=True)  # type: ignore[union-attr]
    np.testing.assert_allclose(vectors(client, input=ids)[0], expected, atol=1e-6)
    np.testing.assert_allclose(vectors(client, input=[ids])[0], expected, atol=1e-6)
    short = vectors(client, input=TEXTS[0], dimensions=8, normalize=True)[0]
    np.testing.assert_allclose(short, expected[:8] / np.linalg.norm(expected[:8]), atol=1e-6)


def test_fill_and_score_are_those_of_the_model(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    text = "The [MASK] barked."
    found = client.post("/fill", json={"model": "encoder", "text": text, "top": 3}).json()
    [expected] = served_models["encoder"].fill(text, top=3)
    assert [one["token"] for one in found["predictions"]] == [one.token for one in expected]
    assert found["predictions"][0]["score"] == pytest.approx(expected[0].score, abs=1e-6)
    targets = {"model": "encoder", "text": [text], "targets": ["dog", "cat"]}
    [row] = client.post("/fill", json=targets).json()["results"]
    assert {one["token"] for one in row["predictions"]} == {"dog", "cat"}
    for name in ("encoder", "decoder"):
        body = {"model": name, "text": TEXTS[0]}
        total = client.post("/score", json=body).json()["total"]
        assert total == pytest.approx(served_models[name].score(TEXTS[0]).total, abs=1e-5)
    body = {"model": "decoder", "text": " barked", "context": "The dog"}
    expected_score = served_models["decoder"].score(" barked", "The dog").total
    assert client.post("/score", json=body).json()["total"] == pytest.approx(
        expected_score, abs=1e-5
    )


@pytest.fixture(scope="module")
def task_models() -> dict[str, firth.Model]:
    return {
        "sentiment": task_model("classify", "classify"),
        "pairs": task_model("pair", "classify"),
        "number": task_model("regress", "classify", "number"),
        "tagger": task_model("tag", "tag"),
        "reader": task_model("span", "span"),
    }


@pytest.fixture(scope="module")
def task_client(task_models: dict[str, firth.Model]) -> Iterator[TestClient]:
    with TestClient(make_app(task_models), base_url=LOCAL) as client:
        yield client


def test_tasks_are_those_of_predict(
    task_client: TestClient, task_models: dict[str, firth.Model]
) -> None:
    def post(path: str, **body: Any) -> Any:
        found = task_client.post(path, json=body)
        assert found.status_code == 200, found.text
        return found.json()["predictions"]

    def same(found: Any, expected: Any) -> None:
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for key, value in other.items():
                assert one[key] == (pytest.approx(value, abs=1e-5) if key == "scores" else one[key])

    same(
        post("/classify", model="sentiment", texts=TEXTS[:2]),
        task_models["sentiment"].predict(TEXTS[:2]),
    )
    pair = (TEXTS[0], TEXTS[1])
    same(post("/classify", model="pairs", texts=[pair]), [task_models["pairs"].predict(pair)])
    tags = post("/tag", texts=TEXTS[0])  # the only tagger
    assert tags == [task_models["tagger"].predict(TEXTS[0])]
    [answer] = post("/answer", question="Who barked?", context=TEXTS[0])
    row = [{"question": "Who barked?", "context": TEXTS[0]}]
    [expected] = task_models["reader"].predict(row)
    assert expected is not None
    assert answer["answer"] == expected["answer"]


def test_a_cross_encoder_ranks_pairs(
    task_client: TestClient, task_models: dict[str, firth.Model]
) -> None:
    body = {"model": "number", "query": "dog", "documents": [*TEXTS[:2], {"text": TEXTS[2]}]}
    found = task_client.post("/v1/rerank", json=body).json()["results"]
    numbers = task_models["number"].predict([("dog", text) for text in TEXTS[:3]])
    scores = {i: 1 / (1 + np.exp(-one["number"])) for i, one in enumerate(numbers) if one}
    assert [one["index"] for one in found] == sorted(scores, key=lambda i: -scores[i])
    assert found[0]["relevance_score"] == pytest.approx(max(scores.values()), abs=1e-5)


def test_vectors_rank_as_in_search(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    body = {"model": "encoder", "query": "a dog", "documents": TEXTS, "top_n": 3}
    found = client.post("/v1/rerank", json={**body, "return_documents": False}).json()["results"]
    expected = served_models["encoder"].search(TEXTS, "a dog", top=3)
    assert [TEXTS[one["index"]] for one in found] == [hit.text for hit in expected]
    assert found[0]["relevance_score"] == pytest.approx(expected[0].score, abs=1e-5)
    assert "document" not in found[0]


def test_tokens(client: TestClient, served_models: dict[str, firth.Model]) -> None:
    tokenizer = served_models["decoder"].tokenizer
    assert tokenizer is not None
    text = "The dog barked."
    found = client.post("/tokenize", json={"model": "decoder", "text": text}).json()["tokens"]
    assert [one["id"] for one in found] == tokenizer.encode(text)
    assert [text[one["start"] : one["end"]] for one in found] == ["The", " dog", " barked", "."]
    body = {"model": "decoder", "prompt": text, "add_special_tokens": False}
    assert client.post("/tokenize", json=body).json()["tokens"] == tokenizer.encode(text)
    back = {"model": "decoder", "tokens": tokenizer.encode(text)}
    assert client.post("/detokenize", json=back).json()["prompt"] == text
    info = client.get("/tokenizer_info?model=decoder").json()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"model": "nobody", "input": "a"}, 404),
        ("/v1/embeddings", {"model": "encoder", "input": []}, 400),
        ("/v1/embeddings", {"model": "encoder", "input": "word " * 600}, 400),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "dimensions": 100_000}, 400),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "prompt_name": "none"}, 400),
        ("/fill", {"text": "a ___"}, 400),  # two models can fill
        ("/fill", {"model": "encoder", "text": "no blank"}, 400),
        ("/fill", {"model": "encoder", "text": "[MASK] " * 100, "top": 1000}, 413),
        ("/classify", {"texts": "a"}, 400),
        ("/nothing", {}, 404),
        ("/health", {}, 405),
    ],
)
def test_errors(client: TestClient, path: str, body: dict[str, Any], status: int) -> None:
    found = client.post(path, json=body)
    assert found.status_code == status, found.text
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_too_long_texts_may_be_truncated(client: TestClient) -> None:
    assert len(vectors(client, input="word " * 600, truncate=True)) == 1


def test_models_and_description(client: TestClient) -> None:
    models = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert {"fill", "embed", "score"} <= set(models["encoder"]["capabilities"])
    assert {"generate", "score"} <= set(models["decoder"]["capabilities"])
    assert "fill" not in models["decoder"]["capabilities"]
    assert client.get("/v1/models/decoder").json() == models["decoder"]
    assert client.get("/v1/models/nobody").status_code == 404
    description = client.get("/openapi.json").json()
    fields = description["components"]["schemas"]["CompletionFields"]
    assert fields["required"] == ["prompt"]
    assert make_openapi([])["openapi"].startswith("3.1")
    page = client.get("/docs").text
    assert "/v1/completions" in page
    assert "http" not in page.replace('charset="utf-8"', "")
    metrics = client.get("/metrics").text
    assert 'firth_requests_total{route="/v1/models",status="200"}' in metrics
    assert "firth_batch_tokens_bucket" in metrics


def test_a_count_based_model_generates_and_does_not_embed() -> None:
    tokenizer = firth.load("stories-decoder").tokenizer
    assert tokenizer is not None
    network = NgramModel(NgramConfig(order=2, vocab_size=len(tokenizer)))
    found = ServedModel("ngram", firth.Model(network, tokenizer)).capabilities
    assert {"generate", "score"} <= set(found)
    assert not {"embed", "fill"} & set(found)
