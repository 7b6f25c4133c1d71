"""CUDA graph capture of decoding steps: on a GPU, and simulated on the CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from firth.inference.generation import decode_state as writing
from firth.inference.generation import sampling as choosing
from firth.inference.generation.cuda_graph import WARMUP_STEPS, GraphedStep
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.model import Model
from firth.models.kv_cache import KVCache
from tests.inference.conftest import MakeModel
from tests.models.small import KINDS, build

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [3, 4]] * 3
ROOM = [14, 1, 2, 3, 1, 14, 2, 14, 2, 1, 14, 9]
WAYS = [
    GenerationConfig(max_new_tokens=14),
    GenerationConfig(max_new_tokens=14, method="sample", n=2, seed=3, top_k=9),
    GenerationConfig(max_new_tokens=14, method="sample", repetition_penalty=1.2),
    GenerationConfig(max_new_tokens=14, method="beam", beams=3, n=2, no_repeat_ngram=3),
]
SOME = ["gpt2", "llama", "t5", "bart"]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a GPU's check interval, cache stride and graph replay; return the replays."""
    monkeypatch.setitem(choosing.CHECK_INTERVAL, "cpu", 8)
    monkeypatch.setitem(writing.CACHE_STRIDE, "cpu", 5)
    replays: list[int] = []

    def begin(self: GraphedStep, device: torch.device) -> None:
        self.uses_graphs, self._shape, self._runs, self._graph = True, None, 0, None

    def capture(self: GraphedStep, step: Callable[[], object]) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: (replays.append(1), step()))

    monkeypatch.setattr(GraphedStep, "__init__", begin)
    monkeypatch.setattr(GraphedStep, "_capture", capture)
    return replays


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("settings", WAYS, ids=lambda way: f"{way.method}-{way.needs_history}")
def test_replayed_steps_equal_plain_steps(
    kind: str, settings: GenerationConfig, request: pytest.FixtureRequest
) -> None:
    network = build(KINDS[kind], dtype=torch.float64)
    plain = generate(network, PROMPTS, settings, eos_token_id=2, limits=ROOM)
    replays = request.getfixturevalue("as_on_a_gpu")
    replayed = generate(network, PROMPTS, settings, eos_token_id=2, limits=ROOM)
    assert len(replays) >= 3
    for one, other in zip(plain, replayed, strict=True):
        assert [text.tokens for text in one] == [text.tokens for text in other]
        assert [text.finish_reason for text in one] == [text.finish_reason for text in other]
        assert [text.logprob for text in one] == pytest.approx([text.logprob for text in other])


def test_a_stream_ends_where_its_text_ends(make_model: MakeModel, as_on_a_gpu: list[int]) -> None:
    model: Model = make_model("gpt2", "bpe", bos_token_id=None, eos_token_id=0, tie_embeddings=True)
    seen = set()
    for seed in range(30):
        how = {"temperature": 1.5, "seed": seed, "max_new_tokens": 12}
        *pieces, last = model.text_generator(**how).stream("the old dog")
        assert "".join(pieces) == last.completions[0].text
        seen.add(last.completions[0].finish_reason)
    assert seen == {"end", "length"}


@pytest.mark.parametrize("settings", WAYS[:1] + WAYS[3:], ids=lambda way: way.method)
def test_the_cache_is_freed_at_once(
    settings: GenerationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By reference counting, not by garbage collection: a file of prompts would fill the memory."""
    made: list[weakref.ref[KVCache]] = []
    plain = KVCache.empty.__func__  # type: ignore[attr-defined]

    def empty(cls: type[KVCache], *arguments: object, **options: object) -> KVCache:
        cache: KVCache = plain(cls, *arguments, **options)
        made.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(KVCache, "empty", classmethod(empty))
    network = build(KINDS["gpt2"])
    gc.collect()
    gc.disable()
    try:
        generate(network, PROMPTS, settings, eos_token_id=2, limits=ROOM)
        assert len(made) == 1
        assert made[0]() is None
    finally:
        gc.enable()


def test_steps_that_cannot_be_captured_run_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a capture fails, it is not tried again."""
    done: list[int] = []
    step = GraphedStep(torch.device("cpu"))
    step.uses_graphs = True
    tries: list[int] = []

    def capture(self: GraphedStep, step: Callable[[], object]) -> None:
        tries.append(1)
        self.uses_graphs = False

    monkeypatch.setattr(GraphedStep, "_capture", capture)
    for _ in range(WARMUP_STEPS + 3):
        step(lambda: done.append(1), "shape")
    assert len(done) == WARMUP_STEPS + 3
    assert len(tries) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")
@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("settings", WAYS, ids=lambda way: f"{way.method}-{way.needs_history}")
def test_gpu_equals_cpu(
    kind: str, settings: GenerationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(writing.CACHE_STRIDE, "cuda", 8)  # several recordings of one text
    network = build(KINDS[kind], dtype=torch.float64)
    here = generate(network, PROMPTS, settings, eos_token_id=2, limits=ROOM)
    there = generate(network.cuda(), PROMPTS, settings, eos_token_id=2, limits=ROOM)
    for one, other in zip(here, there, strict=True):
        assert [text.tokens for text in one] == [text.tokens for text in other]
