"""Documents, encoded in pieces, have the tokens that the tokenizer gives the whole text."""

from __future__ import annotations

import unicodedata

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from firth.tokenizers import token_cache
from firth.tokenizers.encoding import PROBE, CachedEncoder, encode_documents
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS, train_tokenizer
from firth.utils.errors import InputError
from tests.conftest import SAMPLE

ACCENTED = "Été naïve, ọ̀rọ̀ Yorùbá: ẹ káàárọ̀! Café á là É 각 が."
# Letters, combining marks and white space.
MARKS = "ae é\u0301\u0300\u0323\u3099か각\u1100\u1161\u11a8\u0344Å.。東\n\u00a0\u2000\u3000\u200d"


def llama() -> tokenizers.Tokenizer:
    """Make a tokenizer that prepends one ▁ to a text and does not split at white space."""
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(SAMPLE.splitlines(), trainer)
    return backend


def test_tokenizers_that_do_not_split_at_spaces_encode_whole_documents() -> None:
    backend = llama()
    lookup = CachedEncoder(backend)
    assert not lookup.cuts
    texts = [block for block in SAMPLE.split("\n\n") if block.strip()] + ["Two  spaces.\nA line. "]
    passage = encode_documents(lookup, texts)
    wanted = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    assert passage.tokens.tolist() == [id for ids in wanted for id in ids]
    assert passage.documents.tolist() == [len(ids) for ids in wanted]
    assert passage.sentences.sum() == len(passage.tokens)
    assert len(passage.sentences) > len(texts)


def test_ids_may_have_gaps() -> None:
    """There may be fewer tokens than the largest id."""
    words = {"[UNK]": 0, "the": 1, "far": 70_000}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    passage = encode_documents(CachedEncoder(backend), ["the far"])
    assert passage.tokens.tolist() == [1, 70_000]


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(f"{SAMPLE}\n\n{ACCENTED}\n\n{ACCENTED}\n", encoding="utf-8")
    sizes = {"char": 60, "unigram": 300}
    return {
        kind: train_tokenizer([file], kind=kind, vocab_size=sizes.get(kind, 450))[0]
        for kind in KINDS
    }


def test_combining_accents_are_composed(every_kind: dict[str, Tokenizer]) -> None:
    apart = unicodedata.normalize("NFD", ACCENTED)
    for tokenizer in every_kind.values():
        wanted = tokenizer.encode(ACCENTED)
        assert tokenizer.encode(apart) == wanted
        assert encode_documents(CachedEncoder(tokenizer.backend), [apart]).tokens.tolist() == wanted
    bpe = every_kind["bpe"]
    assert bpe.decode(bpe.encode(apart)) == ACCENTED


@given(text=st.text(st.sampled_from(MARKS), min_size=1, max_size=16))
def test_pieces_have_the_tokens_of_the_whole_text(
    every_kind: dict[str, Tokenizer], text: str
) -> None:
    for tokenizer in every_kind.values():
        lookup = CachedEncoder(tokenizer.backend)
        assert lookup.cuts
        assert lookup.encode([text])[0].tolist() == tokenizer.encode(text)


@pytest.mark.parametrize("strip_accents", [False, True])
def test_a_space_before_each_document(strip_accents: bool) -> None:
    tokenizer, _ = train_tokenizer(
        [SAMPLE], kind="bpe", vocab_size=400, strip_accents=strip_accents, add_prefix_space=True
    )
    backend = tokenizer.backend
    assert not CachedEncoder(backend).prefix  # special tokens divide a text
    backend.encode_special_tokens = True
    lookup = CachedEncoder(backend)
    assert lookup.cuts
    texts = [
        *("The wind. The sea.", " a space. Two", "\nA line.\n\nA line.", "\u0301 mark. x", " "),
        *(ACCENTED, "\u00a0wide", "<|endoftext|> x", "  two. And more.\tTab"),
    ]
    passage = encode_documents(lookup, texts)
    assert passage.tokens.tolist() == [id for text in texts for id in tokenizer.encode(text)]


def test_the_cache_is_emptied_when_it_is_full(
    every_kind: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = every_kind["bpe"].encode(SAMPLE)
    for limit in ("MAX_WORDS", "MAX_CHARACTERS"):
        with monkeypatch.context() as patch:
            patch.setattr(token_cache, limit, 10)
            lookup = CachedEncoder(every_kind["bpe"].backend)
            for _ in range(2):
                first = lookup.cache
                assert lookup.encode([SAMPLE])[0].tolist() == wanted
            assert lookup.cache is not first


def test_text_is_encoded_after_a_character_without_a_token() -> None:
    characters = {character: id for id, character in enumerate(sorted(set(PROBE)))}
    backend = tokenizers.Tokenizer(models.WordLevel(characters, unk_token="<unk>"))
    backend.pre_tokenizer = KINDS["char"].pre_tokenizer
    lookup = CachedEncoder(backend)
    for _ in range(2):
        with pytest.raises(InputError, match="not in the vocabulary"):
            lookup.encode(["A ☃."])
    tokens, lengths = lookup.encode(["The end.", "", "The"])
    assert tokens.tolist() == [characters[character] for character in "The end.The"]
    assert lengths.tolist() == [8, 0, 3]
