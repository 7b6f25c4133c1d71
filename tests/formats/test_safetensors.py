"""Weights in files: what goes in comes out, and no file can do harm."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import firth
from firth import Model
from firth.formats.safetensors import DTYPES, open_weights, write_weights
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.files import embed_checksum
from tests.formats.helpers import error_sentence, measure_memory


def every_kind() -> dict[str, Tensor]:
    """A tensor of each type, and some of unusual shapes."""
    draw = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randint(0, 2 if name == "BOOL" else 100, (3, 5), generator=draw).to(dtype)
        for name, dtype in DTYPES.items()
    }
    tensors |= {"0-d": torch.tensor(1.5), "empty": torch.empty(0, 4), "ƙofa": torch.zeros(1, 1, 1)}
    return tensors


def same(a: Any, b: Any) -> bool:
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def refusal(path: Path) -> str:
    message = error_sentence(partial(open_weights, verify=True), path)
    assert message.count(". ") == 0
    return message


def flips(whole: bytes) -> Iterator[bytes]:
    """The data with each of its bits changed."""
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        yield bytes(data)


def test_what_is_written_is_read_here_and_elsewhere(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", every_kind()
    total = write_weights(path, tensors)
    weights = open_weights(path)
    assert same(weights, tensors)
    assert same(safetensors.torch.load_file(path), tensors)
    for name, tensor in tensors.items():
        assert weights.shape(name) == tuple(tensor.shape)
        assert weights.dtype(name) == tensor.dtype
    sizes = [weights[name].element_size() for name in weights]
    assert sizes == sorted(sizes, reverse=True)
    assert "other" not in weights
    assert len(weights) == len(tensors)
    assert weights.metadata["format"] == "pt"
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    assert start % 8 == 0
    assert total == weights.checksum == f"{zlib.crc32(raw[start:]):08x}"
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_of_others_and_empty_ones_are_read(tmp_path: Path) -> None:
    path, tensors = tmp_path / "model.safetensors", every_kind()
    safetensors.torch.save_file(tensors, path)
    assert same(open_weights(path), tensors)
    assert same(open_weights(tmp_path), tensors)
    assert open_weights(path).metadata == {}
    write_weights(path, {})
    assert dict(open_weights(path)) == {}


def test_tensors_in_any_layout_are_written(tmp_path: Path) -> None:
    square = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "turned": square.T,
        "strided": square[:, ::2],
        "parameter": torch.nn.Parameter(square),
        "expanded": torch.ones(1).expand(5),
        "shared": square,
    }
    write_weights(tmp_path / "a.safetensors", tensors)
    assert same(open_weights(tmp_path / "a.safetensors"), tensors)


def test_what_safetensors_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot hold 'x', a tensor of torch\.complex64"):
        write_weights(tmp_path / "a", {"x": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(UsageError, match="cannot hold '__metadata__'"):
        write_weights(tmp_path / "a", {"__metadata__": torch.zeros(1)})
    with pytest.raises(OSError, match="No such file"):
        write_weights(tmp_path / "nowhere/a", {})
    assert not list(tmp_path.iterdir())


def test_writing_into_a_tensor_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_weights(path, {"a": torch.ones(5000), "b": torch.ones(5000)})
    before = path.read_bytes()
    weights = open_weights(path)
    changed = weights["a"]
    changed.fill_(7)
    assert torch.equal(weights["a"], changed)  # a view, not a copy
    fresh = torch.empty(5000)
    weights.copy_into("a", fresh)
    assert fresh.eq(1).all()  # what the file holds
    assert changed.eq(7).all()  # giving pages back has not undone the change
    assert path.read_bytes() == before
    del weights
    assert changed.eq(7).all()  # the tensor keeps its pages


def test_neighbours_of_one_type_are_viewed_as_one(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2, 3), "b": 2 * torch.ones(4, 3), "c": torch.zeros(1, 3).half()}
    write_weights(tmp_path / "w", tensors)
    weights = open_weights(tmp_path / "w")
    both = weights.joined(["a", "b"])
    assert both is not None
    assert torch.equal(both, torch.cat([tensors["a"], tensors["b"]]))
    both.fill_(7)
    assert weights["b"].eq(7).all()  # a view, not a copy
    assert all(weights.joined(list(names)) is None for names in ("ba", "bc", "aa"))
    shards = {f"model-0000{i}-of-00002.safetensors": name for i, name in enumerate("ab", 1)}
    for file, name in shards.items():
        write_weights(tmp_path / file, {name: tensors[name]})
    homes = {"weight_map": {name: file for file, name in shards.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(homes))
    assert open_weights(tmp_path).joined(["a", "b"]) is None


def test_copies_change_type_fill_views_and_need_the_shape(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", every_kind()
    write_weights(path, tensors)
    weights = open_weights(path)
    for name, tensor in tensors.items():
        destination = torch.full(tensor.shape, 3, dtype=torch.float64)
        weights.copy_into(name, destination)
        assert torch.equal(destination, tensor.double())
    fused = torch.nn.Parameter(torch.zeros(5, 9))
    weights.copy_into("BF16", fused.T[3:6])
    assert torch.equal(fused[:, 3:6], tensors["BF16"].float().T)
    assert not fused[:, :3].any()
    with pytest.raises(MismatchError, match=r"F32.* 3 x 5 .* 5 x 3 "):
        weights.copy_into("F32", torch.zeros(5, 3))
    with pytest.raises(KeyError):
        weights.copy_into("missing", torch.zeros(5, 3))


def made(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A file with a header of one's own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def told(shape: list[Any], begin: Any, end: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_numbers_that_do_not_lie_at_multiples_of_their_size_are_copied(tmp_path: Path) -> None:
    numbers = torch.arange(6, dtype=torch.int64)
    header = json.dumps({"a": told([3], 0, 3, "U8"), "b": told([2, 3], 3, 51, "I64")}).encode()
    data = bytes(range(3)) + numbers.numpy().tobytes()
    (tmp_path / "a").write_bytes(made(header + b" " * (-len(header) % 8), data))
    weights = open_weights(tmp_path / "a")
    assert torch.equal(weights["b"], numbers.reshape(2, 3))
    copied = torch.zeros(2, 3)
    weights.copy_into("b", copied)
    assert torch.equal(copied, numbers.reshape(2, 3).float())


HOSTILE = {
    "nothing": b"",
    "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "a header of 2**63": made({}, length=2**63),
    "a header behind the end": made({}, length=11),
    "no JSON": made(b"{'a': 1}"),
    "not an object": made([]),
    "not UTF-8": made(b'{"\xff": 1}'),
    "deep lists": made(b'{"a":' + b"[" * 1_000_000),
    "overlap": made({"a": told([2], 0, 8), "b": told([1], 4, 8)}),
    "a gap": made({"a": told([1], 4, 8)}),
    "negative offset": made({"a": told([2], -8, 0)}),
    "end behind the file": made({"a": told([1000], 0, 4000)}),
    "bytes left over": made({"a": told([1], 0, 4)}),
    "shape too large": made({"a": told([3], 0, 8)}),
    "a shape that overflows to fit": made({"a": told([2**63, 2, 2], 0, 0)}, b""),
    "a size torch cannot count": made({"a": told([2**63, 0], 0, 0)}, b""),
    "too many dimensions": made({"a": told([0] + [2**62] * 100_000, 0, 0)}, b""),
    "negative shape": made({"a": told([-1, -2], 0, 8)}),
    "fractional shape": made({"a": told([2.0], 0, 8)}),
    "unknown type": made({"a": told([2], 0, 8, dtype="F33")}),
    "metadata of numbers": made({"__metadata__": {"a": 1}, "a": told([2], 0, 8)}),
    "a name twice": made(b'{"a":%s,"a":%s}' % (2 * (json.dumps(told([2], 0, 8)).encode(),))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(HOSTILE[kind])
    assert "incomplete or damaged; copy or download it again" in refusal(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for write in (write_weights, lambda p, tensors: safetensors.torch.save_file(tensors, p)):
        write(path, every_kind())
        whole = path.read_bytes()
        for length in range(0, len(whole), 3):
            path.write_bytes(whole[:length])
            assert "incomplete or damaged" in refusal(path)
        path.write_bytes(whole + b"\0")
        assert "incomplete or damaged" in refusal(path)


@pytest.mark.nightly
def test_every_single_bit_of_a_file_of_firth_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"a.weight": torch.ones(2, 2), "a.bias": torch.zeros(3, dtype=torch.bfloat16)}
    write_weights(path, tensors)
    whole = path.read_bytes()
    messages = set()
    for data in flips(whole):
        path.write_bytes(data)
        messages.add(refusal(path))
    assert len(messages) == 2
    assert any("does not match its own checksum: at least one bit" in text for text in messages)
    path.write_bytes(whole)
    assert same(open_weights(path, verify=True), tensors)


def test_checksums_of_earlier_versions_are_compared_too(tmp_path: Path) -> None:
    path, values = tmp_path / "a.safetensors", torch.arange(6.0).numpy().tobytes()
    entry = {"dtype": "F32", "shape": [6], "data_offsets": [0, len(values)]}
    sums = {"sha256_header": "0" * 64, "sha256": hashlib.sha256(values).hexdigest()}
    header = json.dumps({"__metadata__": sums, "a": entry}).encode()
    header = embed_checksum(header + b" " * (-len(header) % 8))
    path.write_bytes(len(header).to_bytes(8, "little") + header + values)
    assert open_weights(path, verify=True)["a"].tolist() == [0, 1, 2, 3, 4, 5]
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert "at least one bit has changed" in refusal(path)


def test_weights_are_compared_with_their_checksum_on_request(tmp_path: Path) -> None:
    Model(Transformer(preset("bert-tiny").config, ["language"]), None).save(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert firth.load(tmp_path / "model").config.num_layers == 2
    with pytest.raises(InputError, match="does not match its own checksum"):
        firth.load(tmp_path / "model", verify=True)
    with pytest.raises(InputError, match="does not match its own checksum"):
        firth.export(tmp_path / "model", tmp_path / "out", verify=True)
    header = bytearray(whole)
    header[header.index(b"encoder")] ^= 1
    for data in (header, whole[:-1]):
        path.write_bytes(data)
        with pytest.raises(InputError, match="again"):
            firth.load(tmp_path / "model")


def test_a_changed_bit_in_the_file_of_another_gives_sane_tensors_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2, 2), "b": torch.ones(3).half()}, path)
    opened = 0
    for data in flips(path.read_bytes()):
        path.write_bytes(data)
        try:
            weights = open_weights(path)
        except InputError:
            continue
        opened += 1
        assert sum(tensor.nbytes for tensor in weights.values()) == 22
    assert opened


def shard(folder: Path, homes: dict[str, Any]) -> Path:
    """Write a model's directory: `homes` says which file is to hold each tensor."""
    tensors = every_kind()
    for name in set(homes.values()):
        held = {key: tensors[key] for key, home in homes.items() if home == name}
        write_weights(folder / name, held)
    index = {"metadata": {"total_size": 1}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json"


def test_a_model_in_many_files(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    tensors = every_kind()
    homes = {name: (second, first)[i % 2] for i, name in enumerate(tensors)}
    index = shard(tmp_path, homes)
    weights = open_weights(tmp_path)
    assert same(weights, tensors)
    assert [homes[name] for name in weights] == sorted(homes.values())
    assert weights.metadata == open_weights(tmp_path / first).metadata
    index.write_text(json.dumps({"weight_map": {**homes, "more": first}}))
    assert f"says that {first} holds 'more', but it does not" in refusal(tmp_path)
    index.write_text(json.dumps({"weight_map": homes}))
    (tmp_path / second).write_bytes((tmp_path / second).read_bytes()[:-1])
    assert f"{second} cannot be read as safetensors" in refusal(tmp_path)
    (tmp_path / second).unlink()
    assert f"{second} is not there" in refusal(tmp_path)


def test_a_shard_outside_the_directory_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for place in (tmp_path, model):
        write_weights(place / "a.safetensors", {"a": torch.zeros(1), "b": torch.zeros(1)})
    outside = ["../a.safetensors", str(tmp_path / "a.safetensors"), "b/a.safetensors", "", "a.bin"]
    outside += ["a\0.safetensors", "a" * 10_000 + ".safetensors", "\ud800.safetensors"]
    outside += ["a\n.safetensors", "a.safetensors\n", "..\\a.safetensors"]
    for name in outside:
        index = {"weight_map": {"a": "a.safetensors", "b": name}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "which is not a safetensors file beside it" in refusal(model)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    damaged = [b"", b"[]", b"{}", b'{"weight_map": 1}', b'{"weight_map": {"a": 1}}', b"\xff"]
    damaged += [b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', b"[" * 10**6]
    for text in damaged:
        (tmp_path / "model.safetensors.index.json").write_bytes(text)
        assert "is not an index of weights: it is incomplete or damaged" in refusal(tmp_path)


def test_what_is_missing_or_not_supported_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "neither model.safetensors nor model.safetensors.index.json" in message
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    assert "only as pytorch_model.bin, a legacy pickle" in refusal(tmp_path)
    path = tmp_path / "a.safetensors"
    assert "is not there" in refusal(path)
    safetensors.torch.save_file({"a": torch.zeros(2, dtype=torch.float8_e4m3fn)}, path)
    assert "F8_E4M3" in refusal(path)


LOADING = """
from firth.formats.safetensors import open_weights

open_weights(Path(sys.argv[2]))  # the first file costs what the library itself needs
before = peak()
weights = open_weights(Path(sys.argv[1]))
model = {name: torch.empty(weights.shape(name)) for name in weights}
for name in weights:
    weights.copy_into(name, model[name])
assert all(tensor[-1].eq(3).all() for tensor in model.values())
print((peak() - before) / sum(tensor.nbytes for tensor in model.values()))
"""


@pytest.mark.nightly
def test_loading_takes_the_memory_of_the_weights_once(tmp_path: Path) -> None:
    tensors = {"embedding": torch.full((20_000, 1000), 3.0)}
    tensors |= {f"layer.{i}": torch.full((250, 1000), 3.0) for i in range(40)}  # 120 MB in all
    write_weights(tmp_path / "large", tensors)
    write_weights(tmp_path / "small", {"a": torch.ones(1)})
    [ratio] = measure_memory(LOADING, tmp_path / "large", tmp_path / "small")
    (tmp_path / "large").unlink()
    assert 0.9 < ratio < 1.3


def test_random_files_never_do_worse_than_be_refused(tmp_path: Path) -> None:
    draw, path = random.Random(0), tmp_path / "a.safetensors"
    write_weights(path, every_kind())
    whole = path.read_bytes()
    damage: list[Callable[[], bytes]] = [
        lambda: draw.randbytes(draw.randint(0, 2000)),
        lambda: whole[: draw.randrange(len(whole))] + draw.randbytes(draw.randint(0, 2000)),
        lambda: made(draw.randbytes(draw.randint(0, 100))),
        lambda: whole[(cut := draw.randrange(1, len(whole))) :] + whole[:cut],
    ]
    for _ in range(300):
        path.write_bytes(draw.choice(damage)())
        refusal(path)
