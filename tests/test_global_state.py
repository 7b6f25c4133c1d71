"""Public functions leave the process as they found it, and threads may share a model."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import Model
from tests.conftest import SAMPLE

SIZE: dict[str, float] = {"hidden_size": 32, "num_heads": 2, "ffn_size": 48, "num_layers": 2}
SIZE |= {"dropout": 0.1, "init_std": 0.3}


def global_state() -> dict[str, Any]:
    """What a library might change for the rest of a process."""
    backends = torch.backends
    return {
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in RNG()],
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "dtype": (torch.get_default_dtype(), torch.get_default_device()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "flags": (torch.are_deterministic_algorithms_enabled(), backends.mkldnn.enabled),
        "precision": (torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32),
        "logging": (logging.root.level, logging.getLogger("firth").level, logging.root.handlers[:]),
        "hub": logging.getLogger("huggingface_hub").level,
        "signals": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
        "environment": {k: v for k, v in os.environ.items() if not k.startswith("TORCH")},
        "folder": os.getcwd(),
    }


RNG = np.random.get_state


class Workplace:
    """A folder in which each call finds what earlier ones write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = folder / "text.txt"
        self.text.write_text(SAMPLE, encoding="utf-8")
        rows = [f"{'red' if i % 2 else 'green'} sea {i}\t{'xy'[i % 2]}" for i in range(24)]
        self.table = folder / "rows.tsv"
        self.table.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")

    def tokenizer(self) -> Path:
        out = self.folder / "tokenizer"
        if not out.exists():
            options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 400, "workers": 1}
            firth.train_tokenizer([self.text], **options)[0].save(out)
        return out

    def shards(self) -> Path:
        out = self.folder / "shards"
        if not out.exists():
            firth.prepare([self.text], tokenizer=self.tokenizer(), out=out, workers=1)
        return out

    def run(self, preset: str) -> Path:
        out = self.folder / preset
        if not out.exists():
            overrides = {f"model.{name}": value for name, value in SIZE.items()}
            overrides |= {
                "model.dropout": 0.1,
                "model.init_std": 0.3,
                "max_length": 32,
                "batch_tokens": 128,
            }
            firth.pretrain(preset=preset, data=self.shards(), out=out, steps=2, overrides=overrides)
        return out

    def classifier(self) -> Path:
        out = self.folder / "classifier"
        if not out.exists():
            options: dict[str, Any] = {"train": self.table, "dev": self.table}
            options |= {"overrides": {"steps": 2, "max_length": 16}}
            firth.finetune(self.run("encoder-tiny"), task="classify", out=out, **options)
        return out

    def model(self, preset: str, weights: str | None = None) -> Model:
        return firth.load(self.run(preset), weights=weights)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def in_folder(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here.folder)


# Each needs the results of those before it.
CALLS: dict[str, Callable[[Workplace], object]] = {
    "train_tokenizer": Workplace.tokenizer,
    "prepare": Workplace.shards,
    "pretrain": lambda here: here.run("decoder-tiny"),
    "pretrain an encoder": lambda here: here.run("encoder-tiny"),
    "load": lambda here: firth.load(here.run("decoder-tiny")),
    "load as int8": lambda here: firth.load(here.run("decoder-tiny"), weights="int8"),
    "finetune": Workplace.classifier,
    "evaluate": lambda here: firth.evaluate(
        here.classifier(), task="classify", data=here.table, device="cpu"
    ),
    "evaluate a language model": lambda here: firth.evaluate(
        here.run("decoder-tiny"), task="lm", data=here.text
    ),
    "predict": lambda here: firth.predict(here.classifier(), texts=["red sea"]),
    "generate": lambda here: here.model("decoder-tiny").generate("The", temperature=1.0, seed=7),
    "generate with beams": lambda here: here.model("decoder-tiny").generate("The", beams=2),
    "fill": lambda here: here.model("encoder-tiny").fill("The [MASK]."),
    "embed": lambda here: here.model("encoder-tiny").embed(["The sea"], precision="fp32"),
    "score": lambda here: here.model("encoder-tiny").score("The sea"),
    "to": lambda here: here.model("encoder-tiny").to("cpu"),
    "prompt": lambda here: firth.prompt(
        here.run("decoder-tiny"), task="classify", data=here.table, shots=1, examples=here.table
    ),
    "export": lambda here: firth.export(here.run("decoder-tiny"), here.folder / "exported"),
    "write_stories": lambda here: firth.write_stories(here.folder / "stories", words=2000, seed=1),
    "show_objectives": lambda here: firth.show_objectives(firth.Shards(here.shards())),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_restores_the_global_state(here: Workplace, name: str) -> None:
    before = global_state()
    CALLS[name](here)
    after = global_state()
    for key, value in before.items():
        same = after[key] == value
        assert same, key


# ---- threads

TEXTS = [f"The {word} was" for word in "sea boat man dog fish wind".split()]
SHORT: dict[str, Any] = {"max_new_tokens": 6}
THREADED: dict[str, tuple[str, str | None, Callable[[Model, str], Any]]] = {
    "greedy in C": ("decoder-tiny", None, lambda model, text: model.generate(text, **SHORT)),
    "beams": ("decoder-tiny", None, lambda model, text: model.generate(text, **SHORT, beams=3)),
    "sampled by torch": ("decoder-tiny", None, lambda model, text: many(model, text)),
    "int8 in C": ("decoder-tiny", "int8", lambda model, text: model.generate(text, **SHORT)),
    "int8 by torch": ("encoder-tiny", "int8", lambda model, text: model.fill(text + " [MASK].")),
    "embed": ("encoder-tiny", None, lambda model, text: model.embed(text).tolist()),
    "fill": ("encoder-tiny", None, lambda model, text: model.fill(text + " [MASK].")),
    "score": ("encoder-tiny", None, lambda model, text: model.score(text)),
}


def many(model: Model, text: str) -> list[str]:
    """Generate more completions at a time than in C."""
    [found] = model.completions([text], n=9, temperature=2.0, **SHORT)
    return [completion.text for completion in found.completions]


@pytest.mark.parametrize("name", THREADED)
def test_threads_share_a_model(here: Workplace, name: str) -> None:
    """Threads give the results of sequential calls."""
    preset, weights, call = THREADED[name]
    model = here.model(preset, weights)
    expected = [call(model, text) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: call(model, text), TEXTS * 3)) == expected * 3
    assert any(answer != expected[0] for answer in expected)


def test_embedding_in_a_thread_leaves_training_mode_to_others(here: Workplace) -> None:
    """The mode of a network in training is the same after concurrent calls."""
    model = here.model("encoder-tiny")
    model.network.train()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(model.embed, TEXTS * 10))
    assert model.network.training
    for text, vectors in zip(TEXTS * 10, found, strict=True):
        np.testing.assert_allclose(vectors, model.embed(text), rtol=1e-5, atol=1e-6)
