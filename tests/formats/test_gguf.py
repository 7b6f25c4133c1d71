"""A GGUF file: what it says is believed only where it can be true, and refused in a sentence.

That its models compute what they should, `tests/parity/test_gguf.py` shows.
"""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.formats.gguf_file import KINDS, GgufWeights, open_gguf
from firth.formats.gguf_model import ARCHITECTURES, read_gguf
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.formats.gguf_files import letters, write
from tests.formats.helpers import error_sentence, is_mapped, measure_memory

V, WIDTH, INNER = 128, 32, 64
VALUES: dict[str, Any] = {
    "llama.embedding_length": WIDTH,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": INNER,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    **letters(V),
}
SHAPES = {
    "token_embd.weight": (V, WIDTH),
    "output_norm.weight": (WIDTH,),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH // 2, WIDTH),
    "blk.0.attn_v.weight": (WIDTH // 2, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.ffn_gate.weight": (INNER, WIDTH),
    "blk.0.ffn_up.weight": (INNER, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, INNER),
}


def tensors(dtype: type = np.float32, kind: str = "F32") -> dict[str, Any]:
    random = np.random.default_rng(1)
    made = {name: random.normal(0, 0.1, shape) for name, shape in SHAPES.items()}
    return {
        name: (array.astype(dtype), kind) if array.ndim > 1 else (array.astype(np.float32), "F32")
        for name, array in made.items()
    }


def file(folder: Path, **more: Any) -> Path:
    """A small Llama, with other values (None: without)."""
    named = {name.replace("__", "."): value for name, value in more.items()}
    return write(folder / "small.gguf", "llama", VALUES | named, tensors())


def refusal(path: Path, kind: type[FirthError] = InputError) -> str:
    return error_sentence(firth.load, path, kind)


# --- what is read


def test_a_file_opens_and_writes(tmp_path: Path) -> None:
    model = firth.load(file(tmp_path))
    assert model.config.family == "llama"
    assert model.config.norm_eps == 1e-6  # single precision, as it was meant
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, 1)
    assert model.tokenizer is not None
    assert model.tokenizer.special_tokens == {"bos": "<|begin|>", "eos": "<|end|>"}
    assert isinstance(model.generate("the", max_new_tokens=3), str)


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    without = dict.fromkeys(name for name in VALUES if name.startswith("tokenizer"))
    model = firth.load(file(tmp_path, **without))
    assert model.tokenizer is None
    assert model.config.eos_token_id is None


def test_numbers_stay_in_the_file(tmp_path: Path) -> None:
    path = file(tmp_path)
    network, _ = read_gguf(path)
    before = path.read_bytes()
    assert is_mapped(path, network.tokens.weight)
    assert is_mapped(path, network.get_submodule("decoder.blocks.0.feed_forward.down").weight)
    with torch.no_grad():
        network.tokens.weight.zero_()
    assert path.read_bytes() == before


def test_a_file_of_one_type_keeps_it_and_others_become_single_precision(tmp_path: Path) -> None:
    halves = tensors(np.float16, "F16")
    path = write(tmp_path / "half.gguf", "llama", VALUES, halves)
    half, wide = (firth.load(path, dtype=dtype).network for dtype in ("auto", "float32"))
    mixed = halves | {"output.weight": (np.ones((V, WIDTH), "f4"), "F32")}
    path = write(tmp_path / "mixed.gguf", "llama", VALUES, mixed)
    several = firth.load(path, dtype="auto").network
    dtypes = [{p.dtype for p in network.parameters()} for network in (half, wide, several)]
    assert dtypes == [{torch.float16}, {torch.float32}, {torch.float32}]
    assert torch.equal(wide.tokens.weight.half(), half.tokens.weight)


