"""Generate text: Firth against `transformers.generate`, in new tokens per second.

Both have the same random weights and the same prompts of different lengths, and generate the same
number of tokens, greedily or with beam search and without an EOS token. `transformers.generate` is
eager, with its dynamic cache and prompts padded on the left; with --compiled it is also measured
with a static cache and `torch.compile`. Firth's decoding step is a CUDA graph on a GPU and compiled
C code on a CPU. Before the timing, both are checked to generate the same tokens in fp32. The table
has the fraction of equal tokens in the precision measured: with bf16 or int8 weights it can be
below 1, as random weights give nearly equal logits. The last line is the geometric mean of the
ratios.

    python bench/generate.py                  # the GPU where there is one
    python bench/generate.py --device cpu
    python bench/generate.py --rows one,beams
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from sides import machine, median_seconds
from transformers import CompileConfig

from firth.formats.huggingface.directory import read_network
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.transformer import Transformer
from firth.quantization.int8 import to_int8

GPT2 = dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50_257)
SMALL = dict(n_embd=256, n_layer=4, n_head=4, n_positions=1024, vocab_size=8192)
NUM_CHECKED = 128  # new tokens of the fp32 check


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    description: str
    shape: dict[str, int]
    num_prompts: int = 1
    num_beams: int = 1
    weights: str = ""  # "int8" for Firth; the peer's are always in --precision


ROWS = {
    "one": Row(description="GPT-2 124M, 1 prompt", shape=GPT2),
    "many": Row(description="GPT-2 124M, 64 prompts", shape=GPT2, num_prompts=64),
    "beams": Row(description="GPT-2 124M, 1 prompt, 4 beams", shape=GPT2, num_beams=4),
    "many-beams": Row(
        description="GPT-2 124M, 64 prompts, 4 beams", shape=GPT2, num_prompts=64, num_beams=4
    ),
    "int8": Row(description="GPT-2 124M, 1 prompt, int8 weights", shape=GPT2, weights="int8"),
    "small": Row(description="4 x 256, 1 prompt", shape=SMALL),
}
DEFAULT_ROWS = {"cuda": ("one", "many", "beams", "many-beams"), "cpu": ("one", "int8", "small")}


def main() -> None:
    """Check the tokens, time each row and print the speeds."""
    options = _options()
    device = torch.device(options.device)
    use_bf16 = options.precision == "bf16"
    torch.set_float32_matmul_precision("highest")
    print(f"{machine(device)}, transformers {transformers.__version__}, {options.precision}")
    print(f"tokens/s, for {options.tokens} new tokens of each prompt; prompts of 8 to 32 tokens")
    compiled_columns = "    compiled   ratio" if options.compiled else ""
    print(
        f"row                                      Firth   generate   ratio  equal tokens"
        f"{compiled_columns}"
    )
    ratios = []
    for name in options.rows:
        row = ROWS[name]
        peer, network = load_models(row.shape, device)
        prompts = make_prompts(row)
        equal_tokens = token_agreement(row, peer, network, prompts, NUM_CHECKED)
        if equal_tokens < 1.0:
            raise SystemExit(f"Only {equal_tokens:.1%} of the generated tokens are equal in fp32.")
        if use_bf16:
            peer, network = peer.bfloat16(), network.bfloat16()
        if row.weights == "int8":
            network = to_int8(network)
        equal_tokens = token_agreement(row, peer, network, prompts, options.tokens)
        functions: dict[str, Callable[[], object]] = {
            "firth": partial(generate_firth, network, prompts, row.num_beams, options.tokens),
            "peer": partial(generate_peer, peer, prompts, row.num_beams, options.tokens),
        }
        if options.compiled:
            compiled = partial(
                generate_peer, peer, prompts, row.num_beams, options.tokens, compiled=True
            )
            functions["compiled"] = compiled
        times = median_seconds(
            functions, device, warmup=2 if options.compiled else 1, repeats=options.repeats
        )
        speeds = {
            system: row.num_prompts * options.tokens / seconds for system, seconds in times.items()
        }
        ratios.append(speeds["firth"] / speeds["peer"])
        line = (
            f"{row.description:35} {speeds['firth']:10,.0f} {speeds['peer']:10,.0f} "
            f"{ratios[-1]:6.2f}x"
        )
        line += f"  {equal_tokens:12.1%}"
        if options.compiled:
            line += f"  {speeds['compiled']:10,.0f} {speeds['firth'] / speeds['compiled']:6.2f}x"
        print(line, flush=True)
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def load_models(shape: dict[str, int], device: torch.device) -> tuple[Any, Transformer]:
    """Build the peer's model with random weights and load its saved files with Firth."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    peer = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in peer.parameters():  # else all logits are nearly equal
            weight.mul_(3.0 if weight.dim() == 2 else 1.0)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder))
    assert isinstance(network, Transformer)
    return peer.to(device), network.eval().to(device)


def make_prompts(row: Row) -> list[list[int]]:
    """Sample prompts of 8 to 32 random tokens."""
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 33, (row.num_prompts,), generator=rng).tolist()
    vocab_size = row.shape["vocab_size"]
    return [torch.randint(1, vocab_size, (length,), generator=rng).tolist() for length in lengths]


def generate_firth(
    network: Transformer, prompts: list[list[int]], num_beams: int, max_new_tokens: int
) -> list[list[int]]:
    """Generate with Firth; return the new tokens of each prompt."""
    method = {"method": "beam", "beams": num_beams} if num_beams > 1 else {}
    config = GenerationConfig(max_new_tokens=max_new_tokens, **method)  # type: ignore[arg-type]
    return [list(best.tokens) for best, *_ in generate(network, prompts, config, eos_token_id=None)]


def generate_peer(
    peer: Any,
    prompts: list[list[int]],
    num_beams: int,
    max_new_tokens: int,
    *,
    compiled: bool = False,
) -> list[list[int]]:
    """Generate with transformers; with `compiled`, use a static cache and `torch.compile`."""
    longest = max(map(len, prompts))
    token_ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    attention_mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    device = peer.device
    settings: dict[str, Any] = {}
    if compiled:
        settings = {"cache_implementation": "static", "compile_config": CompileConfig()}
        settings["compile_config"]._compile_all_devices = True  # also on a CPU
    with torch.no_grad():
        output = peer.generate(
            torch.tensor(token_ids, device=device),
            attention_mask=torch.tensor(attention_mask, device=device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=num_beams,
            **settings,
        )
    new_tokens: list[list[int]] = output[:, longest:].tolist()
    return new_tokens


def token_agreement(
    row: Row, peer: Any, network: Transformer, prompts: list[list[int]], max_new_tokens: int
) -> float:
    """Return the fraction of equal tokens among those that both sides generate."""
    arguments = peer, prompts, row.num_beams, max_new_tokens
    pairs = zip(generate_firth(network, *arguments[1:]), generate_peer(*arguments), strict=True)
    return statistics.fmean(
        float(a == b)
        for firth_tokens, peer_tokens in pairs
        for a, b in zip(firth_tokens, peer_tokens, strict=True)
    )


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default_device, help="cuda or cpu (default: cuda if available)"
    )
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), help=f"comma-separated, of {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), help="default: bf16 on a GPU, fp32 on a CPU"
    )
    parser.add_argument(
        "--tokens", type=int, default=128, help="new tokens per prompt (default: 128)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each system (default: 5)"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="also measure transformers with torch.compile"
    )
    options = parser.parse_args()
    options.rows = options.rows or list(DEFAULT_ROWS[options.device])
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    return options


if __name__ == "__main__":
    main()
