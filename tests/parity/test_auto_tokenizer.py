"""A tokenizer saved here is what `transformers.AutoTokenizer` loads, id for id."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from firth.formats.tokenizers.loading import load_tokenizer
from firth.tokenizers.trainer import KINDS, train_tokenizer
from tests.conftest import SAMPLE

HARD = [
    "",
    "  leading and  double spaces ",
    "Héllo naïve ọ̀rọ̀ Yorùbá ɓera",
    unicodedata.normalize("NFD", "Héllo naïve ọ̀rọ̀ Yorùbá がぎ 각"),
    "東京タワー 😀👍🏽 \u200dZWJ",
    "def f(x):\n\treturn x**2  # comment",
    "specials inside: [MASK] <mask> </s> <|endoftext|> <extra_id_0> [CLS]",
    "taaaaasty COVID-19 Transformerify unhappiness",
    SAMPLE,
]


@pytest.mark.parametrize("specials", [None, "bert", "roberta"])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_identical(tmp_path: Path, sample: Path, kind: str, specials: str | None) -> None:
    """With capitals, lower-cased with accents, and lower-cased without (BERT's recipe).

    RoBERTa's byte-level BPE with a space before each text.
    """
    sample.write_text("\n\n".join(HARD), encoding="utf-8")
    size = 150 if kind == "char" else 520
    tokenizer, _ = train_tokenizer(
        [sample],
        kind=kind,
        vocab_size=size,
        specials=specials,
        sentinels=95,
        min_frequency=1,
        lowercase=specials is not None,
        strip_accents=specials == "bert",
        add_prefix_space=kind == "bpe" and specials == "roberta",
    )
    tokenizer.save(tmp_path / "saved")
    reference = AutoTokenizer.from_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    assert len(reference) == len(again) == size
    for text in HARD:
        ids = reference(text)["input_ids"]
        assert ids == again.encode(text, specials=True)
        assert reference.decode(ids) == again.decode(ids)
        assert reference(text, add_special_tokens=False)["input_ids"] == again.encode(text)
    for role, token in again.special_tokens.items():
        assert getattr(reference, f"{role}_token") == token
        assert getattr(reference, f"{role}_token_id") == again.special_ids[role]
    assert "<extra_id_7>" in reference.all_special_tokens


def test_pairs_get_berts_segments(tmp_path: Path, sample: Path) -> None:
    tokenizer, _ = train_tokenizer([sample], kind="wordpiece", vocab_size=400)
    tokenizer.save(tmp_path / "saved")
    pair = AutoTokenizer.from_pretrained(tmp_path / "saved")("the boat", "the sea")
    cls, sep = tokenizer.special_ids["cls"], tokenizer.special_ids["sep"]
    first, second = tokenizer.encode("the boat"), tokenizer.encode("the sea")
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
