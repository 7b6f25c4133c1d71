"""Opening a quantized GGUF file: `firth.load` against `from_pretrained` of transformers.

A file of Llama's architecture with random Q8_0 blocks (465M parameters, 500 MB) is opened by both
sides in turns, in one process, from a warm file cache. Both dequantize every weight to single
precision; the weights of both must be equal. The tokenizer is opened by Firth only.

    python bench/load_gguf.py
    python bench/load_gguf.py --layers 4 --repeats 3
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from sides import machine

import firth

HIDDEN, INNER, HEADS, VOCABULARY = 1280, 3584, 20, 32_000
BLOCK, BLOCK_BYTES = 32, 34  # Q8_0: a half-precision scale and 32 int8 values


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        path = write(Path(folder, "model.gguf"), options.layers)
        print(f"{machine(torch.device('cpu'))}; Q8_0, {path.stat().st_size / 1e6:.0f} MB")
        theirs = transformers.AutoModelForCausalLM
        sides: dict[str, Callable[[], Any]] = {
            "Firth": lambda: firth.load(path).network,
            "transformers": lambda: theirs.from_pretrained(
                folder, gguf_file=path.name, dtype=torch.float32
            ),
        }
        totals = {side: _total(opened()) for side, opened in sides.items()}
        if not np.isclose(*totals.values(), rtol=1e-4):
            raise SystemExit(f"The two models are not the same: {totals}.")
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, opened in sides.items():
                seconds[side].append(_time(opened))
    for side, times in seconds.items():
        print(f"{side:14} {statistics.median(times):7.2f} s")
    firths, peers = (statistics.median(times) for times in seconds.values())
    print(f"ratio: {peers / firths:.2f}")


def _total(network: torch.nn.Module) -> float:
    """Return the sum of the absolute values of all weights."""
    weights = {id(weight): weight for weight in network.parameters()}.values()
    return float(sum(weight.detach().abs().double().sum() for weight in weights))


def _time(opened: Callable[[], Any]) -> float:
    gc.collect()
    started = time.perf_counter()
    opened()
    return time.perf_counter() - started


def write(path: Path, layers: int) -> Path:
    """Write a file of random blocks, as llama.cpp's converter names its parts."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_feed_forward_length(INNER)
    writer.add_context_length(2048)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([chr(0x4E00 + i) for i in range(VOCABULARY)])
    writer.add_token_merges([])
    random = np.random.default_rng(0)
    for name, shape in tensors(layers):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
            continue
        blocks = random.integers(0, 256, (shape[0], shape[1] // BLOCK, BLOCK_BYTES), dtype=np.uint8)
        blocks[..., :2] = np.array([1e-3], dtype="<f2").view(np.uint8)
        raw = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, blocks.reshape(shape[0], -1), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the weights."""
    yield "token_embd.weight", (VOCABULARY, HIDDEN)
    yield "output.weight", (VOCABULARY, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{part}.weight", (HIDDEN, HIDDEN)
        for part in ("ffn_gate", "ffn_up"):
            yield f"blk.{layer}.{part}.weight", (INNER, HIDDEN)
        yield f"blk.{layer}.ffn_down.weight", (HIDDEN, INNER)
        for part in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{part}.weight", (HIDDEN,)


if __name__ == "__main__":
    main()
