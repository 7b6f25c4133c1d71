"""Special tokens around a text, as the library of tokenizers and `transformers` add them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import models, processors

from firth.tokenizers.special_tokens import special_tokens_around, with_special_tokens
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from tests.conftest import SAMPLE


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    texts = SAMPLE.splitlines()
    return train_tokenizer(texts, kind="wordpiece", vocab_size=300, specials="bert", workers=1)[0]


def test_the_frame_of_a_tokenizer(bert: Tokenizer) -> None:
    begin, end = bert.special_ids["cls"], bert.special_ids["sep"]
    assert special_tokens_around(bert) == ([begin], [end])
    assert with_special_tokens(bert, [begin], [end]) is bert
    plain = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "far": 1}, "<s>")), {})
    assert special_tokens_around(plain) == ([], [])


@pytest.mark.parametrize("trim", [False, True])
def test_characters_of_tokens_stay(trim: bool) -> None:
    """Whether they include the space before a word is part of the post-processor, too."""
    made, _ = train_tokenizer(SAMPLE.splitlines(), kind="bpe", vocab_size=300, workers=1)
    made.backend.post_processor = processors.ByteLevel(trim_offsets=trim)
    framed = with_special_tokens(made, [0], [])
    offsets = [made.encoding("the sea was").offsets, framed.encoding("the sea was").offsets]
    assert offsets[0] == offsets[1]
    assert special_tokens_around(framed) == ([0], [])


def test_a_colon_in_the_name_of_a_token() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"<s:1>": 0, "far": 1}, "far"))
    framed = with_special_tokens(Tokenizer(backend, {}), [0, 7], [7])  # there is no token 7
    assert framed.encode("far", specials=True) == [0, 1]


def test_a_tokenizer_that_knows_no_a() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "f": 1}, []))
    backend.add_special_tokens(["<s>"])
    framed = with_special_tokens(Tokenizer(backend, {}), [0], [])
    assert framed.encode("a", specials=True) == [0]
    assert special_tokens_around(framed) == ([0], [])
    backend = tokenizers.Tokenizer(models.BPE({}, []))
    assert special_tokens_around(Tokenizer(backend, {})) == ([], [])


@pytest.mark.parametrize("frame", [([2], []), ([], [3]), ([2], [3]), ([], []), ([2, 2], [3])])
def test_another_frame(bert: Tokenizer, frame: tuple[list[int], list[int]], tmp_path: Path) -> None:
    """It is saved, and changes neither the tokens of a text nor the other tokenizer."""
    framed = with_special_tokens(bert, *frame)
    assert special_tokens_around(framed) == frame
    before, after = frame
    text, other = bert.encode("the sea"), bert.encode("a boat")
    assert framed.encode("the sea", specials=True) == [*before, *text, *after]
    pair = framed.backend.encode("the sea", "a boat").ids
    assert pair == [*before, *text, *after, *other, *after]
    assert framed.fingerprint == bert.fingerprint
    assert special_tokens_around(bert) == ([bert.special_ids["cls"]], [bert.special_ids["sep"]])
    framed.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert theirs("the sea")["input_ids"] == [*before, *text, *after]
