"""Cells that measure what a model costs: time and FLOPs of training, time and memory of inference.

They run alone, because other processes would slow them down.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from firth.jobs.pretrain_result import PretrainResult
from firth.jobs.pretraining import pretrain
from firth.model import Model, load
from firth.study.cells.held_out_text import text_pieces
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.pretrain_config import PretrainRunConfig, resolve_pretrain_config
from firth.utils.devices import DeviceSpec, device_spec

READING, GENERATING = "texts per second", "generated tokens per second"
STEPS, CUDA_STEPS = 12, 1000  # of a run that is measured


def pretraining_cost(
    context: CellContext, *, data: Cell, options: Mapping[str, Any], run_tokens: int
) -> Mapping[str, Any]:
    """Measure the tokens of text per second and the FLOPs per token of text of pre-training.

    Blocks are compiled if those of the grid's runs are, which have `run_tokens`.
    """
    speeds: list[float] = []

    def record(kind: str, metrics: Mapping[str, Any]) -> None:
        if "tokens_per_second" in metrics:
            speeds.append(metrics["tokens_per_second"])

    shards, batch_tokens, steps = context.path(data) / "shards", int(options["batch_tokens"]), STEPS
    if context.device.startswith("cuda"):
        steps = max(STEPS, min(CUDA_STEPS, run_tokens // batch_tokens))
    tokens = steps * batch_tokens
    compiled = is_compiled(options, shards, run_tokens, device_spec(torch.device(context.device)))
    overrides = {**options["overrides"], "log_every": 1, "compile": str(compiled).lower()}
    found = pretrain(
        data=shards,
        seed=context.seed,
        device=context.device,
        callback=record,
        **{**options, "tokens": tokens, "overrides": overrides},
        **context.run_options("run"),
    )
    shutil.rmtree(found.path)
    assert isinstance(found.config, PretrainRunConfig)
    of_text = tokens / found.tokens  # the rest: special tokens, sentinels
    return {
        "scores": {},
        "tokens_per_second": float(np.median(speeds[2:])) * of_text,
        "flops_per_token": run_flops_per_token(found.config) / of_text,
        **_parameters(found),
    }


def is_compiled(options: Mapping[str, Any], shards: Path, tokens: int, device: DeviceSpec) -> bool:
    """Tell whether the blocks of a run with these options and tokens would be compiled."""
    sizes = {name: options[name] for name in ("max_length", "batch_tokens")}
    config = resolve_pretrain_config(
        *(options["preset"], options["objective"], Tokenizer.load(shards), {"tokens": tokens}),
        *({**sizes, **options["overrides"]}, None, None, device),
    )
    return config.training.compile == "true"


def run_flops_per_token(config: PretrainRunConfig) -> float:
    """Compute the mean training FLOPs per token of a run, whose objective may change."""
    return float(np.mean([config.flops_per_token(at) for at in np.linspace(0.05, 0.95, 10)]))


def _parameters(found: PretrainResult) -> dict[str, int]:
    """Count the parameters with and without the token embeddings, which the output matrix is."""
    total, tokens = found.model.num_parameters, found.model.network.tokens.weight.numel()
    return {"parameters": total, "non_embedding_parameters": total - tokens}


def inference_cost(
    context: CellContext,
    *,
    model: File,
    text: File,
    texts: int,
    max_words: int,
    new_tokens: int,
    repeats: int,
) -> Mapping[str, Any]:
    """Measure how fast a model reads a batch of texts and generates, and its memory.

    Reading computes one vector for each text, as a classifier does. Memory is that of the weights
    and the largest amount of other tensors during that. A repetition is an example of the scores.
    """
    loaded = load(context.path(model), device=context.device)
    pieces = text_pieces(context.path(text), texts=texts, max_words=max_words)
    tokens = sum(len(loaded.require_tokenizer().encode(piece)) for piece in pieces)
    # The same precision for all: on a GPU, the default is bf16 for encoders and fp32 for others.
    read = partial(loaded.embed, pieces, precision="fp32")
    seconds = _timed(read, repeats, context.device)
    scores = {
        READING: score_values([len(pieces)] * repeats, seconds),
        "tokens per second": score_values([tokens] * repeats, seconds),
    }
    if loaded.config.has_decoder:
        prompts = [" ".join(piece.split()[:4]) for piece in pieces[:8]]
        counts: list[int] = []
        seconds = _timed(
            lambda: counts.append(_generate(loaded, prompts, new_tokens)), repeats, context.device
        )
        scores[GENERATING] = score_values(counts[1:], seconds)
    weights = sum(one.numel() * one.element_size() for one in loaded.network.parameters())
    other = peak_bytes(read, context.device)
    return {"scores": scores, "weight_bytes": weights, "memory": weights + other}


def _generate(model: Model, prompts: Sequence[str], new_tokens: int) -> int:
    """Generate after prompts, and count the tokens; the end token is one of them."""
    found = model.completions(prompts, max_new_tokens=new_tokens, temperature=0.0)
    return sum(min(len(one.completions[0].tokens) + 1, new_tokens) for one in found)


def _timed(call: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """Return the seconds of each of several calls, after one that is not measured."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """Measure the largest number of bytes of the tensors that a call allocates."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return int(torch.cuda.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = sorted(recorded.events(), key=lambda event: event.time_range.end)
    sizes = [getattr(event, "self_cpu_memory_usage", 0) for event in events]
    return int(max(np.cumsum(sizes), default=0))
