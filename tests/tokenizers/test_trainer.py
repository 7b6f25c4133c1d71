"""Tokenizer training: every kind compared with the trainers of the `tokenizers` library."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, trainers

from firth.data.corpus import Corpus
from firth.formats.tokenizers.loading import load_tokenizer
from firth.tokenizers import unigram
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS, SPECIALS, train_tokenizer
from firth.utils.errors import InputError, UsageError
from tests.conftest import SAMPLE, Result

SIZES = {"wordpiece": 430, "bpe": 500, "bpe-word": 430, "unigram": 300, "char": 50, "word": 81}
TRAINERS = {
    "wordpiece": (models.WordPiece, trainers.WordPieceTrainer),
    "bpe": (models.BPE, trainers.BpeTrainer),
    "unigram": (models.Unigram, trainers.UnigramTrainer),
}


def library(kind: str, path: Path, size: int, **options: object) -> tokenizers.Tokenizer:
    """Train on the same text with the library, which counts words itself."""
    model, trainer = TRAINERS[kind]
    tokenizer = tokenizers.Tokenizer(model())
    tokenizer.normalizer = KINDS[kind].normalizer(False, False)
    tokenizer.pre_tokenizer = KINDS[kind].pre_tokenizer
    specials = list(SPECIALS[KINDS[kind].specials].tokens)
    settings = {"vocab_size": size, "special_tokens": specials, "show_progress": False, **options}
    tokenizer.train_from_iterator(Corpus([path]), trainer(**settings))
    return tokenizer


def model_of(tokenizer: tokenizers.Tokenizer) -> dict[str, object]:
    return json.loads(tokenizer.to_str())["model"]  # type: ignore[no-any-return]


def test_bpe_has_the_merges_of_the_library(sample: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    ours, _ = train_tokenizer(str(sample), kind="bpe", vocab_size=500)
    theirs = library(
        "bpe", sample, 500, min_frequency=2, initial_alphabet=sorted(ByteLevel.alphabet())
    )
    assert model_of(ours.backend)["merges"] == model_of(theirs)["merges"]
    assert ours.backend.get_vocab() == theirs.get_vocab()


def test_wordpiece_has_the_vocabulary_of_the_library_up_to_ties(sample: Path) -> None:
    ours, _ = train_tokenizer([sample], kind="wordpiece", vocab_size=430)
    theirs = library("wordpiece", sample, 430, min_frequency=2)
    common = ours.backend.get_vocab().keys() & theirs.get_vocab().keys()
    # On a text as small as this, most merges near the end tie at a count of two or three.
    assert len(common) > 0.9 * 430


def test_unigram_has_the_vocabulary_of_the_library(sample: Path) -> None:
    ours, _ = train_tokenizer([sample], kind="unigram", vocab_size=300)
    theirs = library("unigram", sample, 300, unk_token="<unk>")
    assert ours.backend.get_vocab().keys() == theirs.get_vocab().keys()


def test_unigram_from_a_sample_of_words(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = train_tokenizer([sample], kind="unigram", vocab_size=250)
    monkeypatch.setattr(unigram, "MAX_SAMPLE", 600)
    part, _ = train_tokenizer([sample], kind="unigram", vocab_size=250)
    texts = list(Corpus([sample]))
    ratio = part.coverage(texts).tokens / whole.coverage(texts).tokens
    assert 0.95 < ratio < 1.05  # 600 of 923 words; on a real corpus the difference is below 1 %


def test_training_does_not_depend_on_the_hash_seed(sample: Path) -> None:
    code = (
        "import sys; from firth.tokenizers.trainer import train_tokenizer as t\n"
        f"for kind, size in {SIZES}.items():\n"
        "    print(t([sys.argv[1]], kind=kind, vocab_size=size)[0].fingerprint)"
    )
    command = [sys.executable, "-c", code, str(sample)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in "ab"
    )
    assert first == second
    assert len(first.split()) == len(SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_and_unknown_tokens(sample: Path, kind: str) -> None:
    tokenizer, _ = train_tokenizer([sample], kind=kind, vocab_size=SIZES[kind])
    assert len(tokenizer) == SIZES[kind]
    assert tokenizer.kind == kind
    text = "the boat was playing with the wind"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert all(piece.known for piece in tokenizer.pieces(text))
    snowman = tokenizer.pieces("the ☃")
    assert (kind == "bpe") == all(piece.known for piece in snowman)


def test_a_space_before_each_text(sample: Path, tmp_path: Path) -> None:
    plain, _ = train_tokenizer([sample], kind="bpe", vocab_size=400)
    spaced, _ = train_tokenizer([sample], kind="bpe", vocab_size=400, add_prefix_space=True)
    spaced.save(tmp_path)
    assert plain.backend.get_vocab() == spaced.backend.get_vocab()
    for tokenizer in (spaced, load_tokenizer(tmp_path)):
        for text in ("the wind", "\nthe wind", "☃ the", ""):
            assert tokenizer.encode(text) == (plain.encode(" " + text) if text else [])
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode(" the wind") == plain.encode(" the wind")
        first, *_ = tokenizer.pieces("the wind")
        assert first.token == "Ġthe"
    with pytest.raises(UsageError, match="add_prefix_space"):
        train_tokenizer([sample], kind="unigram", vocab_size=300, add_prefix_space=True)


TONES = "Ọkụ́kọ̀ bù ihe ọ̀ma; ákwà, àkwà, ákwá: ọwọ́, ọ̀wọ̀, Yorùbá, káàárọ̀, CAFÉ 한국."


@pytest.mark.parametrize("kind", KINDS)
def test_accents_and_tones_are_kept_unless_stripped(kind: str, tmp_path: Path) -> None:
    """In Igbo ákwà is cloth, àkwà a bed and ákwá crying: tone marks are no decoration."""
    file = tmp_path / "tones.txt"
    file.write_text(
        f"{SAMPLE} 0123456789\n\n{f'{TONES} {TONES.lower()} ' * 99}\n", encoding="utf-8"
    )
    options = {
        "vocab_size": 45 if kind == "char" else SIZES[kind],
        "min_frequency": 1,
        "workers": 1,
    }
    bare = "".join(
        c for c in unicodedata.normalize("NFD", TONES) if unicodedata.category(c) != "Mn"
    )
    bare = unicodedata.normalize("NFC", bare)
    for lowercase in (False, True):
        given = {"kind": kind, "lowercase": lowercase, **options}
        kept, stripped = (
            train_tokenizer([file], strip_accents=strip, **given)[0] for strip in (False, True)
        )
        assert kept.encode("ákwà") != kept.encode("àkwà") != kept.encode("akwa")
        assert stripped.encode(TONES) == stripped.encode(bare)
        assert (kept.encode(TONES) == kept.encode(TONES.lower())) == lowercase
        assert kept.encode(unicodedata.normalize("NFD", TONES)) == kept.encode(TONES)


def test_special_token_and_sentinel_ids(sample: Path) -> None:
    bert, _ = train_tokenizer([sample], kind="wordpiece", vocab_size=400)
    assert bert.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    t5, _ = train_tokenizer([sample], kind="unigram", vocab_size=400, sentinels=100)
    assert t5.special_ids == {"pad": 0, "eos": 1, "unk": 2}
    assert t5.sentinel_ids == list(range(399, 299, -1))  # T5: <extra_id_0> is the last id
    assert t5.encode("<extra_id_0>") == [399]
    gpt2, _ = train_tokenizer([sample], kind="bpe", vocab_size=400)
    assert gpt2.special_ids == {"unk": 0, "bos": 0, "eos": 0}
    roberta, _ = train_tokenizer([sample], kind="bpe", vocab_size=400, specials="roberta")
    assert [roberta.special_ids[role] for role in ("bos", "pad", "eos", "unk")] == [0, 1, 2, 3]
    assert roberta.encode("a <mask>")[1:] == [roberta.special_ids["mask"]]


def test_vocabulary_too_large_for_the_text(sample: Path) -> None:
    with pytest.raises(InputError, match="30,000"):
        train_tokenizer([sample], kind="wordpiece", vocab_size=30_000)
    with pytest.raises(InputError, match="300"):
        train_tokenizer([sample], kind="char", vocab_size=300)
    with pytest.raises(InputError, match=r"Unigram|30,000"):
        train_tokenizer([sample], kind="unigram", vocab_size=30_000)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe-word", "unigram"])
def test_large_alphabet_without_spaces(tmp_path: Path, kind: str) -> None:
    """As in Chinese, the most frequent characters fill the vocabulary; others are unknown."""
    letters = [chr(0x4E00 + i) for i in range(2000)]
    text = "".join(letters[min(1999, 2000 * i * i // 10**8)] for i in range(10_000))
    (tmp_path / "a.txt").write_text("\n\n".join(text[i : i + 60] for i in range(0, 9999, 60)))
    tokenizer, _ = train_tokenizer([tmp_path / "a.txt"], kind=kind, vocab_size=600)
    assert len(tokenizer) == 600
    assert tokenizer.pieces(letters[0])[-1].known


def test_invalid_options(sample: Path) -> None:
    with pytest.raises(UsageError, match="at least 257"):
        train_tokenizer([sample], kind="bpe", vocab_size=100)
    with pytest.raises(UsageError, match="5 special tokens and 100 sentinels"):
        train_tokenizer([sample], kind="wordpiece", vocab_size=105, sentinels=100)
    with pytest.raises(UsageError, match=r"`kind` words .*wordpiece, bpe"):
        train_tokenizer([sample], kind="words", vocab_size=100)


def test_loading_invalid_tokenizers(tmp_path: Path, sample: Path) -> None:
    with pytest.raises(InputError, match="nosuch"):
        load_tokenizer(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_fertility_and_unknown_rate_by_hand() -> None:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "cards": 3}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    coverage = Tokenizer(backend, {"unk_token": "[UNK]"}).coverage(["playing cards", "☃"])
    assert (coverage.words, coverage.tokens, coverage.unknown) == (3, 4, 1)
    assert coverage.fertility == 4 / 3
    assert coverage.unknown_rate == 1 / 4


LOW = "low " * 5 + "lower " * 2 + "newest " * 6 + "widest " * 3  # Sennrich et al. 2016
HUG = "hug " * 10 + "pug " * 5 + "pun " * 12 + "bun " * 4 + "hugs " * 5  # Hugging Face's course


def traced(text: str, kind: str, size: int) -> tuple[Tokenizer, list[Any]]:
    steps: list[Any] = []
    tokenizer, _ = train_tokenizer(
        [text], kind=kind, vocab_size=size, trace=steps.append, workers=1
    )
    return tokenizer, steps


def test_the_trace_of_the_lectures_example() -> None:
    """Counted by hand: newest and widest contain "es" 6 + 3 times, low and lower "lo" 5 + 2."""
    tokenizer, steps = traced(LOW, "bpe-word", 28)
    assert [(s.left, s.right, s.count) for s in steps[:3]] == [
        ("e", "s", 9),
        ("es", "t</w>", 9),
        ("l", "o", 7),
    ]
    learned = json.loads(tokenizer.to_json())["model"]["merges"]
    assert [[s.left, s.right] for s in steps] == learned
    assert [s.token for s in steps] == ["".join(pair) for pair in learned]


def test_the_trace_of_wordpiece_has_its_score() -> None:
    """The course counts "##u" 36 times, "##g" 20 times and the pair 20 times: a score of 1/36."""
    _, steps = traced(HUG, "wordpiece", 18)
    assert astuple(steps[0])[2:] == ("##ug", 20, 36, 20)
    assert steps[0].score == pytest.approx(1 / 36)


def test_the_trace_of_unigram_is_that_of_the_training() -> None:
    tokenizer, rounds = traced(SAMPLE, "unigram", 60)
    sizes = [one.pieces for one in rounds]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 1.1 * 60 < sizes[0]
    same, _ = train_tokenizer([SAMPLE], kind="unigram", vocab_size=60, workers=1)
    assert tokenizer.to_json() == same.to_json()
    assert traced(SAMPLE, "char", 30)[1] == []


def test_trace_on_the_command_line(firth_here: Callable[..., Result]) -> None:
    Path("hug.txt").write_text(HUG)
    train = "tokenizer", "train", "hug.txt", "--workers", 1, "--trace", "--out", "out"
    pieces = firth_here(*train, "--kind", "wordpiece", "--vocab-size", 18, "--trace-steps", 2)
    assert pieces.returncode == 0, pieces.stderr
    for expected in ("##u + ##g", "0.0278", "3 more"):
        assert expected in pieces.stdout
    options = "--kind", "bpe", "--vocab-size", 260, "--overwrite"
    (first, *_) = firth_here(*train, *options, "--json").json["trace"]
    assert (first["step"], first["token"], first["count"]) == (1, "ug", 20)
    assert (
        "no merges" in firth_here(*train, "--kind", "char", *options[2:3], 11, "--overwrite").stdout
    )


# ---- words


def test_words_are_split_as_in_the_treebank() -> None:
    text = "Mr. O'Neil didn't pay $3.50 (or 1,000), it’s well-known; can't 3rd naïve."
    tokenizer, _ = train_tokenizer([text], kind="word", min_frequency=1)
    expected = (
        "Mr . O ' Neil did n't pay $ 3.50 ( or 1,000 ) , it ’s well - known ; ca n't 3rd naïve ."
    )
    assert [piece.token for piece in tokenizer.pieces(text)] == expected.split()
    assert tokenizer.decode(tokenizer.encode(text)) == expected
    assert tokenizer.kind == "word"
    pair = tokenizer.backend.encode("did", "or")
    assert pair.tokens == ["did", "</s>", "or"]


def test_the_most_frequent_words_come_first_and_rare_ones_are_unknown() -> None:
    texts = ["The dog saw the cat.", "the cat saw a Dog <mask>"]
    tokenizer, _ = train_tokenizer(texts, kind="word", lowercase=True)
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "the", "cat", "dog", "saw"]
    assert [tokenizer.backend.id_to_token(i) for i in range(len(tokenizer))] == words
    assert [p.token for p in tokenizer.pieces("The Zebra saw.")] == ["the", "<unk>", "saw", "<unk>"]
    shorter, _ = train_tokenizer(texts, kind="word", lowercase=True, vocab_size=7)
    assert [shorter.backend.id_to_token(i) for i in (5, 6)] == ["the", "cat"]
    assert tokenizer.special_ids == {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": 4}


def test_only_words_need_no_vocabulary_size() -> None:
    with pytest.raises(UsageError, match="vocab_size"):
        train_tokenizer(["a b"], kind="char")
    with pytest.raises(InputError, match="min_frequency"):
        train_tokenizer(["a b c"], kind="word")
