"""Run a baseline server for `bench/serve.py`: it processes one request at a time, without batching.

    python bench/serve_peers.py embeddings DIRECTORY PORT     sentence-transformers
    python bench/serve_peers.py completions DIRECTORY PORT    transformers.generate

Each is the simplest server: a Starlette route that calls the library in a thread. A lock serializes
the calls, because each uses all cores.
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

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def load_embedder(path: str) -> Handler:
    """Load a model with sentence-transformers; return the handler of `/v1/embeddings`."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(path, device="cpu")

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        """Return the embedding of the input."""
        vectors = model.encode([request["input"]], show_progress_bar=False)
        return {"data": [{"index": 0, "embedding": vectors[0].tolist()}]}

    return handle


def load_generator(path: str) -> Handler:
    """Load a model with transformers; return the handler of `/v1/completions` (greedy)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def handle(request: dict[str, Any]) -> dict[str, Any]:
        """Return the completion of the prompt."""
        inputs = tokenizer(request["prompt"], return_tensors="pt")
        options = dict(max_new_tokens=request["max_tokens"], do_sample=False, pad_token_id=0)
        token_ids = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
        text = tokenizer.decode(token_ids, skip_special_tokens=True)
        return {"choices": [{"text": text}], "usage": {"completion_tokens": len(token_ids)}}

    return handle


def main() -> None:
    """Serve the model given on the command line."""
    kind, path, port = sys.argv[1:]
    handle, lock = (
        {"embeddings": load_embedder, "completions": load_generator}[kind](path),
        threading.Lock(),
    )

    def handle_locked(request: dict[str, Any]) -> dict[str, Any]:
        """Handle a request when the previous one is finished."""
        with lock:
            return handle(request)

    async def route(request: Request) -> JSONResponse:
        """Parse the request, handle it in a thread and return the response."""
        return JSONResponse(await run_in_threadpool(handle_locked, await request.json()))

    app = Starlette(routes=[Route(f"/v1/{kind}", route, methods=["POST"])])
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
