"""Existing outputs: no verb replaces one without `--overwrite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import firth
from firth.utils.errors import UsageError
from tests.conftest import Result

VERBS: dict[str, list[str]] = {
    "predict": ["RUN", "--data", "texts.txt", "--out", "out.jsonl"],
    "fill": ["ENCODER", "--file", "texts.txt", "--out", "out.jsonl"],
    "generate": ["DECODER", "--file", "texts.txt", "--out", "out.jsonl"],
    "prompt": ["DECODER", "good", "--max-new-tokens", "1", "--out", "out.jsonl"],
    "embed": ["ENCODER", "texts.txt", "--out", "out.npy"],
    "export": ["ENCODER", "out"],
    "stories": ["out", "--words", "500"],
    "tokenizer train": ["texts.txt", "--kind", "char", "--vocab-size", "20", "--out", "out"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_output_is_replaced_only_on_request(
    verb: str,
    models: dict[str, Path],
    run_of: Callable[[str], Path],
    firth_here: Callable[..., Result],
    tmp_path: Path,
) -> None:
    (tmp_path / "texts.txt").write_text("The [MASK] barked.\nThe [MASK] slept.\n")
    places = {"ENCODER": models["encoder"], "DECODER": models["decoder"], "RUN": run_of("classify")}
    words = [places.get(word, word) for word in VERBS[verb]]
    command = [*verb.split(), *words]
    assert firth_here(*command).returncode == 0
    (out,) = tmp_path.glob("out*")
    before = _contents(out)
    refused = firth_here(*command)
    assert refused.returncode == 2
    assert out.name in refused.error
    assert "--overwrite" in refused.error
    assert _contents(out) == before
    assert firth_here(*command, "--overwrite").returncode == 0


def _contents(out: Path) -> dict[Path, int]:
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    return {file: file.stat().st_ino for file in files}


def test_an_export_leaves_nothing_of_the_model_it_replaces(
    models: dict[str, Path], run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    firth.export(run_of("classify"), tmp_path / "out")
    (tmp_path / "out/run.json").write_bytes((run_of("classify") / "run.json").read_bytes())
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="out exists"):
        firth.export(models["encoder"], tmp_path / "out")
    firth.export(models["encoder"], tmp_path / "out", overwrite=True)
    assert firth.load(tmp_path / "out").task is None
    assert (tmp_path / "out/notes.txt").read_text() == "mine"
