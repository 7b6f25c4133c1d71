"""Load a quantized GGUF file: `firth.load` against `from_pretrained` of transformers.

The file has Llama's architecture and random Q8_0 blocks (488M parameters, 519 MB). Both libraries
load it in turn, in one process and from a warm file cache, and dequantize every weight to fp32.
Before the timing, the sums of the absolute values of all weights are checked to agree to a relative
1e-4. Only Firth also loads the tokenizer. The median seconds of both are printed; the ratio is
transformers' time divided by Firth's.

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

HIDDEN_SIZE, FFN_SIZE, NUM_HEADS, VOCAB_SIZE = 1280, 3584, 20, 32_000
BLOCK, BLOCK_BYTES = 32, 34  # Q8_0: an fp16 scale and 32 int8 values


def main() -> None:
    """Write the file, check that both libraries load the same weights, and time them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=20, help="number of layers (default: 20)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed loads per library (default: 3)"
    )
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        path = write_gguf(Path(folder, "model.gguf"), options.layers)
        print(f"{machine(torch.device('cpu'))}; Q8_0, {path.stat().st_size / 1e6:.0f} MB")
        auto_class = transformers.AutoModelForCausalLM
        loaders: dict[str, Callable[[], Any]] = {
            "Firth": lambda: firth.load(path).network,
            "transformers": lambda: auto_class.from_pretrained(
                folder, gguf_file=path.name, dtype=torch.float32
            ),
        }
        sums = {library: _sum_of_weights(load()) for library, load in loaders.items()}
        first_sum, second_sum = sums.values()
        if not np.isclose(first_sum, second_sum, rtol=1e-4):
            raise SystemExit(f"The weights of the two models differ: sums {sums}.")
        seconds: dict[str, list[float]] = {library: [] for library in loaders}
        for _ in range(options.repeats):
            for library, load in loaders.items():
                seconds[library].append(_time_load(load))
    for library, times in seconds.items():
        print(f"{library:14} {statistics.median(times):7.2f} s")
    firth_time, peer_time = (statistics.median(times) for times in seconds.values())
    print(f"ratio: {peer_time / firth_time:.2f}")


def _sum_of_weights(network: torch.nn.Module) -> float:
    """Return the sum of the absolute values of all weights, each counted once."""
    weights = {id(weight): weight for weight in network.parameters()}.values()
    return float(sum(weight.detach().abs().double().sum() for weight in weights))


def _time_load(load: Callable[[], Any]) -> float:
    """Return the seconds of one call of `load`."""
    gc.collect()
    start = time.perf_counter()
    load()
    return time.perf_counter() - start


def write_gguf(path: Path, layers: int) -> Path:
    """Write a GGUF file of random Q8_0 blocks with the tensor names of llama.cpp's converter."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_block_count(layers)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_feed_forward_length(FFN_SIZE)
    writer.add_context_length(2048)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN_SIZE // NUM_HEADS)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([chr(0x4E00 + i) for i in range(VOCAB_SIZE)])
    writer.add_token_merges([])
    rng = np.random.default_rng(0)
    for name, shape in weight_shapes(layers):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
            continue
        blocks = rng.integers(0, 256, (shape[0], shape[1] // BLOCK, BLOCK_BYTES), dtype=np.uint8)
        blocks[..., :2] = np.array([1e-3], dtype="<f2").view(np.uint8)
        dtype = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, blocks.reshape(shape[0], -1), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weight_shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each weight."""
    yield "token_embd.weight", (VOCAB_SIZE, HIDDEN_SIZE)
    yield "output.weight", (VOCAB_SIZE, HIDDEN_SIZE)
    yield "output_norm.weight", (HIDDEN_SIZE,)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", (HIDDEN_SIZE, HIDDEN_SIZE)
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{layer}.{name}.weight", (FFN_SIZE, HIDDEN_SIZE)
        yield f"blk.{layer}.ffn_down.weight", (HIDDEN_SIZE, FFN_SIZE)
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (HIDDEN_SIZE,)


if __name__ == "__main__":
    main()
