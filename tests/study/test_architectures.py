"""The comparison of architectures: equal sizes, documents and budgets, and the verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.jobs.preparation import prepare
from firth.model import load
from firth.models.transformer import Transformer
from firth.objectives.registry import OBJECTIVES
from firth.study.architecture_plans import (
    CAUSAL_THEN_MASKED,
    DECODER,
    ENCODER,
    HYBRID,
    PLANS,
    TABLES,
    ModelSize,
    pretraining_options,
)
from firth.study.architecture_results import Column, GridScores, best_finding, compared
from firth.study.architecture_tables import analyse
from firth.study.cells.evaluation_cells import bits_per_byte, pair_scores, split_in_half
from firth.study.cells.measured_cost_cells import is_compiled, peak_bytes, run_flops_per_token
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.study.engine.statistics import Scores
from firth.study.running import run_study
from firth.tasks.readers.examples import MinimalPair
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.pretrain_config import PretrainRunConfig, resolve_pretrain_config
from firth.utils.devices import H100, device_spec

SMALL = ModelSize(
    num_layers=2,
    hidden_size=64,
    num_heads=2,
    ffn_size=176,
    max_length=128,
    batch_tokens=1024,
    mask_prob=0.3,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("shards")
    texts = [f"Story {i}. " + "The dog barked at the cat. " * (1 + i % 5) for i in range(40)]
    made = prepare(texts, tokenizer="stories-seq2seq", out=folder / "shards", valid_fraction=0.0)
    return Shards(made.path)


def run_config(name: str, tokenizer: Tokenizer) -> PretrainRunConfig:
    options = pretraining_options(name, SMALL)
    overrides = {k: str(options[k]) for k in ("max_length", "batch_tokens")} | options["overrides"]
    return resolve_pretrain_config(
        options["preset"],
        options["objective"],
        tokenizer,
        {"tokens": 10_240},
        overrides,
        None,
        None,
        device_spec(torch.device("cpu")),
    )


def test_all_architectures_have_the_same_size(shards: Shards) -> None:
    tokenizer = Tokenizer.load(shards.path)
    sizes = set()
    for name in PLANS:
        network = Transformer(run_config(name, tokenizer).model, ("language",))
        sizes.add(sum(weights.numel() for weights in network.parameters()))
    assert max(sizes) <= 1.002 * min(sizes)


def test_all_architectures_read_the_same_documents_in_the_same_order(shards: Shards) -> None:
    tokenizer = Tokenizer.load(shards.path)
    for name in PLANS:
        config, sampler = run_config(name, tokenizer), Sampler(shards, seed=3)
        row, position, seen = OBJECTIVES[config.objective], SamplerPosition(), list[int]()
        options = config.options_at(0.0)
        for _ in range(3):
            drawn, position = row.draw(sampler, position, length=128, tokens=512, **options)
            seen += drawn.documents.tolist()
        documents = list(dict.fromkeys(seen))
        assert len(documents) > 10
        assert documents == Sampler(shards, seed=3).order(0)[: len(documents)].tolist()


def test_a_run_that_changes_its_objective_costs_the_mean(shards: Shards) -> None:
    tokenizer = Tokenizer.load(shards.path)
    hybrid, changing, causal = (
        run_flops_per_token(run_config(name, tokenizer))
        for name in (HYBRID, CAUSAL_THEN_MASKED, DECODER)
    )
    assert changing == pytest.approx(hybrid)  # half of the sequences, or half of the run
    config = run_config(DECODER, tokenizer).model
    fewer = 6 * config.vocab_size * config.hidden_size * 0.5 * (1 - 0.3)
    assert causal - hybrid == pytest.approx(fewer)


def test_the_measured_run_is_compiled_if_those_of_the_grid_are(shards: Shards) -> None:
    large = replace(SMALL, hidden_size=768, num_heads=12, num_layers=12, ffn_size=3072)
    options = pretraining_options(ENCODER, large)
    assert is_compiled(options, shards.path, 1_000_000_000, H100)
    assert not is_compiled(options, shards.path, 1_000_000, H100)


def test_bits_per_byte_of_the_second_half(tmp_path: Path) -> None:
    text, model = tmp_path / "text.txt", load("stories-decoder")
    pieces = [f"The old {name} sat on the mat and slept." for name in ("dog", "cat", "bird")] * 7
    text.write_text("\n\n".join(pieces))
    settings = {"model": model.path, "text": text, "texts": 21, "max_words": 40}
    found = CellCache(tmp_path).run(Cell(bits_per_byte, settings)).values["scores"]
    first, second = split_in_half(pieces[0])
    expected = -model.score(second, first).total / math.log(2)
    assert found["bits per byte"]["numerators"][0] == pytest.approx(expected, rel=1e-4)
    assert found["bits per byte"]["denominators"][0] == len(second.encode())


@pytest.mark.parametrize("name", ["stories-encoder", "stories-decoder"])
def test_pairs_are_scored_by_the_log_probability_of_sentences(name: str) -> None:
    model, pair = load(name), MinimalPair(good="The ducks wait.", bad="The ducks waits.")
    expected = [model.score(pair.good).total, model.score(pair.bad).total]
    assert pair_scores(model, [pair])[0] == pytest.approx(expected, rel=1e-4)


def test_an_encoder_decoder_prefers_the_right_word() -> None:
    pair = MinimalPair(good="Rose enjoyed herself.", bad="Rose enjoyed himself.")
    [[good, bad]] = pair_scores(load("stories-seq2seq"), [pair])
    assert good > bad


def test_peak_memory_counts_live_tensors() -> None:
    ones = torch.ones(500, 500)

    def call() -> None:
        first = ones + 1
        second = first + 1
        del first
        _ = second + 1

    assert peak_bytes(call, "cpu") == pytest.approx(2 * 4 * 500**2, rel=0.01)


def accuracies(value: float, seeds: int = 3, examples: int = 200) -> Scores:
    right = np.tile(np.arange(examples) < value * examples, (seeds, 1)).astype(float)
    return Scores(right, np.ones_like(right))


def made_up(values: dict[str, float], **column: Any) -> tuple[Column, GridScores]:
    one = Column(name="classify", label="classification", metric="accuracy", **column)
    cost = {"tokens_per_second": 10.0, "flops_per_token": 1e6}
    cost |= {"parameters": 100, "non_embedding_parameters": 50}
    return one, GridScores(
        columns=[one],
        budgets={(table, name): 1000 for table in TABLES for name in values},
        scores={("classify", name, 1000): accuracies(value) for name, value in values.items()},
        costs=dict.fromkeys(values, cost),
        speeds={},
        errors={("hybrid", 1000): "out of memory"},
    )


def test_the_encoder_is_compared_with_the_others() -> None:
    column, found = made_up({ENCODER: 0.9, DECODER: 0.6, HYBRID: 0.9})
    analysis = analyse(found)
    verdict = analysis.findings[0]
    assert (verdict.name, verdict.holds) == ("classify-tokens", True)
    assert verdict.value == pytest.approx(30)
    assert len(analysis.rows) == 3 * len(TABLES)
    assert [row.get("error") for row in analysis.rows[:3]] == [None, None, "out of memory"]
    json.dumps(list(analysis.rows))
    assert compared(found, column, TABLES[0])[ENCODER, HYBRID].holds is None
    best = best_finding(found, column, TABLES[0])
    assert best is not None
    assert best.holds is None  # encoder and hybrid are equal


def test_lower_can_be_better() -> None:
    column, found = made_up({DECODER: 0.9, HYBRID: 0.5}, lower_is_better=True)
    best = best_finding(found, column, TABLES[0])
    assert best is not None
    assert best.value == 50
    assert compared(found, column, TABLES[0])[DECODER, HYBRID].holds is False


@pytest.mark.nightly
def test_a_small_study(tmp_path: Path) -> None:
    overrides = {
        "architectures": "encoder,decoder,encoder-decoder",
        "tokens": 4096,
        "steps": 4,
        "texts": 20,
        "pairs": 20,
        "test_size": 20,
        "words": 30_000,
        "vocab_size": 1000,
    }
    found = run_study("architectures", out=tmp_path, seeds=1, overrides=overrides, workers=1)
    assert not found.failures
    assert {row["architecture"] for row in found.analysis.rows} == {
        "encoder",
        "decoder",
        "encoder-decoder",
    }
    parameters = {row["parameters"] for row in found.analysis.rows}
    assert max(parameters) <= 1.002 * min(parameters)
