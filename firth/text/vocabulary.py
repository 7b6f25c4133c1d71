"""Learning a vocabulary: each family's tokenizer, from word counts.

A kind is a row of data: how text is normalised and cut into words, what is learned from the counts,
and which special tokens its family has. The counts come first (`counting.py`), so memory is bounded
and the result is the same every time.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from firth.errors import InputError, Misuse, storage_errors
from firth.text.corpus import Corpus, Report
from firth.text.counting import Progress, count_words, frequent
from firth.text.merges import Learned, Recipe, learn_merges
from firth.text.readers import Reading
from firth.text.tokenizer import SENTINEL, Tokenizer

UNIGRAM_SAMPLE = 4_000_000  # words that the library's Unigram trainer is given at most


@dataclass(frozen=True)
class Specials:
    """A family's special tokens by role, and how it puts them around one text and a pair."""

    roles: dict[str, str]
    single: str
    pair: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """Each token once, in the order of their ids."""
        return tuple(dict.fromkeys(self.roles.values()))


SPECIALS = {
    # Devlin et al. 2019
    "bert": Specials(
        dict(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]"),
        "[CLS] $A [SEP]",
        "[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    # Liu et al. 2019; BART has the same
    "roberta": Specials(
        dict(bos="<s>", pad="<pad>", eos="</s>", unk="<unk>", mask="<mask>", cls="<s>", sep="</s>"),
        "<s> $A </s>",
        "<s> $A </s> </s> $B </s>",
    ),
    # Radford et al. 2018, section 3.3: start, delimiter and end tokens
    "gpt1": Specials(dict(unk="<unk>", bos="<s>", sep="<$>", eos="<e>"), "$A", "$A $B"),
    # Radford et al. 2019
    "gpt2": Specials(dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"), "$A", "$A $B"),
    # Raffel et al. 2020
    "t5": Specials(dict(pad="<pad>", eos="</s>", unk="<unk>"), "$A </s>", "$A </s> $B </s>"),
    # Peters et al. 2018; with a mask, so that characters too can be hidden
    "elmo": Specials(
        dict(pad="<PAD>", unk="<UNK>", bos="<S>", eos="</S>", mask="<MASK>"),
        "<S> $A </S>",
        "<S> $A </S> $B </S>",
    ),
}


@dataclass(frozen=True)
class Lesson:
    """What there is to learn from, and what is to come out."""

    words: Sequence[str]
    counts: Sequence[int]
    size: int  # without sentinels
    min_frequency: int
    specials: tuple[str, ...]
    unknown: str
    progress: Progress

    def recipe(self, **changes: Any) -> Recipe:
        return Recipe(
            size=self.size, min_frequency=self.min_frequency, specials=self.specials, **changes
        )


def _learn_wordpiece(lesson: Lesson) -> models.Model:
    learned = _learn_marked(lesson, prefix="##")
    ids = {token: i for i, token in enumerate(learned.tokens)}
    return models.WordPiece(ids, unk_token=lesson.unknown, max_input_chars_per_word=100)


def _learn_bpe(lesson: Lesson) -> models.Model:
    alphabet = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
    learned = learn_merges(
        lesson.words, lesson.counts, lesson.recipe(alphabet=alphabet), _merging(lesson)
    )
    return models.BPE({token: i for i, token in enumerate(learned.tokens)}, learned.merges)


def _learn_bpe_word(lesson: Lesson) -> models.Model:
    learned = _learn_marked(lesson, suffix="</w>")
    ids = {token: i for i, token in enumerate(learned.tokens)}
    return models.BPE(ids, learned.merges, unk_token=lesson.unknown, end_of_word_suffix="</w>")


def _learn_marked(lesson: Lesson, **mark: str) -> Learned:
    """Learn merges of characters that may need two tokens each, such as `a` and `##a`.

    At most two thirds of the vocabulary are single characters, the most frequent ones, unless
    there is not enough else to fill it: Chinese has few merges and many characters.
    """
    alphabet = len(set().union(*lesson.words))
    limit = max(1, (lesson.size - len(lesson.specials)) // 3)
    while True:
        recipe = lesson.recipe(max_alphabet=limit, **mark)
        learned = learn_merges(lesson.words, lesson.counts, recipe, _merging(lesson))
        missing = lesson.size - len(learned.tokens)
        if missing <= 0 or limit >= alphabet:
            return learned
        limit += max(1, missing // 2)


def _merging(lesson: Lesson) -> Callable[[int, int], None]:
    return lambda done, total: lesson.progress("learning merges", done, total)


def _learn_unigram(lesson: Lesson) -> models.Model:
    """Kudo (2018), by the library's trainer, on a sample in proportion to the counts."""
    lesson.progress("learning pieces", 0, 1)
    letters: Counter[str] = Counter()
    for word, times in zip(lesson.words, lesson.counts, strict=True):
        for letter in word:
            letters[letter] += times
    ranked = sorted(letters, key=lambda letter: (-letters[letter], letter))
    room = lesson.size - len(lesson.specials)
    limit = max(1, room // 2)  # single characters, or more if nothing else fills the vocabulary
    while True:
        pieces = _unigram_pieces(lesson, set(ranked[:limit]))
        missing = lesson.size - len(pieces)
        if missing <= 0 or limit >= min(room, len(ranked)):
            break
        limit = min(room, limit + missing)
    unknown = lesson.specials.index(lesson.unknown)
    return models.Unigram(_settled(pieces, lesson.specials), unknown, byte_fallback=False)


def _unigram_pieces(lesson: Lesson, letters: set[str]) -> list[list[Any]]:
    """Pieces made of these letters, each with its score."""
    scratch = tokenizers.Tokenizer(models.Unigram())
    scratch.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.UnigramTrainer(
        vocab_size=lesson.size,
        special_tokens=list(lesson.specials),
        unk_token=lesson.unknown,
        show_progress=False,
    )
    try:
        scratch.train_from_iterator(_sample(lesson.words, lesson.counts, letters), trainer)
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"No Unigram vocabulary can be learned here: {error}.") from error
    pieces: list[list[Any]] = json.loads(scratch.to_str())["model"]["vocab"]
    return pieces


def _sample(words: Sequence[str], counts: Sequence[int], letters: set[str]) -> Iterator[str]:
    """Every word as often as it should stand in a sample of at most UNIGRAM_SAMPLE words.

    Systematic sampling: along the cumulated counts, every so-many-th word is taken. Words lose
    all other letters than these.
    """
    total = np.cumsum(np.asarray(counts, dtype=np.int64))
    taken = np.floor(total * min(1.0, UNIGRAM_SAMPLE / max(1, total[-1]))).astype(np.int64)
    for word, times in zip(words, np.diff(taken, prepend=0).tolist(), strict=True):
        if times and (spelt := "".join(letter for letter in word if letter in letters)):
            yield " ".join([spelt] * times)


def _settled(pieces: list[list[Any]], specials: Sequence[str]) -> list[tuple[str, float]]:
    """The same pieces and scores whichever way the library's hash tables happened to fall.

    Sums in another order differ in their last digits, and characters that won no place of their own
    get the lowest score plus a small step each, in a random order.
    """
    learned = {piece: round(score, 6) for piece, score in pieces if piece not in specials}
    lowest = min(learned.values(), default=0.0)
    steps = {
        piece: score
        for piece, score in learned.items()
        if len(piece) == 1 and abs(((score - lowest) * 1e4 + 0.5) % 1 - 0.5) < 0.1
    }
    learned.update(zip(sorted(steps), sorted(steps.values()), strict=True))
    ranked = sorted(learned.items(), key=lambda item: (-item[1], item[0]))
    return [(token, 0.0) for token in specials] + ranked


def _learn_characters(lesson: Lesson) -> models.Model:
    """The most frequent characters."""
    pairs = zip(lesson.counts, lesson.words, strict=True)
    ranked = [word for _, word in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))]
    tokens = [*lesson.specials, *ranked][: lesson.size]
    return models.WordLevel({token: i for i, token in enumerate(tokens)}, lesson.unknown)


def _bert_normalizer(lowercase: bool) -> normalizers.Normalizer:
    bert = normalizers.BertNormalizer(lowercase=lowercase)  # lower case goes without accents
    return bert if lowercase else normalizers.Sequence([bert, normalizers.NFC()])


def _composed(lowercase: bool) -> normalizers.Normalizer:
    """Accents stay with their letters, as in cleaned text (and in GPT-NeoX's and Qwen's BPE)."""
    composed = normalizers.NFC()
    return normalizers.Sequence([composed, normalizers.Lowercase()]) if lowercase else composed


def _unigram_normalizer(lowercase: bool) -> normalizers.Normalizer:
    steps = [normalizers.Nmt(), normalizers.NFKC()]
    return normalizers.Sequence(steps + [normalizers.Lowercase()] * lowercase)


@dataclass(frozen=True)
class Kind:
    """A way to make tokens of text."""

    about: str
    specials: str
    normalizer: Callable[[bool], normalizers.Normalizer]
    pre_tokenizer: pre_tokenizers.PreTokenizer
    learn: Callable[[Lesson], models.Model]
    decoder: decoders.Decoder


KINDS = {
    "wordpiece": Kind(
        "BERT: pieces of words, ## inside a word",
        "bert",
        _bert_normalizer,
        pre_tokenizers.BertPreTokenizer(),
        _learn_wordpiece,
        decoders.WordPiece(prefix="##"),
    ),
    "bpe": Kind(
        "GPT-2: merges of bytes, nothing is unknown",
        "gpt2",
        _composed,
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        _learn_bpe,
        decoders.ByteLevel(),
    ),
    "bpe-word": Kind(
        "Sennrich and GPT-1: merges of characters, </w> at a word's end",
        "gpt1",
        _bert_normalizer,
        pre_tokenizers.BertPreTokenizer(),
        _learn_bpe_word,
        decoders.BPEDecoder(suffix="</w>"),
    ),
    "unigram": Kind(
        "T5: the most probable pieces, ▁ before a word",
        "t5",
        _unigram_normalizer,
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        _learn_unigram,
        decoders.Metaspace(),
    ),
    "char": Kind(
        "ELMo: single characters",
        "elmo",
        _composed,
        pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated"),
        _learn_characters,
        decoders.Fuse(),
    ),
}


def train_tokenizer(
    paths: Sequence[str | Path],
    *,
    kind: str,
    vocab_size: int,
    lowercase: bool = False,
    min_frequency: int = 2,
    specials: str | None = None,
    sentinels: int = 0,
    reading: Reading = Reading(),
    clean: bool = True,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Tokenizer, Report]:
    """Train a tokenizer on text; `vocab_size` counts everything, special tokens and sentinels too.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "text.txt")
    >>> _ = path.write_text("low low low low low lower lower " + "newest " * 6 + "widest " * 3)
    >>> tokenizer, report = train_tokenizer([path], kind="bpe-word", vocab_size=30)
    >>> [piece.token for piece in tokenizer.pieces("lowest")]
    ['lo', 'w', 'est</w>']
    """
    row = _row(KINDS, "--kind", kind)
    family = _row(SPECIALS, "--specials", specials or row.specials)
    size = vocab_size - sentinels
    if size <= len(family.tokens) or sentinels < 0 or min_frequency < 0:
        raise Misuse(
            f"A vocabulary of {vocab_size} has no room beside {len(family.tokens)} special tokens "
            f"and {sentinels} sentinels; raise --vocab-size."
        )
    backend = tokenizers.Tokenizer(models.WordLevel({}, ""))
    backend.normalizer = row.normalizer(lowercase)
    backend.pre_tokenizer = row.pre_tokenizer
    corpus = Corpus(paths, reading, clean=clean)
    with tempfile.TemporaryDirectory(prefix="firth-") as folder:
        scratch = Path(folder)
        with storage_errors(scratch, "Set TMPDIR to a place with more room."):
            counts, report = count_words(corpus, backend, scratch, workers, progress)
            words, times, least = frequent(counts)
    if least > 1:
        report.repaired[f"words seen fewer than {least} times not learned from"] += 1
    unknown = family.roles["unk"]
    lesson = Lesson(words, times, size, min_frequency, family.tokens, unknown, progress)
    backend.model = row.learn(lesson)
    backend.decoder = row.decoder
    _check_size(backend.get_vocab_size() + sentinels, vocab_size)
    return _finished(backend, family, sentinels), report


def _row(table: dict[str, Any], option: str, name: str) -> Any:
    if name not in table:
        raise Misuse(f"{option} {name} is not known; there are {', '.join(table)}.")
    return table[name]


def _check_size(size: int, wanted: int) -> None:
    if size < wanted:
        raise InputError(
            f"This text supports a vocabulary of {size:,} tokens, not of {wanted:,}: "
            "lower --vocab-size, or give more text."
        )
    if size > wanted:
        raise Misuse(
            f"A vocabulary of {wanted:,} is too small for the alphabet alone; "
            f"--vocab-size must be at least {size:,}."
        )


def _finished(backend: tokenizers.Tokenizer, family: Specials, sentinels: int) -> Tokenizer:
    """Add what stands around the learned vocabulary: special tokens, sentinels, templates."""
    backend.add_special_tokens([_special(token) for token in family.tokens])
    # As T5 numbers them: the first sentinel has the last id.
    extra = [SENTINEL.format(i) for i in reversed(range(sentinels))]
    backend.add_special_tokens([_special(token) for token in extra])
    surround(backend, family)
    return Tokenizer(backend, described(family, extra[::-1]))


def surround(backend: tokenizers.Tokenizer, family: Specials) -> None:
    """Have the special tokens put around a text that its family puts there."""
    if family.single != "$A":
        places = [place.partition(":")[0] for place in f"{family.single} {family.pair}".split()]
        named = (place for place in places if not place.startswith("$"))
        tokens = dict.fromkeys([*family.tokens, *named])
        backend.post_processor = processors.TemplateProcessing(
            single=family.single,
            pair=family.pair,
            special_tokens=[(token, backend.token_to_id(token)) for token in tokens],
        )


def described(family: Specials, extra: Sequence[str]) -> dict[str, Any]:
    """What `tokenizer_config.json` says; `extra` are special tokens without a role."""
    segments = ["token_type_ids"] if ":1" in family.pair else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": token for role, token in family.roles.items()},
        **({"additional_special_tokens": list(extra)} if extra else {}),
    }


def _special(token: str) -> tokenizers.AddedToken:
    # A mask takes the space before it along, as RoBERTa's does: `a <mask>` is two tokens.
    return tokenizers.AddedToken(token, special=True, lstrip=token == "<mask>")
