"""Streams of tokens: the pieces are the text that all tokens have together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers as backends
from tokenizers import decoders

from firth import Tokenizer
from firth.inference.generation.detokenization import (
    WINDOW_TOKENS,
    Detokenizer,
    TextStreamer,
    truncate_at_stop,
)
from tests.inference.conftest import KINDS, UNUSUAL

NIGHTLY = pytest.mark.nightly


def sentencepiece() -> Tokenizer:
    """The tokens of Llama: words with their space, and bytes for what is no word."""
    words = ["<unk>", "▁", "▁sea", "▁was", "calm", "s", "▁▁", "é", "\n", "."]
    names = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = backends.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    backend = backends.Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return Tokenizer(backend, {})


def random_tokens(tokenizer: Tokenizer, rng: np.random.Generator, count: int) -> list[int]:
    """Mix tokens of a text, so that most characters are whole, with tokens at random."""
    found: list[int] = []
    while len(found) < count:
        text = UNUSUAL[int(rng.integers(len(UNUSUAL))) :][: int(rng.integers(1, 20))]
        found += [id for id in tokenizer.encode(text) if id != tokenizer.unknown_id]
        found += rng.integers(len(tokenizer), size=rng.integers(4)).tolist()
    return found[:count]


def streamed(detokenizer: Detokenizer, tokens: Sequence[int], stops: Sequence[str] = ()) -> str:
    stream = TextStreamer(detokenizer, stops)
    pieces = [stream.add(token) for token in tokens]
    return "".join([*pieces, stream.finish()])


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=NIGHTLY)])
@pytest.mark.parametrize("kind", [*KINDS, "sentencepiece"])
def test_pieces_of_random_tokens_are_their_text(
    kinds: dict[str, Tokenizer], kind: str, seeds: range
) -> None:
    tokenizer = sentencepiece() if kind == "sentencepiece" else kinds[kind]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        tokens = random_tokens(tokenizer, rng, 5 * WINDOW_TOKENS)
        detokenizer = Detokenizer(
            tokenizer=tokenizer,
            prompt=tuple(random_tokens(tokenizer, rng, int(rng.integers(3)))),
            hidden=frozenset(rng.integers(len(tokenizer), size=2).tolist()),
        )
        text = detokenizer.text(tokens)
        assert streamed(detokenizer, tokens) == text
        start = int(rng.integers(len(text) - 5))
        stops = [text[start : start + 5], "never"]
        assert streamed(detokenizer, tokens, stops) == truncate_at_stop(text, stops)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char"])
def test_a_token_takes_as_long_at_the_end_as_at_the_beginning(
    kinds: dict[str, Tokenizer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, decode = kinds[kind], Tokenizer.decode
    sizes: list[int] = []

    def recorded(self: Tokenizer, ids: Sequence[int], skip_specials: bool = False) -> str:
        sizes.append(len(ids))
        return decode(self, ids, skip_specials)

    monkeypatch.setattr(Tokenizer, "decode", recorded)
    detokenizer = Detokenizer(tokenizer=tokenizer)
    tokens = (tokenizer.encode(UNUSUAL) * 40)[:2000]
    stream = TextStreamer(detokenizer, ["never"])
    for token in tokens:
        stream.add(token)
    assert max(sizes) < 2 * WINDOW_TOKENS
    assert sum(sizes) < 2 * WINDOW_TOKENS * len(tokens)


def test_text_appears_with_its_token(kinds: dict[str, Tokenizer]) -> None:
    for kind in ("wordpiece", "bpe", "unigram"):
        stream = TextStreamer(Detokenizer(tokenizer=kinds[kind]))
        pieces = [stream.add(token) for token in kinds[kind].encode("The sea was calm.")]
        assert all(pieces)


def test_a_run_of_bytes_is_streamed_when_it_ends() -> None:
    tokenizer = sentencepiece()
    ids: Any = tokenizer.backend.token_to_id
    right = [ids(f"<0x{byte:02X}>") for byte in "é".encode()]
    sea = ids("▁sea")
    stream = TextStreamer(Detokenizer(tokenizer=tokenizer))
    assert [stream.add(token) for token in [sea, *right, sea]] == ["sea", "", "", "é sea"]
    wrong = [sea, *right, right[0], sea]  # the decoder takes the whole run for invalid
    assert streamed(Detokenizer(tokenizer=tokenizer), wrong) == "sea\ufffd\ufffd\ufffd sea"
