"""Descriptions of tokenizers of other kinds and formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from firth.formats.tokenizers.loading import load_tokenizer
from firth.tokenizers.description import describe_tokenizer
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS, train_tokenizer
from tests.conftest import SAMPLE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str) -> None:
    size = 300 if kind == "bpe" else 40 if kind == "char" else 100
    tokenizer, _ = train_tokenizer([SAMPLE], kind=kind, vocab_size=size, sentinels=3, workers=1)
    found = describe_tokenizer(tokenizer)
    assert (found.kind, found.vocab_size, found.counts["sentinels"]) == (kind, size, 3)
    assert "TEXT" in found.one_text
    ids = [one.id for one in found.special_tokens]
    assert found.counts["special tokens"] == len(set(ids))
    for tokens in found.examples.values():
        assert all(tokenizer.backend.token_to_id(token) is not None for token in tokens)


def test_a_vocabulary_of_whole_words(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "hello": 1, "world": 2}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, "<unk>"))
    backend.add_special_tokens(["<unk>"])
    Tokenizer(backend, {"unk_token": "<unk>", "model_max_length": 512}).save(tmp_path)
    found = describe_tokenizer(load_tokenizer(tmp_path))
    assert (found.kind, found.max_length) == ("word", 512)
    assert found.examples["first tokens"] == ["hello", "world"]
