"""`/v1/completions` and `/v1/chat/completions` against `Model.generate` and `Model.score`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

import firth
from tests.serve.conftest import TEMPLATE, events

PROMPT = "Once upon a time"


def complete(client: TestClient, **fields: Any) -> dict[str, Any]:
    values = {"model": "decoder", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    found = client.post("/v1/completions", json=values)
    assert found.status_code == 200, found.text
    return found.json()


def test_greedy_text_is_that_of_generate(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    prompts = [PROMPT, "The dog", "A red ball", "In the garden"]
    expected = served_models["decoder"].generate(prompts, max_new_tokens=12)
    together = complete(client, prompt=prompts)
    assert [one["text"] for one in together["choices"]] == expected
    assert [one["index"] for one in together["choices"]] == [0, 1, 2, 3]
    with ThreadPoolExecutor(4) as threads:
        alone = threads.map(lambda prompt: complete(client, prompt=prompt), prompts)
        assert [one["choices"][0]["text"] for one in alone] == expected
    source = "The <extra_id_0> barked."
    expected_one = served_models["seq2seq"].generate(source, max_new_tokens=12)
    found = complete(client, model="seq2seq", prompt=source)
    assert found["choices"][0]["text"] == expected_one


def test_samples_are_those_of_the_seed(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    how = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "n": 3, "seed": 7}
    [done] = served_models["decoder"].completions([PROMPT], max_new_tokens=12, **how)
    found = complete(client, **how)
    assert [one["text"] for one in found["choices"]] == [one.text for one in done.completions]
    assert complete(client, temperature=1) != complete(client, temperature=1)


def test_a_stream_has_the_same_text(client: TestClient) -> None:
    whole = complete(client, n=1, stop=["."], max_tokens=40)
    values = {"model": "decoder", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": "."}
    values |= {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = events(client.post("/v1/completions", json=values).text)
    assert len(parts) > 5
    assert "".join(one["choices"][0]["text"] for one in parts) == whole["choices"][0]["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert {one["choices"][0]["finish_reason"] for one in parts[:-1]} == {None}
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert "." not in whole["choices"][0]["text"]


def test_echo_has_the_log_probabilities_of_the_prompt(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    text = "The dog barked loudly."
    expected = served_models["decoder"].score(text)
    found = complete(client, prompt=text, echo=True, logprobs=1, max_tokens=1)["choices"][0]
    scores = found["logprobs"]
    assert found["text"].startswith(text)
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    size = len(expected.log_probs)
    assert scores["token_logprobs"][1 : size + 1] == pytest.approx(expected.log_probs, abs=1e-5)
    assert len(scores["tokens"]) == size + 2  # the first token and the generated one
    own = zip(scores["token_logprobs"][1:], scores["top_logprobs"][1:], strict=True)
    assert all(max(top.values()) >= logprob for logprob, top in own)
    ids = [0, *served_models["decoder"].tokenizer.encode(text)]  # type: ignore[union-attr]
    only = complete(client, prompt=ids, echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert only["logprobs"]["token_logprobs"] == scores["token_logprobs"][: size + 1]
    joined = "".join(scores["tokens"][1:])
    assert joined == found["text"]
    starts = scores["text_offset"][1:]
    pairs = zip(scores["tokens"][1:], starts, strict=True)
    assert all(joined[at : at + len(token)] == token for token, at in pairs)


def test_logit_bias_forces_and_forbids(client: TestClient) -> None:
    forced = complete(client, logit_bias={"598": 100}, max_tokens=3, echo=False)
    assert (
        forced["choices"][0]["text"]
        == client.post("/detokenize", json={"model": "decoder", "tokens": [598] * 3}).json()["text"]
    )


def test_chat_is_the_template_and_generate(
    client: TestClient, served_models: dict[str, firth.Model]
) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A story?"}]
    values: dict[str, Any] = {"model": "chat", "messages": messages, "max_completion_tokens": 8}
    values |= {"temperature": 0, "logprobs": True, "top_logprobs": 2}
    found = client.post("/v1/chat/completions", json=values).json()
    expected = served_models["chat"].chat(messages, max_new_tokens=8)
    assert TEMPLATE  # the fixture's template has no special tokens
    [choice] = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected, "refusal": None}
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == expected
    assert all(len(one["top_logprobs"]) == 2 for one in tokens)
    parts = events(client.post("/v1/chat/completions", json={**values, "stream": True}).text)
    deltas = [one["choices"][0]["delta"] for one in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(one.get("content", "") for one in deltas) == expected
    assert deltas[-1] == {}
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    streamed = [one["choices"][0]["logprobs"] for one in parts]
    assert sum(len(one["content"]) for one in streamed if one) == len(tokens)
    refused = client.post("/v1/chat/completions", json={**values, "model": "decoder"})
    assert refused.status_code == 400
    named = [{**messages[1], "name": "Ada"}]
    refused = client.post("/v1/chat/completions", json={**values, "messages": named})
    assert refused.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop"),
        ({"prompt": "word " * 600}, "prompt"),
        ({"prompt": [5000]}, "prompt"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"suffix": "end"}, "suffix"),
        ({"temprature": 1}, "temprature"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"echo": True, "model": "seq2seq"}, "echo"),
    ],
)
def test_wrong_values_are_rejected_by_name(
    client: TestClient, fields: dict[str, Any], param: str
) -> None:
    found = client.post("/v1/completions", json={"model": "decoder", "prompt": "a", **fields})
    assert found.status_code == 400, found.text
    assert found.json()["error"]["param"] == param


def test_neutral_values_and_truncation(client: TestClient) -> None:
    accepted = {"frequency_penalty": 0, "presence_penalty": 0.0, "best_of": 1, "suffix": None}
    assert complete(client, **accepted)["choices"]
    found = complete(client, prompt="word " * 600, truncate=True)
    assert found["usage"]["prompt_tokens"] <= 512


def test_echoed_log_probabilities_are_limited_over_all_completions(client: TestClient) -> None:
    body = {"model": "decoder", "prompt": [PROMPT + " there was" * 40] * 16, "n": 128}
    body |= {"echo": True, "logprobs": 20, "max_tokens": 0}
    assert client.post("/v1/completions", json=body).status_code == 413


def test_long_stop_strings_are_rejected(client: TestClient) -> None:
    body = {"model": "decoder", "prompt": PROMPT, "stop": ["x" * 501]}
    found = client.post("/v1/completions", json=body)
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "stop"