def test_a_block_by_hand(tmp_path: Path) -> None:
    """Q8_0: signed bytes times a scale. Q4_0: halves of bytes less 8, first all the low ones."""
    scale = np.float16(0.5).tobytes()
    eight = np.frombuffer(scale + bytes(range(32)), np.uint8)[None]
    four = np.frombuffer(scale + bytes([0xF8] * 16), np.uint8)[None]
    path = write(tmp_path / "x.gguf", "llama", {}, {"a": (eight, "Q8_0"), "b": (four, "Q4_0")})
    weights = GgufWeights(open_gguf(path))
    assert weights["a"].tolist() == [[i / 2 for i in range(32)]]
    assert weights["b"].tolist() == [[0.0] * 16 + [3.5] * 16]


def test_words_that_are_tokens_stay_whole_in_llama_3(tmp_path: Path) -> None:
    values = {"tokenizer.ggml.merges": ["h e"]}  # none leads to "Ġthe"
    lone = ["Ġ", "t", "he"]
    for cut, expected in (("gpt-2", lone), ("llama-bpe", ["Ġthe"])):
        tokenizer = firth.load(file(tmp_path, **values, tokenizer__ggml__pre=cut)).tokenizer
        assert tokenizer is not None
        assert [piece.token for piece in tokenizer.pieces(" the")] == expected


@pytest.mark.parametrize(
    ("cut", "says", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("qwen2", None, False),
        ("qwen2", True, True),
    ],
)
def test_a_text_is_begun_where_the_file_says_so(
    tmp_path: Path, cut: str, says: bool | None, begins: bool
) -> None:
    values = dict(tokenizer__ggml__pre=cut, tokenizer__ggml__add_bos_token=says)
    model = firth.load(file(tmp_path, **values))
    assert model.tokenizer is not None
    assert (model.tokenizer.encode("the", specials=True)[0] == 0) == begins
    assert model.config.bos_token_id == (0 if begins else None)


LOAD = """
from gguf.quants import dequantize
from firth.formats.gguf_model import read_gguf

before = peak()
network, _ = read_gguf(Path(sys.argv[1]))
print(peak() - before, sum(p.numel() * p.element_size() for p in network.parameters()))
"""


