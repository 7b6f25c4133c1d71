"""A step in C gives what the network gives."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from firth.inference.generate import generate
from firth.inference.settings import Generation
from firth.inference.writing import Writer
from firth.models.cache import Cache
from firth.models.config import ModelConfig
from firth.models.int8 import to_int8
from firth.models.transformer import Transformer
from firth.native import decoder, library
from firth.native.decoder import TEXTS, can_step
from tests.models.small import KINDS, LLAMA, PRE, ROTARY, build, small


def compiles() -> bool:
    """Whether there is a compiler that knows OpenMP; what step.c says is not asked here."""
    compiler = library.compiler()
    if compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "threads.c"
        source.write_text("#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n")
        command = [compiler, *library.FLAGS, "-c", str(source), "-o", f"{folder}/threads.o"]
        return subprocess.run(command, capture_output=True).returncode == 0


needs_compiler = pytest.mark.skipif(not compiles(), reason="There is no C compiler with OpenMP.")
PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30]]
MORE: dict[str, ModelConfig] = {
    "post": small("decoder", norm_place="post", activation="relu", head_bias="trained"),
    "both": small(
        "decoder", **{**LLAMA, **ROTARY, "norm_place": "both", "activation": "gelu-tanh"}
    ),
    "gemma": small(
        "decoder",
        **{**LLAMA, **ROTARY, "norm": "rms-plus-one"},
        embedding_scale=True,
        head_width=8,
        head_scale=True,
    ),
    "shared": small("decoder", **PRE, shared=True, positions="none", qkv_bias=False, gated=True),
    "local": small("decoder", **LLAMA, **ROTARY, window=2, windowed=(1,), local_theta=50.0),
    "transformed": small("decoder", **LLAMA, **ROTARY, head_transform=True, head_activation="gelu"),
    "deeper": small("decoder", **PRE, decoder_layers=3),
    "odd": small("decoder", **PRE, vocabulary=37, inner=23, position_offset=2, context=40),
}
KNOWN = {name: KINDS[name] for name in ("gpt2", "llama", "windowed", "wide-heads")} | MORE


def written(network: Transformer, monkeypatch: pytest.MonkeyPatch, native: bool) -> Any:
    """Tokens and their likelihoods, of several methods."""
    monkeypatch.setenv(library.OFF, "1" if native else "0")
    ways = (
        Generation(max_new_tokens=20),
        Generation(max_new_tokens=20, method="beam", beams=2),
        Generation(max_new_tokens=20, method="sample", n=2, seed=4),
    )
    found = [generate(network, PROMPTS, way, end=2) for way in ways]
    return [[(text.tokens, text.logprob) for text in texts] for some in found for texts in some]


@needs_compiler
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("kind", KNOWN)
def test_it_writes_what_torch_writes(
    kind: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(KNOWN[kind])
    network = to_int8(network) if int8 else network.eval()
    right = written(network, monkeypatch, native=False)
    steps: list[int] = []
    plain = decoder.Native.step

    def counted(self: decoder.Native, *given: Any) -> None:
        steps.append(1)
        plain(self, *given)

    monkeypatch.setattr(decoder.Native, "step", counted)
    said = written(network, monkeypatch, native=True)
    assert len(steps) >= 20
    for one, two in zip(right, said, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in two]
        loose = 1e-2 if int8 else 1e-4  # in C, what int8 weights are multiplied with is not rounded
        assert [p for _, p in one] == pytest.approx([p for _, p in two], abs=loose)


@needs_compiler
@pytest.mark.parametrize("seed", range(6))
def test_texts_end_where_torch_ends_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an end token that comes often, little room for some, and more than eight texts."""
    torch.manual_seed(seed)
    network = build(MORE["odd"]).eval()
    with torch.no_grad():
        network.tokens.weight.normal_(0, 0.6)
    prompts = [torch.randint(3, 37, (n,)).tolist() for n in (1, 4, 2, 7, 3, 3, 5, 2, 6, 1)]
    room = [1, 25, 2, 25, 25, 9, 3, 20, 25, 17]
    found, ended = [], set()
    for native in ("0", "1"):
        monkeypatch.setenv(library.OFF, native)
        for end in range(12):
            some = generate(network, prompts, Generation(max_new_tokens=25), end=end, room=room)
            found.append([(text.tokens, text.ended) for [text] in some])
            ended |= {text.ended for [text] in some}
    assert found[:12] == found[12:]
    assert ended == {"end", "length"}


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kind", ["llama", "post", "shared"])
def test_threads_make_no_difference(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(KNOWN[kind]).eval()
    before = torch.get_num_threads()
    monkeypatch.setattr(decoder, "WORTH", 1)
    right = written(network, monkeypatch, native=False)
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            said = written(network, monkeypatch, native=True)
            assert [[t for t, _ in one] for one in said] == [[t for t, _ in one] for one in right]
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_no_thread_writes_what_another_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = small("decoder", **LLAMA, **ROTARY, head_transform=True, head_activation="gelu")
    network = build(replace(wide, width=256, inner=64, vocabulary=64)).eval()
    monkeypatch.setattr(decoder, "WORTH", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        writer = Writer(network, [[3]] * TEXTS, Generation(max_new_tokens=8), [8] * TEXTS)
        assert writer._native is not None
        cache, seen = writer.cache, []
        start = cache.lengths.clone()
        for _ in range(300):
            cache.lengths.copy_(start)
            writer._native.step(torch.arange(TEXTS), cache, writer.logits)
            seen.append(writer.logits.clone())
        assert all(torch.equal(scores, seen[0]) for scores in seen)
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_not_a_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(KNOWN["gpt2"]).eval()
    last: Any = network.stack.blocks[1]
    with torch.no_grad():
        last.feed_forward.down.weight[3, 4] = float("nan")
    scores = Writer(network, [[3]], Generation(max_new_tokens=3), [3])
    scores.write(torch.tensor([4]), torch.tensor([False]))
    assert scores._native is not None
    assert scores.logits.isnan().any()


# Of all that a configuration says, what C computes, and what makes no difference to writing.
COMPUTED = """architecture vocabulary width layers decoder_layers heads kv_heads head_width
    inner context positions position_offset theta local_theta embedding_norm embedding_scale norm
    norm_place norm_bias norm_eps first_norm activation gated bias qkv_bias qk_norm
    attention_scale window windowed shared tied head_transform transform_bias head_activation
    head_bias head_scale"""
LEFT_TO_TORCH = """reader relative buckets distance segments embedding_width trigrams
    bottleneck feed_forwards output_width"""
INDIFFERENT = """label_head labels labelling pooling label_layers label_activation
    label_norm label_bias dropout attention_dropout initialisation spread padding_id begin_id
    end_id start_id family"""


def test_all_of_a_configuration_is_known_to_c_or_left_to_torch() -> None:
    """A new field belongs into one of these lists, and into `step.c` or `can_step`."""
    known = " ".join((COMPUTED, LEFT_TO_TORCH, INDIFFERENT)).split()
    assert sorted(known) == sorted(field.name for field in fields(ModelConfig))


def test_what_it_does_not_know_is_left_to_torch() -> None:
    gpt2 = build(KINDS["gpt2"]).eval()
    assert can_step(gpt2, 1, 32)
    assert not can_step(gpt2, TEXTS + 1, 32)
    assert not can_step(gpt2, 1, 33)  # it has so many learned places
    assert not can_step(gpt2.train(), 1, 32)
    gpt2.eval()
    for kind in ("bert", "t5", "biased"):
        assert not can_step(build(KINDS[kind]).eval(), 1, 8)
    assert not can_step(build(KINDS["gpt2"], dtype=torch.float64).eval(), 1, 8)
    for more in ({"segments": 2}, {"embedding_width": 16}, {"trigrams": True}):
        assert not can_step(build(replace(KINDS["gpt2"], **more)).eval(), 1, 8)
    gpt2.stack.blocks[0].register_forward_hook(lambda *given: None)
    assert not can_step(gpt2, 1, 8)
    other = build(KINDS["gpt2"]).eval()
    first: Any = other.stack.blocks[0]
    first.attention.output = nn.Sequential(nn.Linear(16, 16))
    assert not can_step(other, 1, 8)
    with torch.no_grad():
        strided = build(KINDS["gpt2"]).eval()
        strided.tokens.weight.data = torch.randn(40, 32)[:, ::2]
    assert not can_step(strided, 1, 8)


@needs_compiler
def test_both_describe_the_same_structures() -> None:
    found = library.library()
    assert found is not None
    own = (decoder._Network, decoder._Layer, decoder._Step, decoder.Choice)
    sizes = (ctypes.c_int64 * len(own)).in_dll(found, "firth_sizes")
    assert list(sizes) == [ctypes.sizeof(kind) for kind in own]


@needs_compiler
def test_matrices_may_stand_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GPT-2's do when a file of transformers is opened: nothing is moved for it."""
    network = build(replace(KNOWN["llama"], inner=200)).eval()
    right = written(network, monkeypatch, native=False)
    for block in network.stack.blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = module.weight.data.t().contiguous().t()
    places = [weight.data_ptr() for weight in network.parameters()]
    said = written(network, monkeypatch, native=True)
    assert [[t for t, _ in one] for one in said] == [[t for t, _ in one] for one in right]
    assert places == [weight.data_ptr() for weight in network.parameters()]


@needs_compiler
def test_weights_may_be_replaced_on_the_way() -> None:
    network = build(KNOWN["gpt2"]).eval()
    writer = Writer(network, [[3]], Generation(max_new_tokens=9), [9])
    assert writer._native is not None
    network.double()
    for _ in range(4):
        writer.write(torch.tensor([4]), torch.tensor([False]))
    assert writer.logits.isfinite().all()


@needs_compiler
def test_several_threads_may_write_with_one_network() -> None:
    network = build(KNOWN["llama"]).eval()
    settings = Generation(max_new_tokens=12)
    with ThreadPoolExecutor(3) as threads:
        found = list(
            threads.map(lambda _: generate(network, PROMPTS, settings, end=None), range(30))
        )
    first = [text.tokens for [text] in found[0]]
    assert all([text.tokens for [text] in texts] == first for texts in found)


@pytest.mark.parametrize("compiler", [None, "/bin/false", "/nowhere/cc"])
def test_without_a_compiler_torch_does_it(
    compiler: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._library.cache_clear()
    try:
        network = build(KNOWN["gpt2"]).eval()
        assert decoder.native(network, Cache.empty(network.config, 1, 8)) is None
        assert generate(network, PROMPTS, Generation(max_new_tokens=4), end=None)
    finally:
        library._library.cache_clear()


@pytest.mark.parametrize("trouble", ["no home", "a folder of others"])
def test_where_nothing_can_be_kept_torch_does_it(
    trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if trouble == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", homeless)
    else:
        (tmp_path / "firth").mkdir()
        (tmp_path / "firth").chmod(0o777)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._library.cache_clear()
    try:
        assert library.library() is None
    finally:
        library._library.cache_clear()


@needs_compiler
def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._library.cache_clear()
    try:
        assert library.library() is not None
        [made] = (tmp_path / "firth").iterdir()
        library._library.cache_clear()
        when = made.stat().st_mtime_ns
        assert library.library() is not None
        assert [*(tmp_path / "firth").iterdir()] == [made]
        assert made.stat().st_mtime_ns == when
    finally:
        library._library.cache_clear()
