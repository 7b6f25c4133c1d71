"""Train a tokenizer of any kind (WordPiece, BPE, Unigram, characters, words) from word counts.

`KINDS` defines for each kind how text is normalized and split into words, how the vocabulary is
trained and which special tokens it has. Training uses word counts (`counting.py`), so memory is
bounded and the result deterministic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from firth.data.corpus import Corpus, CorpusReport
from firth.data.memory import Data
from firth.data.mixture import check_alpha
from firth.data.readers import ReadOptions
from firth.tokenizers.bpe import BpeConfig, BpeModel, MergeStep, learn_merges
from firth.tokenizers.counting import Progress, count_words, most_frequent_words
from firth.tokenizers.ray_counting import count_parts
from firth.tokenizers.tokenizer import SENTINEL, Tokenizer
from firth.tokenizers.unigram import PruningRound, train_unigram
from firth.utils.arguments import check_arguments
from firth.utils.errors import InputError, UsageError, storage_errors
from firth.utils.notebook import show_progress
from firth.utils.ray_tasks import check_engine

Trace = Callable[[MergeStep | PruningRound], None]  # called with each step of a training


@dataclass(frozen=True)
class SpecialTokens:
    """A family's special tokens by role, and its templates for one text and a pair of texts."""

    roles: dict[str, str]
    single: str
    pair: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """The distinct tokens in the order of their ids."""
        return tuple(dict.fromkeys(self.roles.values()))


