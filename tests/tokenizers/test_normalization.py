"""Text in NFC has the same tokens and words without the NFC step of the `tokenizers` library."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from firth.tokenizers.counting import PIECE, word_counter
from firth.tokenizers.encoding import CachedEncoder
from firth.tokenizers.normalization import is_nfc, without_nfc
from firth.tokenizers.token_cache import TokenCache
from firth.tokenizers.tokenizer import encode_batch
from firth.tokenizers.trainer import KINDS, train_tokenizer
from tests.conftest import SAMPLE

NFC = normalizers.NFC()
LATIN = "Été naïve, ọ̀rọ̀ Yorùbá: ẹ káàárọ̀! J̌ Å Ω; 각 が"
# Characters that compose, reorder, change case or are removed; words of special tokens.
PARTS = [*"aeJ É\u0301\u0323\u0334\u030c\u212a\u0345\u0130\u00df", "\n", "\u00a0", "\u200d", "각"]
PARTS += ["\u1112", "\u1161", "東", "。", "<|endoftext|>", "[MASK]", "<mask>", "</s>", "\u1f71"]
TEXTS = st.lists(st.sampled_from(PARTS) | st.characters(exclude_categories=["Cs"]), max_size=16)


@pytest.fixture(scope="module")
def encoders() -> dict[str, CachedEncoder]:
    """One of each kind of tokenizer, with and without lower case and accents."""
    made = {}
    for kind in KINDS:
        for lowercase, strip_accents in ((False, False), (True, False), (True, True)):
            tokenizer, _ = train_tokenizer(
                [f"{SAMPLE} {LATIN}", f"{LATIN} {LATIN}"],
                kind=kind,
                vocab_size={"char": 40, "unigram": 200, "bpe": 300}.get(kind, 250),
                lowercase=lowercase,
                strip_accents=strip_accents,
                workers=1,
            )
            tokenizer.backend.encode_special_tokens = True  # as in `prepare`
            made[f"{kind}, {lowercase=}, {strip_accents=}"] = CachedEncoder(tokenizer.backend)
    return made


def test_what_is_nfc_for_python_is_nfc_for_the_library() -> None:
    """Every character, alone and with marks before and after it; planes 4 to 13 have none."""
    codes = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000))
    for before, after in (("", ""), ("a", "\u0301"), ("á", ""), ("a\u0334", "\u0323")):
        texts = (f"{before}{chr(code)}{after}" for code in codes)
        composed = "\n".join(filter(is_nfc, texts))
        assert len(composed) > 500_000
        assert NFC.normalize_str(composed) == composed


def test_only_a_first_nfc_step_is_left_out() -> None:
    lower = normalizers.Lowercase()
    assert without_nfc(None) is None
    assert without_nfc(NFC) is None
    first = without_nfc(normalizers.Sequence([NFC, lower]))
    assert first is not None
    # Lower case may compose: ǰ has one character, J̌ has none.
    assert first.normalize_str("J\u030c") == "j\u030c"
    last = normalizers.Sequence([lower, NFC])
    for other in (last, lower, normalizers.NFD(), normalizers.Sequence([])):
        assert without_nfc(other) is other


@given(TEXTS.map("".join))
@example("\u1161")  # a vowel of Hangul, which composes with the consonant before it
@example("\u0301e <|endoftext|>e\u0301 [MASK]")
def test_every_piece_has_the_tokens_of_the_whole_tokenizer(
    encoders: dict[str, CachedEncoder], text: str
) -> None:
    for name, encoder in encoders.items():
        for form in (text, unicodedata.normalize("NFC", text)):
            encoder.cache = TokenCache()
            pieces = encode_batch(encoder.backend, PIECE.findall(form))
            wanted = [id for piece in pieces for id in piece.ids]
            assert encoder.encode([form])[0].tolist() == wanted, name


def test_added_tokens_keep_the_whole_tokenizer() -> None:
    """A token that is recognized in text may itself be changed by NFC: K (kelvin) to K."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "K": 1}, "<unk>"))
    backend.normalizer, backend.pre_tokenizer = NFC, pre_tokenizers.Whitespace()
    backend.add_tokens([tokenizers.AddedToken("\u212am", normalized=True)])
    backend.encode_special_tokens = True
    assert backend.encode("2 Km").ids == [0, 2]
    assert CachedEncoder(backend).encode(["2 Km"])[0].tolist() == [0, 2]


@given(TEXTS.map("".join))
def test_every_word_is_counted_in_the_normalized_form(
    encoders: dict[str, CachedEncoder], text: str
) -> None:
    for name, encoder in encoders.items():
        backend = encoder.backend
        count = word_counter(backend.to_str())
        pieces = [(piece, 1) for piece in PIECE.findall(text)]
        normalize = backend.normalizer.normalize_str
        split = backend.pre_tokenizer.pre_tokenize_str
        assert count(pieces) == Counter(
            word for piece, _ in pieces for word, _ in split(normalize(piece))
        ), name
