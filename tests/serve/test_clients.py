"""Clients that nobody here wrote: openai, LangChain and lm-eval."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.serve.app import make_app
from tests.serve.conftest import running

WITHOUT = "make references installs it"
SENTENCES = [
    ("The dog barked at the cat.", "The dog barks at the at cat."),
    ("The cats sleep on the chair.", "The cats sleeps on the chair."),
    ("She likes the red ball.", "She like the red ball."),
    ("The boys run in the garden.", "The boys runs in the garden."),
    ("A bird sings in the tree.", "A bird sing in the tree."),
    ("The old man was hungry.", "The old man were hungry."),
]
WORDS = [
    "Once upon a time there was a little girl",
    "The dog barked and barked",
    "The cat slept on the chair",
    "They went home and were very happy",
    "The boy played with his red ball",
    "She was hungry and wanted to eat",
]


@pytest.fixture(scope="module")
def openai_client(address: str) -> Any:
    openai = pytest.importorskip("openai", reason=WITHOUT)
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.mark.nightly
def test_openai_completions(openai_client: Any, served_models: dict[str, firth.Model]) -> None:
    how = {"model": "decoder", "max_tokens": 10, "temperature": 0}
    expected = served_models["decoder"].generate(WORDS, max_new_tokens=10)
    found = openai_client.completions.create(prompt=WORDS, **how)
    assert [choice.text for choice in found.choices] == expected
    assert found.usage.completion_tokens == 10 * len(WORDS)
    how["stream_options"] = {"include_usage": True}
    *parts, last = openai_client.completions.create(prompt=WORDS[0], stream=True, **how)
    assert "".join(part.choices[0].text for part in parts) == expected[0]
    assert last.usage.completion_tokens == 10


@pytest.mark.nightly
def test_openai_chat_embeddings_and_errors(
    openai_client: Any, served_models: dict[str, firth.Model]
) -> None:
    import openai

    messages = [{"role": "user", "content": "Tell me a story."}]
    how = {"model": "chat", "messages": messages, "max_completion_tokens": 8, "temperature": 0}
    reply = served_models["chat"].chat(messages, max_new_tokens=8)
    assert openai_client.chat.completions.create(**how).choices[0].message.content == reply
    parts = openai_client.chat.completions.create(stream=True, **how)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == reply
    expected = served_models["encoder"].embed(WORDS)
    for extra in ({}, {"encoding_format": "float"}):  # the client's own default is base64
        found = openai_client.embeddings.create(model="encoder", input=WORDS, **extra)
        vectors = np.array([one.embedding for one in found.data])
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert {model.id for model in openai_client.models.list()} == set(served_models)
    with pytest.raises(openai.NotFoundError):
        openai_client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError) as error:
        openai_client.completions.create(model="decoder", prompt="a", presence_penalty=1)
    assert error.value.param == "presence_penalty"


@pytest.mark.nightly
def test_langchain(address: str, served_models: dict[str, firth.Model]) -> None:
    langchain = pytest.importorskip("langchain_openai", reason=WITHOUT)
    how = {"base_url": f"{address}/v1", "api_key": "none"}
    embeddings = langchain.OpenAIEmbeddings(
        model="encoder", check_embedding_ctx_length=False, **how
    )
    expected = served_models["encoder"].embed(WORDS)
    np.testing.assert_allclose(embeddings.embed_documents(WORDS), expected, atol=1e-5)
    llm = langchain.OpenAI(model="decoder", temperature=0, max_tokens=8, **how)
    assert llm.invoke(WORDS[0]) == served_models["decoder"].generate(WORDS[0], max_new_tokens=8)
    chat = langchain.ChatOpenAI(model="chat", temperature=0, max_tokens=8, **how)
    reply = served_models["chat"].chat("Hello!", max_new_tokens=8)
    assert chat.invoke("Hello!").content == reply
    assert "".join(part.content for part in chat.stream("Hello!")) == reply


# ---- lm-eval ----------------------------------------------------------------------------------

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {file}
output_type: {kind}
test_split: train
doc_to_text: "{text}"
doc_to_target: {target}
{more}
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
{metrics}
"""
PERPLEXITY = """  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false"""
NORMALISED = """  - metric: acc_norm
    aggregation: mean
    higher_is_better: true"""


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], **details: str) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"more": "", "metrics": "", **details}
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file, **values))


def lm_eval(address: str, folder: Path, tasks: str) -> dict[str, Any]:
    """Run lm-eval's command against the server; return its results by task.

    lm-eval takes the begin token for missing if its id is 0, so it is given once more.
    """
    details = {
        "model": "decoder",
        "base_url": f"{address}/v1/completions",
        "tokenizer_backend": "remote",
        "custom_prefix_token_id": "0",
        "max_length": "512",
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in details.items())]
    command += ["--tasks", tasks, "--include_path", str(folder)]
    command += ["--output_path", str(folder / "out")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        command, env={**os.environ, **offline}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = (folder / "out").rglob("results_*.json")
    found: dict[str, Any] = json.loads(path.read_text())["results"]
    return found


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.nightly
def test_lm_eval_gives_the_scores_of_evaluate(
    served_models: dict[str, firth.Model], tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval", reason=WITHOUT)
    model = served_models["decoder"]
    passages = [text.rpartition(" ") for text in WORDS]
    choices = [
        {"text": text, "choices": [word, "tree", "slowly", "and then to the café"], "label": 0}
        for text, _, word in passages
    ]
    write_task(
        tmp_path,
        "firth_last_word",
        [{"context": context, "word": word} for context, _, word in passages],
        kind="loglikelihood",
        text="<s>{{context}}",
        target='" {{word}}"',
        metrics=PERPLEXITY,
    )
    write_task(
        tmp_path,
        "firth_pairs",
        [{"good": good, "bad": bad} for good, bad in SENTENCES],
        kind="multiple_choice",
        text="",
        target="0",
        more='target_delimiter: ""\ndoc_to_choice: "{{[good, bad]}}"',
    )
    write_task(
        tmp_path,
        "firth_choice",
        choices,
        kind="multiple_choice",
        text="<s>{{text}}",
        target="label",
        more='doc_to_choice: "{{choices}}"',
        metrics=NORMALISED,
    )
    with running(make_app({"decoder": model})) as address:
        found = lm_eval(address, tmp_path, "firth_last_word,firth_pairs,firth_choice")

    words = tmp_path / "words.txt"
    words.write_text("\n".join(WORDS) + "\n")
    last_word = firth.evaluate(model, task="last-word", data=words).metrics
    assert found["firth_last_word"]["acc,none"] == pytest.approx(last_word["accuracy"].value)
    perplexity = found["firth_last_word"]["perplexity,none"]
    assert perplexity == pytest.approx(last_word["perplexity"].value, rel=1e-4)

    rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in SENTENCES]
    pairs = write_lines(tmp_path / "pairs.jsonl", rows)
    blimp = firth.evaluate(model, task="minimal-pairs", data=pairs).metrics
    assert found["firth_pairs"]["acc,none"] == pytest.approx(blimp["accuracy"].value)

    file = write_lines(tmp_path / "choices.jsonl", choices)
    choice = firth.evaluate(model, task="choice", data=file).metrics
    accuracies = {"acc": choice["accuracy"], "acc_norm": choice["accuracy_norm"]}
    for name, metric in accuracies.items():
        assert found["firth_choice"][f"{name},none"] == pytest.approx(metric.value)
