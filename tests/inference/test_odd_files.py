"""Empty files, bad rows and unsuitable models, for every verb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth import Model
from firth.models.transformer import Transformer
from tests.inference.conftest import MakeModel

Verb = Callable[..., Any]


COMMANDS = {
    "fill": "fill bert --file {}",
    "fill to a file": "fill bert --file {} --out out.jsonl",
    "fill as JSON": "fill bert --file {} --json",
    "correct": "fill bert --correct --file {}",
    "generate": "generate gpt --file {}",
    "generate to a file": "generate gpt --file {} --out out.jsonl",
    "generate as JSON": "generate gpt --file {} --json",
    "embed": "embed bert {} --out out.npy",
    "search": "search bert {} sea",
}


@pytest.mark.usefixtures("bert", "gpt")
@pytest.mark.parametrize("what", COMMANDS)
def test_empty_files_are_refused(what: str, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("")
    (tmp_path / "none.csv").write_text("text\n")
    for name in ("none.txt", "none.csv"):
        refused = verb(*COMMANDS[what].format(name).split())
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert name in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize("n", [1, 2])
def test_a_bad_row_has_empty_lines_of_output(verb: Verb, gpt: Path, tmp_path: Path, n: int) -> None:
    (tmp_path / "p.txt").write_bytes(b"The sea\n\nA b\xffat\nthe wind\n")
    options = ("--max-new-tokens", 3, "--temperature", 1.0, "--n", n)
    done = verb("generate", gpt, "--file", "p.txt", *options)
    assert done.exit_code == 0
    lines = done.stdout.removesuffix("\n").split("\n")
    prompts = [line.partition("\t")[2] for line in lines]
    assert prompts == [prompt for prompt in ("The sea", "", "", "the wind") for _ in range(n)]
    assert lines[n : 3 * n] == [""] * 2 * n


def test_an_encoder_without_a_language_head_is_not_sent_to_fill(
    make_model: MakeModel, verb: Verb, tmp_path: Path
) -> None:
    """A sentence encoder predicts no tokens, so `firth fill` must not be suggested."""
    whole = make_model("bert-tiny")
    network = Transformer(whole.config, ()).eval()
    network.load_state_dict(whole.network.state_dict(), strict=False)
    Model(network, whole.tokenizer).save(tmp_path / "minilm")
    refused = verb("generate", "minilm", "The sea")
    assert refused.exit_code == 1
    assert "encoder cannot generate" in refused.stderr
    assert "firth fill" not in refused.stderr
    assert "`firth embed`" in refused.stderr
    assert verb("fill", "minilm", "The [MASK]").exit_code == 1
    (tmp_path / "p.txt").write_text("The sea\n")
    assert verb("embed", "minilm", "p.txt", "--out", "vectors.npy").exit_code == 0
