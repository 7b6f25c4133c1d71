"""Mutated files end in one sentence, with little memory and time: configs of every family, headers
of weights, tokenizers and their settings.

A mutation replaces a random value of a JSON file by a hostile one, or changes some of its bytes.
The process may take 2 GiB more than it has, and a few seconds of processor time for each file.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

import firth
from firth.formats.huggingface.directory import FAMILIES, read_network
from firth.models.masks import Mask
from firth.tokenizers.trainer import SPECIALS, set_template
from firth.utils.errors import FirthError, InputError
from tests.formats.conftest import saved
from tests.formats.local_hub import files_of
from tests.parity.test_families import ROWS, Row

# DeBERTa's implementation in `transformers` uses the deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

MEMORY, SECONDS = 2 << 30, 20
HUGE = (2**63, 2**31, 10_000, 1e308, float("inf"), float("nan"))
HOSTILE = (*HUGE, -1, 0, 1, 0.5, None, True, "", "x", "\0" * 9, "é", [], {}, [0], [[]], {"0": 1})
UNKNOWN = ("model", "quantization_config", "text_config")  # keys that no family here has
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
# One row for each family; the encoders of T5 have no row of their own.
CONFIGS = {row.name: row for row in ROWS if not row.name.endswith("Model") or "LMHead" in row.name}


@contextmanager
def limits() -> Iterator[None]:
    """Limit the address space of this process, and the processor time of the block."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _too_slow(*_: Any) -> None:
    raise AssertionError(f"more than {SECONDS} seconds")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON file, at most eight of a long list."""
    children: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        children = value if isinstance(value, dict) else dict(enumerate(value))
    for key in list(children)[:40]:
        yield (*path, key)
        yield from places(children[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with one part replaced."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return copy


def mutate_json(value: Any, rng: random.Random, added: tuple[str, ...] = ()) -> Any:
    """Replace a random part of a JSON value, or add one of these keys."""
    path = rng.choice([*places(value), *((key,) for key in added)])
    return replaced(value, path, rng.choice(HOSTILE))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes, or cut the end off."""
    if rng.random() < 0.2:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def assert_refused_or_works(use: Callable[[], object], what: object) -> None:
    """Assert that a mutated file is used without an error, or refused with one sentence."""
    message = ""
    try:
        with limits():
            use()
    except FirthError as error:
        message = str(error)
    except BaseException as error:
        raise AssertionError(f"{what!r} ended in {error!r:.300}") from error
    assert "\n" not in message, (what, message)
    assert len(message) < 2000, (what, message)


def forward(folder: Path) -> None:
    """Load a network and compute its hidden states of three tokens."""
    network = read_network(folder).eval()
    mask = Mask.causal([3]) if network.config.architecture == "decoder" else Mask([3])
    if network.config.architecture != "encoder-decoder":
        with torch.no_grad():
            network(torch.tensor([0, 1, 2]), mask)


def save_bert(folder: Path) -> dict[str, bytes]:
    """Write a small BERT whose tokenizer has a normalizer, special tokens and a template."""
    files = saved(folder, 1)
    backend = Tokenizer.from_str(files["tokenizer.json"].decode())
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(SPECIALS["bert"].tokens))
    set_template(backend, SPECIALS["bert"])
    backend.save(str(folder / "tokenizer.json"))
    return files_of(folder)


def write_model(row: Row, folder: Path) -> dict[str, Any]:
    """Write the tiny reference of a family, and return its config."""
    row.reference().save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_huge_number_of_layers_is_refused(name: str, tmp_path: Path) -> None:
    """Before lists of layers are made: `ModernBERT` made one of 2**63 entries."""
    made = getattr(transformers, name)
    config = json.loads(made.config_class(**CONFIGS[name].config).to_json_string(use_diff=False))
    [layers] = [field for field in LAYERS if field in config][:1]
    for key in ("layer_types", "rope_parameters"):
        config.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps({**config, layers: 2**63}))
    with limits(), pytest.raises(InputError, match=re.escape(str(tmp_path))):
        read_network(tmp_path)


def test_a_tokenizer_without_its_unknown_token(tmp_path: Path) -> None:
    save_bert(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    del content["model"]["vocab"]["[UNK]"]
    file.write_text(json.dumps(content))
    model = firth.load(tmp_path)
    assert model.tokenizer.encode("the") == [5]
    for use in (model.fill, model.embed, model.tokenizer.encode, model.tokenizer.pieces):
        with pytest.raises(InputError, match=r"\[UNK\].*add an unknown token"):
            use("the [MASK] zebra")


@pytest.mark.parametrize("value", [1, None, "x", [0], {"eos_token_id": -1}])
def test_a_field_model_is_ignored(value: Any, tmp_path: Path) -> None:
    config = json.loads(save_bert(tmp_path)["config.json"])
    (tmp_path / "config.json").write_text(json.dumps(config | {"model": value}))
    assert read_network(tmp_path).config.vocab_size == config["vocab_size"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONFIGS)
def test_mutated_configs(name: str, tmp_path: Path) -> None:
    config, rng = write_model(CONFIGS[name], tmp_path), random.Random(name)
    for _ in range(120):
        mutated = mutate_json(config, rng, UNKNOWN)
        (tmp_path / "config.json").write_text(json.dumps(mutated))
        assert_refused_or_works(lambda: forward(tmp_path), mutated)


# Each: the file, whether to mutate its JSON (else its bytes), and how often.
FILES = {
    "header": ("model.safetensors", True, 300),
    "weights": ("model.safetensors", False, 300),
    "tokenizer": ("tokenizer.json", True, 600),
    "tokenizer bytes": ("tokenizer.json", False, 300),
    "settings": ("tokenizer_config.json", True, 200),
    "config bytes": ("config.json", False, 200),
}


def mutated(data: bytes, is_json: bool, rng: random.Random) -> bytes:
    """Mutate a file; of weights the header or a byte, of JSON a value."""
    if not is_json:
        return mutate_bytes(data, rng)
    if data[:1] == b"{":
        return json.dumps(mutate_json(json.loads(data), rng)).encode()
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(mutate_json(json.loads(data[8 : 8 + size]), rng)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


@pytest.mark.parametrize(
    "count", [8, pytest.param(None, marks=pytest.mark.nightly)], ids=["quick", "all"]
)
@pytest.mark.parametrize("kind", FILES)
def test_mutated_files(kind: str, count: int | None, tmp_path: Path) -> None:
    def use() -> None:
        model = firth.load(tmp_path)
        model.fill("the dog [MASK] calm zebra .")
        model.embed(["a sea", ""])

    name, is_json, usual = FILES[kind]
    original, rng = save_bert(tmp_path)[name], random.Random(kind)
    for _ in range(count or usual):
        data = mutated(original, is_json, rng)
        (tmp_path / name).write_bytes(data)
        assert_refused_or_works(use, data[:3000])


def test_every_family_is_mutated() -> None:
    kinds = {getattr(transformers, name).config_class.model_type for name in CONFIGS}
    assert kinds == {family.name for family in FAMILIES}