SPECIALS = {
    # Devlin et al. 2019
    "bert": SpecialTokens(
        dict(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]"),
        "[CLS] $A [SEP]",
        "[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    # Liu et al. 2019; BART has the same
    "roberta": SpecialTokens(
        dict(bos="<s>", pad="<pad>", eos="</s>", unk="<unk>", mask="<mask>", cls="<s>", sep="</s>"),
        "<s> $A </s>",
        "<s> $A </s> </s> $B </s>",
    ),
    # Radford et al. 2018, section 3.3: start, delimiter and end tokens
    "gpt1": SpecialTokens(dict(unk="<unk>", bos="<s>", sep="<$>", eos="<e>"), "$A", "$A $B"),
    # Radford et al. 2019
    "gpt2": SpecialTokens(dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"), "$A", "$A $B"),
    # Raffel et al. 2020
    "t5": SpecialTokens(dict(pad="<pad>", eos="</s>", unk="<unk>"), "$A </s>", "$A </s> $B </s>"),
    # Peters et al. 2018; with a mask, for masked language models of characters
    "elmo": SpecialTokens(
        dict(pad="<PAD>", unk="<UNK>", bos="<S>", eos="</S>", mask="<MASK>"),
        "<S> $A </S>",
        "<S> $A </S> $B </S>",
    ),
    # Word-level models have no special tokens around a text; language models add <s> and </s>.
    "word": SpecialTokens(
        dict(pad="<pad>", unk="<unk>", bos="<s>", eos="</s>", mask="<mask>"), "$A", "$A </s> $B"
    ),
}

# The words of `--kind word`: letters and digits, each punctuation mark alone. As in the Penn
# Treebank (and GloVe's vocabulary), a decimal number is one word, and don't is two: do n't.
WORD = r"(?i)\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|m|d|re|ve|ll)\b|\d+(?:[.,]\d+)+\b|\w+|[^\w\s]"


@dataclass(frozen=True)
class TrainingInput:
    """Word counts, and the options of the vocabulary to train."""

    words: Sequence[str]
    counts: Sequence[int]
    size: int  # without sentinels
    min_frequency: int
    specials: tuple[str, ...]
    unknown: str
    progress: Progress
    trace: Trace | None = None

    def learn(self, **options: Any) -> BpeModel:
        """Learn BPE merges; `options` are fields of BpeConfig."""
        shared: dict[str, Any] = dict(
            size=self.size, min_frequency=self.min_frequency, specials=self.specials
        )
        progress = partial(self.progress, "learning merges")
        return learn_merges(self.words, self.counts, BpeConfig(**shared, **options), progress)

    def report(self, learned: BpeModel) -> None:
        """Call `trace` with each merge."""
        if self.trace is not None:
            for step in learned.steps:
                self.trace(step)


def _learn_wordpiece(data: TrainingInput) -> models.Model:
    learned = _learn_marked(data, prefix="##")
    data.report(learned)
    return models.WordPiece(learned.ids, unk_token=data.unknown, max_input_chars_per_word=100)


def _learn_bpe(data: TrainingInput) -> models.Model:
    learned = data.learn(alphabet="".join(sorted(pre_tokenizers.ByteLevel.alphabet())))
    data.report(learned)
    return models.BPE(learned.ids, learned.merges)


def _learn_bpe_word(data: TrainingInput) -> models.Model:
    bpe = _learn_marked(data, suffix="</w>")
    data.report(bpe)
    return models.BPE(bpe.ids, bpe.merges, unk_token=data.unknown, end_of_word_suffix="</w>")


def _learn_marked(data: TrainingInput, **mark: str) -> BpeModel:
    """Learn merges where a character may need two tokens, such as `a` and `##a`.

    At most two thirds of the vocabulary are single characters, the most frequent ones, unless there
    are too few merges to fill it, as in Chinese.
    """
    alphabet = len(set().union(*data.words))
    limit = max(1, (data.size - len(data.specials)) // 3)
    while True:
        learned = data.learn(max_alphabet=limit, **mark)
        missing = data.size - len(learned.tokens)
        if missing <= 0 or limit >= alphabet:
            return learned
        limit += max(1, missing // 2)


def _learn_unigram(data: TrainingInput) -> models.Model:
    data.progress("learning pieces", 0, 1)
    return train_unigram(
        data.words, data.counts, data.size, data.specials, data.unknown, data.trace
    )


def _learn_characters(data: TrainingInput) -> models.Model:
    """Take the most frequent characters."""
    return _most_frequent(data, min_frequency=1)


def _learn_words(data: TrainingInput) -> models.Model:
    """Take the most frequent words that occur at least `min_frequency` times."""
    return _most_frequent(data, data.min_frequency)


def _most_frequent(data: TrainingInput, min_frequency: int) -> models.Model:
    pairs = zip(data.counts, data.words, strict=True)
    ranked = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    frequent = (word for count, word in ranked if count >= min_frequency)
    tokens = [*data.specials, *(word for word in frequent if word not in data.specials)]
    ids = {token: i for i, token in enumerate(tokens[: data.size])}
    return models.WordLevel(ids, data.unknown)


def _bert_normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    return bert if strip_accents else normalizers.Sequence([bert, normalizers.NFC()])


def _nfc_normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """Compose accents and letters, as in cleaned text (and in GPT-NeoX's and Qwen's BPE)."""
    steps = [normalizers.NFD(), normalizers.StripAccents()] * strip_accents + [normalizers.NFC()]
    steps += [normalizers.Lowercase()] * lowercase
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)


def _unigram_normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    steps = [normalizers.Nmt(), *[normalizers.NFKD(), normalizers.StripAccents()] * strip_accents]
    return normalizers.Sequence(
        [*steps, normalizers.NFKC(), *[normalizers.Lowercase()] * lowercase]
    )


@dataclass(frozen=True)
class TokenizerKind:
    """A kind of tokenizer."""

    about: str
    specials: str
    normalizer: Callable[[bool, bool], normalizers.Normalizer]  # of lowercase, strip_accents
    pre_tokenizer: pre_tokenizers.PreTokenizer
    learn: Callable[[TrainingInput], models.Model]
    decoder: decoders.Decoder | None  # None: tokens are joined with spaces
    max_size: int | None = None  # default of `vocab_size`, which then is only a maximum


KINDS = {
    "wordpiece": TokenizerKind(
        "BERT: word pieces, ## inside a word",
        "bert",
        _bert_normalizer,
        pre_tokenizers.BertPreTokenizer(),
        _learn_wordpiece,
        decoders.WordPiece(prefix="##"),
    ),
    "bpe": TokenizerKind(
        "GPT-2: byte-level BPE, no unknown tokens",
        "gpt2",
        _nfc_normalizer,
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        _learn_bpe,
        decoders.ByteLevel(),
    ),
    "bpe-word": TokenizerKind(
        "Sennrich and GPT-1: character-level BPE, </w> at the end of a word",
        "gpt1",
        _bert_normalizer,
        pre_tokenizers.BertPreTokenizer(),
        _learn_bpe_word,
        decoders.BPEDecoder(suffix="</w>"),
    ),
    "unigram": TokenizerKind(
        "T5: Unigram language model, ▁ before a word",
        "t5",
        _unigram_normalizer,
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        _learn_unigram,
        decoders.Metaspace(),
    ),
    "char": TokenizerKind(
        "ELMo: single characters",
        "elmo",
        _nfc_normalizer,
        pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated"),
        _learn_characters,
        decoders.Fuse(),
    ),
    "word": TokenizerKind(
        "word2vec, n-grams: whole words, <unk> for rare ones",
        "word",
        _bert_normalizer,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.WhitespaceSplit(),
                pre_tokenizers.Split(tokenizers.Regex(WORD), "isolated"),
            ]
        ),
        _learn_words,
        None,
        max_size=1_000_000,
    ),
}


@check_arguments
def train_tokenizer(
    paths: Data,
    *,
    kind: str,
    vocab_size: int | None = None,
    lowercase: bool = False,
    strip_accents: bool = False,
    add_prefix_space: bool = False,
    min_frequency: int = 2,
    specials: str | None = None,
    sentinels: int = 0,
    mixture_alpha: float | None = None,
    reading: ReadOptions = ReadOptions(),
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    clean: bool = True,
    engine: str = "local",
    workers: int | None = None,
    trace: Trace | None = None,
    progress: Progress = show_progress,
) -> tuple[Tokenizer, CorpusReport]:
    """Train a tokenizer; `vocab_size` includes special tokens and sentinels.

    For `kind="word"`, `vocab_size` is an optional maximum (default: 1,000,000): the vocabulary is
    all words that occur at least `min_frequency` times.

    `paths` are files, folders and globs, or in memory a list of texts or rows, or a table with a
    text `column`; `reading` has more options. BERT's uncased tokenizers have `lowercase` and
    `strip_accents`; without the second, accents and tone marks are kept. With `add_prefix_space`
    (`kind="bpe"`), a text is encoded with a space before it, so that its first word is the same
    token as inside a text. `paths` that map names of sources to their files may be balanced with
    `mixture_alpha`, as in `pretrain`. Bad rows are skipped and noted in the report; with `strict`,
    they are an error. `engine="ray"` counts words on a Ray cluster. `trace` is called with each
    step of the training: a merge (`MergeStep`), or a round of pruning (Unigram).

    >>> texts = ["low low low low low lower lower " + "newest " * 6 + "widest " * 3]
    >>> tokenizer, report = train_tokenizer(texts, kind="bpe-word", vocab_size=30)
    >>> [piece.token for piece in tokenizer.pieces("lowest")]
    ['lo', 'w', 'est</w>']

    >>> words, _ = train_tokenizer(["A bat flew.", "A bat didn't."], kind="word", lowercase=True)
    >>> [piece.token for piece in words.pieces("The bat flew.")]
    ['<unk>', 'bat', '<unk>', '.']
    >>> words.decode(words.encode("A bat."))
    'a bat .'
    """
    recipe: TokenizerKind = _lookup(KINDS, "--kind", kind)
    check_engine(engine)
    family: SpecialTokens = _lookup(SPECIALS, "--specials", specials or recipe.specials)
    if add_prefix_space and kind != "bpe":
        raise UsageError("--add-prefix-space is for --kind bpe.")
    vocab_size = _vocab_size(vocab_size, kind, recipe)
    size = vocab_size - sentinels
    if size <= len(family.tokens) or sentinels < 0 or min_frequency < 0:
        raise UsageError(
            f"A vocabulary of {vocab_size} is too small for {len(family.tokens)} special tokens "
            f"and {sentinels} sentinels; raise --vocab-size."
        )
    backend = tokenizers.Tokenizer(models.WordLevel({}, ""))
    backend.normalizer = recipe.normalizer(lowercase, strip_accents)
    backend.pre_tokenizer = recipe.pre_tokenizer
    reading = reading.updated(column=column, format=format, strict=strict)
    corpus = Corpus(paths, reading, clean=clean)
    if mixture_alpha is not None:
        check_alpha(mixture_alpha)
        if not corpus.source_names:
            raise UsageError("--mixture-alpha needs named sources: en=PATH ha=PATH.")
    with tempfile.TemporaryDirectory(prefix="firth-") as folder:
        scratch = Path(folder)
        with storage_errors(scratch, "Set TMPDIR to a directory with more free space."):
            counted = count_parts(corpus, progress) if engine == "ray" else None
            counts, report = count_words(
                corpus, backend, scratch, workers, progress, mixture_alpha, counted
            )
            words, times, min_count = most_frequent_words(counts)
    if min_count > 1:
        report.repaired[f"words with fewer than {min_count} occurrences ignored"] += 1
    unknown = family.roles["unk"]
    data = TrainingInput(words, times, size, min_frequency, family.tokens, unknown, progress, trace)
    backend.model = recipe.learn(data)
    if recipe.decoder is not None:
        backend.decoder = recipe.decoder
    if add_prefix_space:  # words are counted without it: inside a text it changes nothing
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    if recipe.max_size is None:
        _check_size(backend.get_vocab_size() + sentinels, vocab_size)
    elif backend.get_vocab_size() == len(family.tokens):
        raise InputError(
            f"No word of this text occurs {min_frequency} times; lower --min-frequency, or use "
            "more text."
        )
    tokenizer = add_special_tokens(backend, family, sentinels)
    if add_prefix_space:
        tokenizer.config["add_prefix_space"] = True  # transformers would turn it off otherwise
    return tokenizer, report


def _lookup(registry: dict[str, Any], option: str, name: str) -> Any:
    if name not in registry:
        raise UsageError(f"{option} {name} is unknown; choose one of {', '.join(registry)}.")
    return registry[name]


def _vocab_size(wanted: int | None, kind: str, recipe: TokenizerKind) -> int:
    """Return the vocabulary size, or the kind's default; most kinds have none."""
    size = wanted if wanted is not None else recipe.max_size
    if size is None:
        raise UsageError(f"--kind {kind} needs a vocabulary size: add --vocab-size.")
    return size


def _check_size(size: int, wanted: int) -> None:
    if size < wanted:
        raise InputError(
            f"This text is too small for a vocabulary of {wanted:,} tokens: it gives {size:,}; "
            "lower --vocab-size, or use more text."
        )
    if size > wanted:
        raise UsageError(
            f"A vocabulary of {wanted:,} is too small for the alphabet; "
            f"--vocab-size must be at least {size:,}."
        )


def add_special_tokens(
    backend: tokenizers.Tokenizer, family: SpecialTokens, sentinels: int = 0
) -> Tokenizer:
    """Add special tokens, sentinels and templates."""
    backend.add_special_tokens([_special(token) for token in family.tokens])
    # As in T5, the first sentinel has the last id.
    extra = [SENTINEL.format(i) for i in reversed(range(sentinels))]
    backend.add_special_tokens([_special(token) for token in extra])
    set_template(backend, family)
    return Tokenizer(backend, tokenizer_config(family, extra[::-1]))


def set_template(backend: tokenizers.Tokenizer, family: SpecialTokens) -> None:
    """Set the post-processor that adds the family's special tokens around a text."""
    if (family.single, family.pair) != ("$A", "$A $B"):
        parts = [part.partition(":")[0] for part in f"{family.single} {family.pair}".split()]
        named = (part for part in parts if not part.startswith("$"))
        tokens = dict.fromkeys([*family.tokens, *named])
        backend.post_processor = processors.TemplateProcessing(
            single=family.single,
            pair=family.pair,
            special_tokens=[(token, backend.token_to_id(token)) for token in tokens],
        )


def tokenizer_config(family: SpecialTokens, extra: Sequence[str]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`; `extra` are special tokens without a role."""
    segments = ["token_type_ids"] if ":1" in family.pair else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": token for role, token in family.roles.items()},
        **({"additional_special_tokens": list(extra)} if extra else {}),
    }


def _special(token: str) -> tokenizers.AddedToken:
    # As in RoBERTa, a mask includes the space before it: `a <mask>` is two tokens. So does a
    # sentinel, because the first token of the span that it replaces includes that space.
    with_space = token == "<mask>" or token.startswith(SENTINEL.partition("{")[0])
    return tokenizers.AddedToken(token, special=True, lstrip=with_space)