@pytest.mark.nightly
def test_loading_takes_the_memory_of_the_weights_and_little_more(tmp_path: Path) -> None:
    width, inner, vocabulary = 1024, 4096, 16_000
    shapes = {
        name: tuple({V: vocabulary, WIDTH: width, INNER: inner, 16: width // 2}[n] for n in shape)
        for name, shape in SHAPES.items()
    }
    blocks = {
        name: (np.zeros((shape[0], shape[1] // 32 * 34), np.uint8), "Q8_0")
        if len(shape) > 1
        else (np.ones(shape, np.float32), "F32")
        for name, shape in shapes.items()
    }
    size = {"llama.embedding_length": width, "llama.feed_forward_length": inner}
    path = write(tmp_path / "large.gguf", "llama", VALUES | size, blocks)
    used, final = measure_memory(LOAD, path)
    assert final > 120e6
    assert used < 1.3 * final


# --- what cannot be read


def test_no_file_or_another_format(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    assert "is not a file" in refusal(tmp_path / "folder.gguf")
    with pytest.raises(InputError, match="is not there"):
        read_gguf(tmp_path / "nowhere.gguf")
    for content in (b"", b"gguf" * 9):
        (tmp_path / "x.gguf").write_bytes(content)
        assert "is not a GGUF file" in refusal(tmp_path / "x.gguf")


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    path = file(tmp_path)
    whole, data = path.read_bytes(), open_gguf(path).entries["token_embd.weight"].start
    for end in [4, 7, 23, 30, *range(100, data - 40, 997), data - 100]:
        path.write_bytes(whole[:end])
        assert " ends in the middle of its header" in refusal(path)
    for end in (data, data + 1000, len(whole) - 100):
        path.write_bytes(whole[:end])
        assert " is incomplete: " in (message := refusal(path))
        assert f"the file has only {end:,}" in message


def header(tensors: int, values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def value(kind: int, content: bytes, name: bytes = b"x") -> bytes:
    return text(name) + struct.pack("<I", kind) + content


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, start: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, start)


HUGE = 2**62
HOSTILE = {
    "version": (header(0, 0, version=9), "version 9; only versions 2 and 3"),
    "endian": (header(0, 0, version=3 << 24), "version 3 in big-endian order"),
    "tensors": (header(HUGE, 0), f"its header declares {HUGE:,} tensors"),
    "values": (header(0, HUGE), f"its header declares {HUGE:,} values"),
    "more-values": (header(0, 90_000, value(4, b"1234") * 1), "ends in the middle of its header"),
    "long-text": (header(0, 1, value(8, struct.pack("<Q", HUGE))), "ends in the middle"),
    "long-list": (header(0, 1, value(9, struct.pack("<IQ", 0, HUGE))), "ends in the middle"),
    "many-texts": (header(0, 1, value(9, struct.pack("<IQ", 8, HUGE))), "texts in one list"),
    "texts": (header(0, 1, value(9, struct.pack("<IQ", 8, 4_000_000))), "ends in the middle"),
    "list-of-lists": (header(0, 1, value(9, struct.pack("<IQ", 9, 3))), "the unknown type 9"),
    "twice": (header(0, 2, value(0, b"1") * 2), "'x' occurs twice"),
    "letters": (header(0, 1, value(8, text(b"\xff\xfe"))), "can't decode byte 0xff"),
    "alignment": (
        header(0, 1, value(4, struct.pack("<I", 24), b"general.alignment")),
        "an alignment of 24",
    ),
    "parts": (
        header(0, 1, value(2, struct.pack("<H", 3), b"split.count")),
        "is one of 3 parts of a model; join them first",
    ),
    "dimensions": (header(1, 0, tensor(b"t", (1,) * 9)), "'t' has 9 dimensions"),
    "no-dimensions": (header(1, 0, tensor(b"t", ())), "'t' has 0 dimensions"),
    "shape": (header(1, 0, tensor(b"t", (2**40, 2**40))), "'t' has the invalid shape"),
    "nothing": (header(1, 0, tensor(b"t", (0, 4))), "'t' has the invalid shape [4, 0]"),
    "half-a-block": (header(1, 0, tensor(b"t", (40,), 2)), "'t' has the invalid shape [40]"),
    "place": (header(1, 0, tensor(b"t", (4,), 0, 7)), "'t' has the invalid shape [4] or offset 7"),
    "large": (header(1, 0, tensor(b"t", (2**40,))), "is incomplete: t should end at byte"),
    "overlap": (
        header(2, 0, tensor(b"s", (64,)) + tensor(b"t", (64,), 0, 32)) + bytes(999),
        "'t' overlaps another tensor",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies(tmp_path: Path, name: str) -> None:
    content, said = HOSTILE[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    refusal(path)  # the first time, more is imported
    tracemalloc.start()
    try:
        assert said in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("number", "name"), [(35, "TQ2_0"), (999, "the unknown type 999")])
def test_an_unknown_quantisation(tmp_path: Path, number: int, name: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(header(1, 0, tensor(b"blk.0.attn_q.weight", (256,), number)))
    message = refusal(path)
    assert f"blk.0.attn_q.weight as {name}" in message
    assert all(kind.name in message for kind in KINDS.values())


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {}
    for kind, size in (("Q5_1", 24), ("Q8_0", 34)):
        blocks = tensors() | {"token_embd.weight": (np.zeros((V, size), np.uint8), kind)}
        paths[kind] = write(tmp_path / f"{kind}.gguf", "llama", VALUES, blocks)
    monkeypatch.setitem(sys.modules, "gguf", None)
    message = refusal(paths["Q5_1"], UsageError)
    assert "Q5_1" in message
    assert "pip install 'firth[gguf]'" in message
    for path in (file(tmp_path), paths["Q8_0"]):
        assert firth.load(path).config.num_layers == 1


def test_an_unknown_architecture(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "x.gguf", "mamba", VALUES, tensors()))
    assert "architecture 'mamba'" in message
    assert all(name in message for name in ARCHITECTURES)
    path = tmp_path / "x.gguf"
    path.write_bytes(header(0, 0))
    assert "no general.architecture" in refusal(path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(llama__block_count=None), "it lacks llama.block_count."),
        (dict(llama__block_count="two"), "llama.block_count is not a single number."),
        (dict(llama__attention__head_count=0), "ZeroDivisionError"),
        (dict(llama__attention__head_count=4.5), "num_heads of a model config is int, not 4.5"),
        (dict(llama__block_count=10**9), "layers must be between 1 and 10,000"),
        (dict(llama__attention__value_length=4), "value_length is 4, but the head size is 8"),
        (dict(llama__rope__dimension_count=4), "dimension_count is 4, but the head size is 8"),
        (dict(llama__expert_count=8), "is a mixture of experts"),
        (dict(llama__rope__scaling__type="longrope"), "'longrope'"),
        (dict(llama__rope__scaling__factor=-4.0), "linear"),
    ],
)
def test_a_value_that_cannot_be(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    assert said in refusal(file(tmp_path, **values))


def test_scaling_by_nothing_is_none(tmp_path: Path) -> None:
    for kind in ("none", "linear"):
        values = dict(llama__rope__scaling__type=kind, llama__rope__scaling__factor=1.0)
        assert firth.load(file(tmp_path, **values)).config.num_layers == 1


def test_frequencies_of_their_own(tmp_path: Path) -> None:
    for factor in (1.0, 8.0):
        more = {"rope_freqs.weight": (np.full(4, factor, np.float32), "F32")}
        path = write(tmp_path / f"{factor}.gguf", "llama", VALUES, tensors() | more)
        if factor == 1.0:
            assert firth.load(path).config.rope_theta == 10_000
        else:
            assert "rope_freqs.weight" in refusal(path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    whole, ones = tensors(), np.ones((WIDTH, WIDTH), np.float32)
    fewer = {name: found for name, found in whole.items() if "ffn" not in name}
    more = whole | {"blk.0.attn_q.bias": (ones[0], "F32")}
    other = whole | {"blk.0.attn_k.weight": (ones, "F32")}
    for weights, *facts in (
        (fewer, "lacks 4 weights", "blk.0.ffn_down.weight"),
        (more, "1 weights", "blk.0.attn_q.bias"),
        (other, "blk.0.attn_k.weight", "[32, 32]", "[16, 32]"),
    ):
        message = refusal(write(tmp_path / "x.gguf", "llama", VALUES, weights), MismatchError)
        assert all(fact in message for fact in facts), message
    del whole["token_embd.weight"]
    message = refusal(write(tmp_path / "x.gguf", "llama", VALUES, whole))
    assert "lacks token_embd.weight" in message


TOKENS = VALUES["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(model="bert"), "'bert'"),
        (dict(pre="martian"), "'martian'"),
        (dict(tokens=[1, 2]), "tokenizer.ggml.tokens is not a list of texts"),
        (dict(tokens=["a", "b", "a"]), "has the token 'a' 2 times"),
        (dict(tokens=["a" * 2000, "b"]), "has a token of 2,000 characters"),
        (dict(token_type=[1, 3]), f"token_type has 2 rows for {V} tokens"),
        (dict(merges=["h e", "Ġ nowhere"]), "`nowhere`"),
        (dict(merges=["h e", "he x y"]), "merges 'he x y', which is no pair"),
        (dict(bos_token_id=V), f"the bos token is number {V} of only {V} tokens"),
        (dict(eos_token_id="</s>"), "eos_token_id is not a number"),
        (dict(add_bos_token=1), "add_bos_token is not a yes or no"),
        (dict(model="llama", merges=None), "has neither scores nor merges"),
        (dict(tokens=[*TOKENS, "one more"], token_type=None), "vocab_size is 128"),
    ],
)
def test_a_tokenizer_that_cannot_be(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    named = {f"tokenizer__ggml__{name}": value for name, value in values.items()}
    kind = MismatchError if "vocab_size" in said else InputError
    assert said in refusal(file(tmp_path, **named), kind)
