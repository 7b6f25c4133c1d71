"""Generation: new tokens a second, Firth against `transformers.generate`.

Both sides have the same random weights, read the same prompts of unequal lengths, and write the
same number of tokens: greedily, or with beams, with no token that ends a text. The peer pads its
prompts on the left and keeps its usual (growing) cache, eager; Firth is its `generate`,
whose step is replayed as a CUDA graph on a GPU, and is C on a CPU, compiled before it is timed. In
fp32 both must write the same tokens; that is checked first. In bf16 and with int8 weights the share
of equal tokens is printed: random weights make near ties, which rounding decides. With --compiled,
the peer is measured also with its static cache and `torch.compile`.

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
from sides import in_turns, machine
from transformers import CompileConfig

from firth.formats.huggingface.directory import read_network
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.transformer import Transformer
from firth.quantization.int8 import to_int8

GPT2 = dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50_257)
SMALL = dict(n_embd=256, n_layer=4, n_head=4, n_positions=1024, vocab_size=8192)
CHECKED = 128  # tokens that both sides write in fp32 before anything is timed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    about: str
    shape: dict[str, int]
    prompts: int = 1
    beams: int = 1
    weights: str = ""  # of Firth's side; the peer's are always those of --precision


ROWS = {
    "one": Row(about="GPT-2 124M, 1 prompt", shape=GPT2),
    "many": Row(about="GPT-2 124M, 64 prompts", shape=GPT2, prompts=64),
    "beams": Row(about="GPT-2 124M, 1 prompt, 4 beams", shape=GPT2, beams=4),
    "many-beams": Row(about="GPT-2 124M, 64 prompts, 4 beams", shape=GPT2, prompts=64, beams=4),
    "int8": Row(about="GPT-2 124M, 1 prompt, int8 weights", shape=GPT2, weights="int8"),
    "small": Row(about="4 x 256, 1 prompt", shape=SMALL),
}
USUAL = {"cuda": ("one", "many", "beams", "many-beams"), "cpu": ("one", "int8", "small")}


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    half = options.precision == "bf16"
    torch.set_float32_matmul_precision("highest")
    print(f"{machine(device)}, transformers {transformers.__version__}, {options.precision}")
    print(f"{options.tokens} new tokens of each text; prompts of 8 to 32 tokens")
    more = "  compiled/s   ratio" if options.compiled else ""
    print(f"row                                   Firth/s     peer/s   ratio  equal tokens{more}")
    ratios = []
    for name in options.rows:
        row = ROWS[name]
        peer, network = opened(row.shape, device)
        prompts = made(row)
        same = agreement(row, peer, network, prompts, CHECKED)
        if same < 1.0:
            raise SystemExit(f"The two sides do not write the same in fp32: {same:.1%} are equal.")
        if half:
            peer, network = peer.bfloat16(), network.bfloat16()
        if row.weights == "int8":
            network = to_int8(network)
        same = agreement(row, peer, network, prompts, options.tokens)
        works: dict[str, Callable[[], object]] = {
            "firth": partial(own, network, prompts, row.beams, options.tokens),
            "peer": partial(theirs, peer, prompts, row.beams, options.tokens),
        }
        if options.compiled:
            compiled = partial(theirs, peer, prompts, row.beams, options.tokens, compiled=True)
            works["compiled"] = compiled
        took = in_turns(works, device, warm=2 if options.compiled else 1, repeats=options.repeats)
        rates = {side: row.prompts * options.tokens / time for side, time in took.items()}
        ratios.append(rates["firth"] / rates["peer"])
        line = f"{row.about:35} {rates['firth']:10,.0f} {rates['peer']:10,.0f} {ratios[-1]:6.2f}x"
        line += f"  {same:12.1%}"
        if options.compiled:
            line += f"  {rates['compiled']:10,.0f} {rates['firth'] / rates['compiled']:6.2f}x"
        print(line, flush=True)
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def opened(shape: dict[str, int], device: torch.device) -> tuple[Any, Transformer]:
    """The peer's model, and the same as Firth reads it from the peer's files."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    peer = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in peer.parameters():  # else all scores are nearly the same
            weight.mul_(3.0 if weight.dim() == 2 else 1.0)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder))
    return peer.to(device), network.eval().to(device)


def made(row: Row) -> list[list[int]]:
    """Prompts of unequal lengths."""
    draws = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 33, (row.prompts,), generator=draws).tolist()
    words = row.shape["vocab_size"]
    return [torch.randint(1, words, (size,), generator=draws).tolist() for size in lengths]


def own(network: Transformer, prompts: list[list[int]], beams: int, most: int) -> list[list[int]]:
    """What Firth writes."""
    method = {"method": "beam", "beams": beams} if beams > 1 else {}
    settings = GenerationConfig(max_new_tokens=most, **method)  # type: ignore[arg-type]
    return [
        list(best.tokens) for best, *_ in generate(network, prompts, settings, eos_token_id=None)
    ]


def theirs(
    peer: Any, prompts: list[list[int]], beams: int, most: int, *, compiled: bool = False
) -> list[list[int]]:
    """What the peer writes; compiled: with a static cache, and its step through `torch.compile`."""
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    real = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    device = peer.device
    how: dict[str, Any] = {}
    if compiled:
        how = {"cache_implementation": "static", "compile_config": CompileConfig()}
        how["compile_config"]._compile_all_devices = True  # also on a CPU
    with torch.no_grad():
        found = peer.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(real, device=device),
            max_new_tokens=most,
            do_sample=False,
            num_beams=beams,
            **how,
        )
    written: list[list[int]] = found[:, longest:].tolist()
    return written


def agreement(
    row: Row, peer: Any, network: Transformer, prompts: list[list[int]], most: int
) -> float:
    """The share of tokens that both sides write alike."""
    given = peer, prompts, row.beams, most
    pairs = zip(own(network, *given[1:]), theirs(*given), strict=True)
    return statistics.fmean(
        float(a == b) for mine, other in pairs for a, b in zip(mine, other, strict=True)
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual)
    parser.add_argument("--rows", type=lambda text: text.split(","), help=",".join(ROWS))
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="bf16 on a GPU, else fp32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="measure the compiled peer, too")
    options = parser.parse_args()
    options.rows = options.rows or list(USUAL[options.device])
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    return options


if __name__ == "__main__":
    main()
