"""A prefix LM reads its prompt in both directions, as in training: in every way of generating and
scoring, with and without a cache, in a batch and alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.data.packing import PackedSequences
from firth.data.windows import sliding_windows
from firth.inference.generation import beam_search, sampling
from firth.inference.generation.decode_state import DecodeState
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.inference.scoring.log_likelihood import score_continuations
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.objectives.causal import prefix
from firth.quantization import c_library
from firth.tasks.perplexity import measure
from firth.tasks.scoring_task import Scorer, ScoringOptions
from firth.training.losses import token_losses
from tests.conftest import SAMPLE
from tests.inference.conftest import MakeModel, memorize
from tests.models.small import KINDS, build

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [3, 4]]
WAYS = [
    GenerationConfig(max_new_tokens=6),
    GenerationConfig(max_new_tokens=6, method="sample", n=2, repetition_penalty=1.2),
    GenerationConfig(max_new_tokens=6, method="beam", beams=3, n=2),
]


def prefix_lm(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """A small decoder with a bidirectional prompt."""
    return build(replace(KINDS[kind], prefix_lm=True), dtype=dtype).eval()


@torch.no_grad()
def log_probs(network: Transformer, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The log-probabilities of the tokens after a prompt, in one pass."""
    row = torch.tensor([*prompt, *tokens])
    hidden = network(row, Mask([len(row)], prefix=[len(prompt)]))
    return network.logits(hidden[len(prompt) - 1 :]).log_softmax(-1)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "windowed"])
def test_greedy_decoding(kind: str) -> None:
    network = prefix_lm(kind)
    found = generate(network, PROMPTS, WAYS[0], eos_token_id=None)
    for prompt, [ours] in zip(PROMPTS, found, strict=True):
        logs = log_probs(network, prompt, list(ours.tokens))[:-1]
        assert logs.argmax(-1).tolist() == list(ours.tokens)
        assert ours.logprob == pytest.approx(float(logs.amax(-1).sum()), abs=1e-5)
    causal = build(KINDS[kind], dtype=torch.float64).eval()
    assert generate(causal, PROMPTS, WAYS[0], eos_token_id=None) != found


@pytest.mark.parametrize("settings", WAYS, ids=lambda settings: settings.method)
def test_alone_and_without_a_cache(
    settings: GenerationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Any:
        texts = generate(network, PROMPTS, settings, eos_token_id=2)
        return [[(one.tokens, pytest.approx(one.logprob)) for one in own] for own in texts]

    network = prefix_lm("llama")
    together = run()
    for i, prompt in enumerate(PROMPTS):
        [own] = generate(network, [prompt], settings, eos_token_id=2, indices=[i])
        assert [(one.tokens, one.logprob) for one in own] == together[i]
    for module in (sampling, beam_search):
        monkeypatch.setattr(module, "start_decoding", lambda *given: DecodeState(*given[:3]))
    assert run() == together


@pytest.mark.parametrize("settings", WAYS, ids=lambda settings: settings.method)
def test_c_kernels(settings: GenerationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    network, found = prefix_lm("llama", torch.float32), []
    for native in ("0", "1"):
        monkeypatch.setenv(c_library.DISABLE_VARIABLE, native)
        texts = generate(network, PROMPTS, settings, eos_token_id=2)
        found.append([[one.tokens for one in own] for own in texts])
    assert found[0] == found[1]


def test_continuations() -> None:
    """Those of one long prompt share its computation."""
    network, generator = prefix_lm("llama"), torch.Generator().manual_seed(0)
    long = torch.randint(3, 30, (18,), generator=generator).tolist()
    pairs = [(long, [4, 5, 6]), (long, [4, 5]), (long, [7]), (long[:17], [9, 9]), ([3], [4, 8, 9])]
    for (context, rest), score in zip(pairs, score_continuations(network, pairs), strict=True):
        logs = log_probs(network, context, rest)[:-1]
        assert score.log_probs == pytest.approx(logs[range(len(rest)), rest].numpy(), abs=1e-6)


def test_scores_are_those_of_training() -> None:
    network, rows = prefix_lm("llama"), [np.array([3, 9, 4, 7, 8, 20, 5]), np.array([6, 5, 11, 3])]
    batch = prefix(PackedSequences.join(rows, np.arange(2, dtype=np.uint64)))
    assert max(batch.prefix) > 1
    parts = [
        (row[:n].tolist(), row[n:].tolist()) for row, n in zip(rows, batch.prefix, strict=True)
    ]
    scores = np.concatenate([s.log_probs for s in score_continuations(network, parts)])
    losses = token_losses(network, batch, batch.predictions["prefix"])
    assert scores == pytest.approx(-losses, abs=1e-5)


def test_perplexity(make_model: MakeModel, lines: Path) -> None:
    """The tokens of a window that were scored before are its prompt."""
    model = make_model("gpt2", "bpe", bos_token_id=0, prefix_lm=True)
    tokenizer = model.require_tokenizer()
    options = ScoringOptions(data=lines, context=12, stride=4)
    nats = measure(Scorer(network=model.network, tokenizer=tokenizer), options).details["nats"]
    tokens = np.array([0, *tokenizer.encode(lines.read_text().strip())])
    windows = sliding_windows([tokens], 12, 4)
    pairs = [(window[:known].tolist(), window[known:].tolist()) for window, known in windows]
    assert nats == pytest.approx(-sum(s.sum for s in score_continuations(model.network, pairs)))


def test_a_run_is_a_prefix_lm(tmp_path: Path) -> None:
    run = memorize(SAMPLE.split("\n\n"), tmp_path, "decoder-tiny", steps=1, objective="prefix")
    assert firth.load(run).config.prefix_lm
    firth.export(run, tmp_path / "exported")
    exported = firth.load(tmp_path / "exported")
    assert exported.config.prefix_lm
    [explained] = replace(exported.text_generator(max_new_tokens=3), explain=True).complete(
        ["The dog barked at"]
    )
    logprob = np.log([step.probability for step in explained.completions[0].steps]).sum()
    assert logprob == pytest.approx(explained.completions[0].logprob, abs=1e-4)
    file = run / "config.json"
    values = json.loads(file.read_text())
    del values["prefix_lm"]  # as in runs of earlier versions
    file.write_text(json.dumps(values))
    assert firth.load(run).config.prefix_lm
