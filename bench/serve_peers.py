"""The servers that `bench/serve.py` compares with: one request at a time, no batching.

    python bench/serve_peers.py embeddings DIRECTORY PORT     sentence-transformers
    python bench/serve_peers.py completions DIRECTORY PORT    transformers.generate

Each is what one writes first: a route that calls the library in a thread. Calls take turns, as each
of them uses all cores.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def embeddings(path: str) -> Answer:
    """Answer `/v1/embeddings`."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(path, device="cpu")

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        vectors = model.encode([asked["input"]], show_progress_bar=False)
        return {"data": [{"index": 0, "embedding": vectors[0].tolist()}]}

    return answer


def completions(path: str) -> Answer:
    """Answer `/v1/completions`, greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        given = tokenizer(asked["prompt"], return_tensors="pt")
        options = dict(max_new_tokens=asked["max_tokens"], do_sample=False, pad_token_id=0)
        new = model.generate(**given, **options)[0, given["input_ids"].shape[1] :]
        text = tokenizer.decode(new, skip_special_tokens=True)
        return {"choices": [{"text": text}], "usage": {"completion_tokens": len(new)}}

    return answer


def main() -> None:
    kind, path, port = sys.argv[1:]
    answer, turn = (
        {"embeddings": embeddings, "completions": completions}[kind](path),
        threading.Lock(),
    )

    def work(asked: dict[str, Any]) -> dict[str, Any]:
        with turn:
            return answer(asked)

    async def route(request: Request) -> JSONResponse:
        return JSONResponse(await run_in_threadpool(work, await request.json()))

    app = Starlette(routes=[Route(f"/v1/{kind}", route, methods=["POST"])])
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
