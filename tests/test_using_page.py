"""The Python blocks of "Models in Python" in docs/using.md run, in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from tests.conftest import SAMPLE, in_process

PAGE = (Path(__file__).parent.parent / "docs/using.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Models in Python") :]
BLOCKS = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
SIZE = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 64}


def test_models_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(SAMPLE, encoding="utf-8")
    options: dict[str, Any] = {"kind": "bpe", "vocab_size": 400, "workers": 1}
    firth.train_tokenizer([text], **options)[0].save("runs/mine")
    firth.prepare([text], tokenizer="runs/mine", out="runs/my-shards", valid_fraction=0.2)
    overrides = {f"model.{name}": size for name, size in SIZE.items()}
    sizes: dict[str, Any] = {"max_length": 32, "batch_tokens": 256, "overrides": overrides}
    firth.pretrain(preset="gpt2", data="runs/my-shards", out="runs/gpt", steps=2, **sizes)
    tensors, loop, callbacks = BLOCKS
    names: dict[str, Any] = {}
    exec(tensors, names)
    assert "Model(runs/gpt, decoder" in capsys.readouterr().out
    tokens = len(names["model"].tokens("Once upon a"))
    sums = names["probabilities"].sum(-1)
    torch.testing.assert_close(sums, torch.ones(tokens), rtol=1e-4, atol=1e-4)
    assert names["middle"].shape[1] == SIZE["hidden_size"]

    names = {}
    exec(loop, names)
    assert len(loop.partition("]\n\n")[2].splitlines()) == 10
    before, after, tuned = firth.load("runs/gpt"), names["model"], firth.load("runs/gpt-tuned")
    after.network.eval()
    assert after.score(names["texts"][0]).total > before.score(names["texts"][0]).total + 1
    assert tuned.logits("The fox").equal(after.logits("The fox"))

    names = {}
    exec(callbacks, names)
    assert [step for step, _ in names["losses"]] == [1, 2, 3, 4]
    assert names["best"]
    assert "PretrainResult(runs/longer" in capsys.readouterr().out


def test_the_blank_of_the_first_example_is_filled_as_printed() -> None:
    """The README prints the same example."""
    options = ("The [MASK] barked loudly at the mailman.", "--top", "3")
    shown = in_process("fill", "stories-encoder", *options).stdout
    table = "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert [page.count(table) for page in (readme, PAGE)] == [1, 1]
