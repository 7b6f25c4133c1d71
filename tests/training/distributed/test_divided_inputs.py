"""`evaluate`, `predict` and `embed` on two ranks: the results of one process, in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import SMALL
from tests.training.distributed.ranked_runs import run_ranks

pytestmark = pytest.mark.nightly

TEXTS = ("The dog ran home.", "A bird sang.", "Tom has a small red boat.", "It rained all day.")
COUNTS = (2601, 5, 1, 0)  # several windows of examples, not divided by two; fewer than ranks
GPT2 = {**SMALL, "model.num_layers": 1, "model.max_positions": 64}
COMMANDS = {  # for a file of each number of rows: model, further arguments, file, output
    "predict": ("predict", "bert", ["--task", "next-sentence", "--data"], "tsv", "jsonl"),
    "npy": ("embed", "bert", [], "txt", "npy"),
    "jsonl": ("embed", "gpt2", ["--batch-tokens", "64"], "jsonl", "jsonl"),
    "head": ("evaluate", "bert", ["--task", "next-sentence", "--data"], "tsv", ""),
    "lm": ("evaluate", "gpt2", ["--task", "lm", "--data"], "txt", ""),
    "masked": ("evaluate", "bert", ["--task", "lm", "--data"], "txt", ""),
    "minimal": ("evaluate", "gpt2", ["--task", "minimal-pairs", "--data"], "jsonl", ""),
    "last": ("evaluate", "gpt2", ["--task", "last-word", "--data"], "jsonl", ""),
}
Results = tuple[Path, dict[tuple[str, int], list[dict[str, Any]]]]


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_inputs(folder: Path, count: int) -> None:
    texts = [f"{TEXTS[i % 4]} {'again ' * (i % 7)}the end" for i in range(count)]
    (folder / f"{count}.txt").write_text("".join(f"{text}\n" for text in texts))
    labels = ("is_next", "not_next")
    pairs = [f"{text}\t{TEXTS[i % 3]}\t{labels[i % 2]}\n" for i, text in enumerate(texts)]
    (folder / f"{count}.tsv").write_text("text_a\ttext_b\tlabel\n" + "".join(pairs))
    rows = [{"text": text, "sentence_good": text, "sentence_bad": text + " a"} for text in texts]
    (folder / f"{count}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def results(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What every command did without torchrun and on two ranks."""
    folder = tmp_path_factory.mktemp("inputs")
    shared = {"data": shards, "steps": 2, "device": "cpu", "ranks": 0}
    runs: list[dict[str, Any]] = [
        {**shared, "preset": "bert-tiny", "overrides": SMALL, "out": folder / "bert"},
        {**shared, "preset": "gpt2", "overrides": GPT2, "out": folder / "gpt2"},
    ]
    names = []
    for count in COUNTS:
        write_inputs(folder, count)
        for name, (verb, model, options, file, output) in COMMANDS.items():
            if name == "masked" and count > 5:
                continue  # scores every token alone
            names.append((name, count))
            for ranks in (0, 2):
                command = [verb, str(folder / model), *options, str(folder / f"{count}.{file}")]
                if output:
                    command += ["--out", str(folder / f"{name}-{count}-{ranks}.{output}")]
                runs.append({"ranks": ranks, "command": [*command, "--device", "cpu", "--json"]})
    done = run_ranks(runs, timeout=900)
    assert not any(sum(one["codes"]) for one in done[:2]), done[:2]
    return folder, {name: done[2 * i + 2 : 2 * i + 4] for i, name in enumerate(names)}


def test_only_rank_zero_prints_and_only_what_one_process_prints(results: Results) -> None:
    for name, (one, two) in results[1].items():
        assert two["output"][1] == "", name
        if name[1]:
            assert one["codes"] == [0], (name, one)
            assert two["codes"] == [0, 0], (name, two)
            assert two["errors"][1] == "", name
            assert one["errors"][0] == two["errors"][0], name
            expected, found = (json.loads(run["output"][0]) for run in (one, two))
            assert expected.keys() == found.keys(), name


@pytest.mark.parametrize("count", COUNTS[:-1])
def test_predictions_and_vectors_are_those_of_one_process(results: Results, count: int) -> None:
    folder, _ = results
    one, two = (json_lines(folder / f"predict-{count}-{n}.jsonl") for n in (0, 2))
    assert len(one) == len(two) == count
    assert [row["label"] for row in two] == [row["label"] for row in one]
    scores = [[row["score"] for row in rows] for rows in (one, two)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    expected, found = (np.load(folder / f"npy-{count}-{n}.npy") for n in (0, 2))
    assert expected.shape == (count, SMALL["model.hidden_size"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    one, two = (json_lines(folder / f"jsonl-{count}-{n}.jsonl") for n in (0, 2))
    assert [row["text"] for row in two] == [row["text"] for row in one]
    vectors = [[row["vector"] for row in rows] for rows in (one, two)]
    np.testing.assert_allclose(*vectors, rtol=1e-4, atol=1e-6)


def test_metrics_are_those_of_one_process(results: Results) -> None:
    for name, (one, two) in results[1].items():
        if name[1] and COMMANDS[name[0]][0] == "evaluate":
            expected, found = (json.loads(run["output"][0]) for run in (one, two))
            assert found["n"] == expected["n"] > 0, name
            for metric, values in expected["metrics"].items():
                for key, value in values.items():
                    same = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
                    assert found["metrics"][metric][key] == same, (name, metric, key)


def test_no_input_is_the_same_error_or_no_output(results: Results) -> None:
    for name, (one, two) in results[1].items():
        if not name[1]:
            assert two["codes"][0] == one["codes"][0], (name, one, two)
            assert "Unexpected" not in "".join(two["errors"]), (name, two)
            message = one["errors"][0].removeprefix("firth: ")
            assert message in two["errors"][0], (name, two)


def test_torchrun_itself(results: Results) -> None:
    """A bad row is reported once; standard input, which the ranks would share, is refused."""
    folder, _ = results
    data, out = folder / "bad.jsonl", folder / "torchrun.jsonl"
    data.write_text('{"text_a": "a", "text_b": "b"}\n{"text_a"\n{"text_a": "c", "text_b": "d"}\n')
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launch, "-m", "firth", "predict", str(folder / "bert"), "--device", "cpu"]
    command += ["--task", "next-sentence", "--data"]
    options: Any = {"capture_output": True, "text": True, "timeout": 120}
    options["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(data), "--out", str(out)], **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("line 2") == 1
    assert [row is None for row in json_lines(out)] == [False, True, False]
    done = subprocess.run([*command, "-"], input="a\tb\n", **options)
    assert done.returncode == 1
    assert "one process" in done.stderr
