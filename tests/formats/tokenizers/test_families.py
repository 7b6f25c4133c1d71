"""Tokenizer files that are damaged, incomplete or hostile: one sentence says what and where."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from transformers import BertTokenizer

import firth
from firth.formats.tokenizers.loading import holds_tokenizer, load_tokenizer
from firth.formats.tokenizers.sentencepiece import read_pieces
from firth.jobs.preparation import prepare
from firth.model import Model
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError, UsageError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "boat", "##s", "a"]
LINES = "\n".join(WORDS)
PAIRS = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer, by hand."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def piece(text: str, score: float = 0.0, type: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, type))


FIRST = piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("</s>", 0.0, 3)
SMALL = FIRST + piece("▁", -1) + piece("▁the", -2) + piece("a", -3)


def write(folder: Path, **files: Any) -> Path:
    """Write files; `vocab_txt` is vocab.txt, and what is not text or bytes is JSON."""
    for name, content in files.items():
        file = folder / ".".join(name.rsplit("_", 1))
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            file.write_text(text, encoding="utf-8")
    return folder


def bert(**files: Any) -> dict[str, Any]:
    return {"vocab_txt": LINES, **files}


def config(**settings: Any) -> dict[str, Any]:
    return bert(tokenizer_config_json=settings)


def error(folder: Path, kind: type[Exception] = InputError) -> str:
    with pytest.raises(kind) as caught:
        load_tokenizer(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert str(folder) in sentence
    return sentence


def test_lines_twice_and_empty_lines_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    lines = [*WORDS, "", "boat", "sea \u3000", ""]
    write(tmp_path, vocab_txt="\n".join(lines) + "\n")
    reference = BertTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("the boat sea") == reference("the boat sea")["input_ids"][1:-1]
    assert tokenizer.encode("the boat sea") == [5, 10, 11]
    assert len(tokenizer) == len(lines)  # one more than the largest id


def test_a_vocabulary_with_gaps_takes_no_more_tokens(tmp_path: Path) -> None:
    write(tmp_path, vocab_txt="\n".join([*WORDS, "boat", "mast"]), added_tokens_json={"[NEW]": 10})
    assert "vocab.txt have gaps" in error(tmp_path)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (dict(vocab_txt=""), "vocab.txt is empty"),
        (dict(vocab_txt=b"[UNK]\nthe\n\xff\xfe\n"), "vocab.txt, line 3 is not UTF-8"),
        (dict(vocab_json=PAIRS), "no .*merges.txt"),
        (dict(merges_txt="a b\n"), "no .*vocab.json"),
        (dict(vocab_json=["a"], merges_txt="a b\n"), "vocab.json is not a JSON object"),
        (dict(vocab_json="{", merges_txt="a b\n"), "vocab.json is not JSON"),
        (dict(vocab_json={}, merges_txt="a b\n"), "vocab.json has no tokens"),
        (dict(vocab_json={"a": -1}, merges_txt=""), "the id of 'a' is invalid"),
        (dict(vocab_json=PAIRS | {"b": 1}, merges_txt="a b\n"), "duplicates"),
        (dict(vocab_json={**PAIRS, "\ud800": 4}, merges_txt="a b\n"), "inconsistent"),
        (dict(vocab_json=PAIRS, merges_txt="#version: 0.2\na b\na c\n"), "line 3 names 'c', which"),
        (dict(vocab_json=PAIRS, merges_txt="a b\n\n"), "merges.txt, line 2: expected two tokens"),
        (dict(spiece_model=b""), "spiece.model is not a SentencePiece model"),
        (dict(spiece_model=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "ends too early"),
        (dict(spiece_model=b"\xff" * 20), "a number has no end"),
        (dict(spiece_model=field(1, 7)), "a number stands where bytes should be"),
        (dict(spiece_model=SMALL + field(2, field(3, b"x"))), "bytes stand where a number"),
        (dict(spiece_model=SMALL + field(2, field(3, 4))), "neither a unigram nor a BPE"),
        (dict(spiece_model=SMALL + field(2, field(40, 99))), "unknown piece"),
        (dict(spiece_model=SMALL + piece("x" * 10_000)), "a piece has 10000 characters"),
        (dict(spiece_model=SMALL + piece("x", float("nan"))), "not a number"),
        (dict(spiece_model=SMALL + field(3, field(2, b"\x04\0\0\0\0\0\0\0a\0"))), "normalisation"),
        (dict(tokenizer_model="IQ== 0\nIg== 1\n"), "tokenizer.model is not a SentencePiece model"),
        (config(tokenizer_class="PhobertTokenizer"), "has a PhobertTokenizer"),
        (config(tokenizer_class="T5Tokenizer"), "no spiece.model, which a T5Tokenizer needs"),
        (config(mask_token=5), "tokenizer_config.json: mask_token is not a token"),
        (bert(special_tokens_map_json={"mask_token": {}}), "map.json: mask_token is not a token"),
        (config(additional_special_tokens=3), "additional_special_tokens is not a token"),
        (bert(added_tokens_json={"[NEW]": 50}), r"'\[NEW\]' .* id 50, but after vocab.txt it is 9"),
        (config(added_tokens_decoder={"x": "y"}), "the id of 'x' is invalid"),
        (config(unk_token=None), "has no unk token"),
        (config(cls_token=None), "has no cls token"),
        (
            dict(spiece_model=SMALL, **config(tokenizer_class="T5Tokenizer", extra_ids=10**9)),
            "extra_ids = 1000000000",
        ),
    ],
)
def test_one_sentence(tmp_path: Path, files: dict[str, Any], sentence: str) -> None:
    assert re.search(sentence, error(write(tmp_path, **files)))


def test_a_vocabulary_that_fairseq_did_not_make(tmp_path: Path) -> None:
    write(tmp_path, config_json={"model_type": "mbart"})
    file = tmp_path / "sentencepiece.bpe.model"
    file.write_bytes(piece("<unk>", 0, 2) + piece("a") + piece("b") + piece("c"))
    assert "first three pieces" in error(tmp_path, MismatchError)
    file.write_bytes(SMALL)
    assert load_tokenizer(tmp_path).encode("the", specials=True)[-2:] == [2, 10]
    write(tmp_path, tokenizer_config_json={"src_lang": "xx_XX"})
    assert "src_lang is 'xx_XX'" in error(tmp_path)


def test_a_file_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    for name in ("vocab.txt", "spiece.model"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 30)
        assert "too large" in error(tmp_path)
        (tmp_path / name).unlink()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_any_damage_is_read_or_told(tmp_path: Path, at: int, byte: int, cut: bool) -> None:
    damaged = SMALL[:at] if cut else SMALL[:at] + bytes([byte]) + SMALL[at + 1 :]
    (tmp_path / "spiece.model").write_bytes(damaged)
    try:
        tokenizer = load_tokenizer(tmp_path)
    except InputError:
        assert "SentencePiece" in error(tmp_path)
    else:
        tokenizer.encode("the boat is a boat")


def test_damaged_normalisation_is_told_before_it_is_used(tmp_path: Path) -> None:
    """The library would follow any number in the table, out of it, and abort."""
    sentencepiece = pytest.importorskip("sentencepiece")
    table = Path(sentencepiece.__file__).parent / "package_data" / "nmt_nfkc.bin"
    whole = table.read_bytes()
    told = 0
    for at in range(5, 2000, 97):
        damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        (tmp_path / "spiece.model").write_bytes(SMALL + field(3, field(2, damaged)))
        try:
            tokenizer = load_tokenizer(tmp_path)
        except InputError:
            told += 1
        else:
            tokenizer.encode("Héllo ﬁ ½ 東京 \u00a0 Ａ")
    assert told
    (tmp_path / "spiece.model").write_bytes(SMALL + field(3, field(2, whole)))
    assert read_pieces(tmp_path / "spiece.model").charsmap == whole


def test_negative_numbers_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(SMALL + field(2, field(41, -1) + field(43, 5)))
    model = read_pieces(tmp_path / "spiece.model")
    assert model.roles == {"unk": 0, "eos": 2, "pad": 5}
    assert (model.algorithm, model.byte_fallback, model.dummy_prefix) == ("unigram", False, True)
    assert [p.text for p in model.pieces] == ["<unk>", "<s>", "</s>", "▁", "▁the", "a"]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Tokenizer]:
    """A `tokenizer.json` with special tokens, and whatever settings beside it."""

    def save(tokens: list[str], **files: Any) -> Tokenizer:
        ids = {token: id for id, token in enumerate([*tokens, "the"])}
        backend = tokenizers.Tokenizer(models.WordLevel(ids, tokens[1]))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.add_special_tokens(tokens)
        backend.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer(write(tmp_path, **files))

    return save


def test_roles_beside_a_tokenizer_json(saved: Callable[..., Tokenizer]) -> None:
    bert, roberta = WORDS[:5], ["<s>", "<unk>", "</s>", "<pad>", "<mask>"]
    implied = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert saved(bert).special_ids == implied
    assert saved(bert, config_json={"model_type": "bert"}).special_ids == implied
    named = {"mask_token": "[PAD]", "pad_token": {"content": "[MASK]", "lstrip": True}}
    told = saved(bert, special_tokens_map_json=named)
    assert (told.special_ids["mask"], told.special_ids["pad"]) == (0, 4)
    others = {"bos": 0, "cls": 0, "unk": 1, "eos": 2, "sep": 2, "pad": 3, "mask": 4}
    plain = saved(roberta, config_json={}, special_tokens_map_json={})
    assert plain.special_ids == others
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    assert saved(roberta, tokenizer_config_json=settings).special_ids == {"bos": 0}


def test_a_model_brings_its_tokenizer(tmp_path: Path) -> None:
    network = Transformer(preset("bert-tiny").config, ["language"])
    Model(network, tokenizer=None).save(tmp_path)
    assert not holds_tokenizer(tmp_path)
    assert firth.load(tmp_path).tokenizer is None
    write(tmp_path, vocab_txt=LINES)
    assert holds_tokenizer(tmp_path)
    tokenizer = firth.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("The boats", specials=True) == [2, 5, 6, 7, 3]
    lines = [*WORDS, *(f"w{i}" for i in range(network.config.vocab_size))]
    write(tmp_path, vocab_txt="\n".join(lines))
    with pytest.raises(MismatchError, match="vocab_size"):
        firth.load(tmp_path)


def test_xlm_needs_an_extra_for_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {token: id for id, token in enumerate(["<s>", "</s>", "<pad>", "<unk>", "a", "b</w>"])}
    write(tmp_path, vocab_json=ids, merges_txt="a b</w> 7\n", config_json={"model_type": "xlm"})
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == 16
    with pytest.raises(UsageError, match=r"firth\[xlm\]"):
        tokenizer.encode("ab")
    with pytest.raises(UsageError, match="Moses"):
        prepare([tmp_path / "merges.txt"], tokenizer=tmp_path, out=tmp_path / "shards")
    write(tmp_path, merges_txt="a\n")
    assert "merges.txt, line 1: expected two pieces" in error(tmp_path)
