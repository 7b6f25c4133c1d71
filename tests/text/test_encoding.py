"""Documents get the tokens that their tokenizer gives them, whatever it cuts at."""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from firth.text.encoding import Lookup, encode_documents
from tests.conftest import SAMPLE


def llama() -> tokenizers.Tokenizer:
    """A tokenizer that puts ▁ before a text once and does not cut at white space."""
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(SAMPLE.splitlines(), trainer)
    return backend


def test_one_that_does_not_cut_at_spaces_sees_whole_documents() -> None:
    backend = llama()
    lookup = Lookup(backend)
    assert not lookup.cuts
    texts = [block for block in SAMPLE.split("\n\n") if block.strip()] + ["Two  spaces.\nA line. "]
    passage = encode_documents(lookup, texts)
    wanted = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    assert passage.tokens.tolist() == [id for ids in wanted for id in ids]
    assert passage.documents.tolist() == [len(ids) for ids in wanted]
    assert passage.sentences.sum() == len(passage.tokens)
    assert len(passage.sentences) > len(texts)


def test_ids_beyond_a_gap_are_kept() -> None:
    """There may be fewer tokens than the largest id."""
    words = {"[UNK]": 0, "the": 1, "far": 70_000}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    passage = encode_documents(Lookup(backend), ["the far"])
    assert passage.tokens.tolist() == [1, 70_000]
