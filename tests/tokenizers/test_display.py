"""Readable tokens of every kind of tokenizer."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from firth.tokenizers.display import display_tokens
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer


def made(model: models.Model, decoder: decoders.Decoder | None = None) -> Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend, {})


UNIGRAM = [("<unk>", 0.0), ("▁dog", -1.0), ("s", -1.0), ("<0x0A>", -2.0), ("<0xC3>", -2.0)]
WORDS = {"[UNK]": 0, "dog": 1, "##s": 2, "▁": 3}
MARKED = {"dog</w>": 0, "do": 1, "\t": 2}
SHOWN = {
    "SentencePiece": (
        made(models.Unigram(UNIGRAM, unk_id=0, byte_fallback=True), decoders.Metaspace()),
        ["<unk>", "·dog", "s", "⏎", "\\xc3"],
    ),
    "SentencePiece BPE": (  # é is a letter here, and a byte in a byte-level tokenizer
        made(models.BPE({"▁é": 0, "é": 1}, []), decoders.Metaspace()),
        ["·é", "é"],
    ),
    "WordPiece": (made(models.WordPiece(WORDS, unk_token="[UNK]")), ["[UNK]", "dog", "##s", "▁"]),
    "BPE with ends": (
        made(models.BPE(MARKED, [], end_of_word_suffix="</w>")),
        ["dog·", "do", "⇥"],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_tokens_are_readable(name: str) -> None:
    tokenizer, wanted = SHOWN[name]
    assert display_tokens(tokenizer, range(len(wanted))) == wanted


def test_byte_level_tokens() -> None:
    tokenizer, _ = train_tokenizer(
        ["ab été"] * 9, kind="bpe", vocab_size=266, specials="roberta", min_frequency=5
    )
    tokens = display_tokens(tokenizer, tokenizer.encode("ab été\n\tÃ\x1b", specials=True))
    assert tokens == ["<s>", "ab", "·été", "⏎", "⇥", "\\xc3", "\\x83", "\\x1b", "</s>"]


def test_added_tokens_and_unknown_ids() -> None:
    tokenizer = made(models.BPE({"a": 0}, []), decoders.ByteLevel())
    tokenizer.backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.backend.add_special_tokens(["<a b>"])
    tokenizer.backend.add_tokens(["  "])
    assert display_tokens(tokenizer, [1, 2, 7]) == ["<a b>", "··", "<id 7>"]
