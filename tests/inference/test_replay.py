"""Steps that are recorded once and replayed: on a GPU, and as if there were one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from firth.inference import choosing, writing
from firth.inference.generate import generate
from firth.inference.replay import PLAIN, Replayed
from firth.inference.settings import Generation
from firth.model import Model
from firth.models.cache import Cache
from tests.inference.conftest import MakeModel
from tests.models.small import KINDS, build

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [3, 4]] * 3
ROOM = [14, 1, 2, 3, 1, 14, 2, 14, 2, 1, 14, 9]
WAYS = [
    Generation(max_new_tokens=14),
    Generation(max_new_tokens=14, method="sample", n=2, seed=3, top_k=9),
    Generation(max_new_tokens=14, method="sample", repetition_penalty=1.2),
    Generation(max_new_tokens=14, method="beam", beams=3, n=2, no_repeat_ngram=3),
]
SOME = ["gpt2", "llama", "t5", "bart"]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Texts are looked at seldom, places in strides, and steps are replayed; how often."""
    monkeypatch.setitem(choosing.LOOK, "cpu", 8)
    monkeypatch.setitem(writing.STRIDE, "cpu", 5)
    replays: list[int] = []

    def begin(self: Replayed, device: torch.device) -> None:
        self.records, self._shape, self._done, self._graph = True, None, 0, None

    def record(self: Replayed, work: Callable[[], object]) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: (replays.append(1), work()))

    monkeypatch.setattr(Replayed, "__init__", begin)
    monkeypatch.setattr(Replayed, "_record", record)
    return replays


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("settings", WAYS, ids=lambda way: f"{way.method}-{way.remembers}")
def test_replayed_as_plain(kind: str, settings: Generation, request: pytest.FixtureRequest) -> None:
    network = build(KINDS[kind], dtype=torch.float64)
    plain = generate(network, PROMPTS, settings, end=2, room=ROOM)
    replays = request.getfixturevalue("as_on_a_gpu")
    replayed = generate(network, PROMPTS, settings, end=2, room=ROOM)
    assert len(replays) >= 3
    for one, other in zip(plain, replayed, strict=True):
        assert [text.tokens for text in one] == [text.tokens for text in other]
        assert [text.ended for text in one] == [text.ended for text in other]
        assert [text.logprob for text in one] == pytest.approx([text.logprob for text in other])


def test_a_stream_ends_where_its_text_ends(make_model: MakeModel, as_on_a_gpu: list[int]) -> None:
    model: Model = make_model("gpt2", "bpe", begin_id=None, end_id=0, tied=True)
    seen = set()
    for seed in range(30):
        how = {"temperature": 1.5, "seed": seed, "max_new_tokens": 12}
        *pieces, last = model.teller(**how).stream("the old dog")
        assert "".join(pieces) == last.completions[0].text
        seen.add(last.completions[0].ended)
    assert seen == {"end", "length"}


@pytest.mark.parametrize("settings", WAYS[:1] + WAYS[3:], ids=lambda way: way.method)
def test_what_was_kept_is_given_back_at_once(
    settings: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when Python finds that nobody needs it: a file of prompts would fill the memory."""
    made: list[weakref.ref[Cache]] = []
    plain = Cache.empty.__func__  # type: ignore[attr-defined]

    def empty(cls: type[Cache], *arguments: object, **options: object) -> Cache:
        cache: Cache = plain(cls, *arguments, **options)
        made.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(Cache, "empty", classmethod(empty))
    network = build(KINDS["gpt2"])
    gc.collect()
    gc.disable()
    try:
        generate(network, PROMPTS, settings, end=2, room=ROOM)
        assert len(made) == 1
        assert made[0]() is None
    finally:
        gc.enable()


def test_work_that_waits_is_done_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a capture fails: the work is done each time, and recording is not tried again."""
    done: list[int] = []
    work = Replayed(torch.device("cpu"))
    work.records = True
    tries: list[int] = []

    def record(self: Replayed, given: Callable[[], object]) -> None:
        tries.append(1)
        self.records = False

    monkeypatch.setattr(Replayed, "_record", record)
    for _ in range(PLAIN + 3):
        work(lambda: done.append(1), "shape")
    assert len(done) == PLAIN + 3
    assert len(tries) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")
@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("settings", WAYS, ids=lambda way: f"{way.method}-{way.remembers}")
def test_a_gpu_writes_what_a_cpu_writes(
    kind: str, settings: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(writing.STRIDE, "cuda", 8)  # several recordings of one text
    network = build(KINDS[kind], dtype=torch.float64)
    here = generate(network, PROMPTS, settings, end=2, room=ROOM)
    there = generate(network.cuda(), PROMPTS, settings, end=2, room=ROOM)
    for one, other in zip(here, there, strict=True):
        assert [text.tokens for text in one] == [text.tokens for text in other]
