"""Build a tokenizer from a vocabulary, one function for each family.

Each function sets up normalization, pre-tokenization, model and decoder, without special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from firth.formats.tokenizers.sentencepiece import NORMAL, SentencePieceModel, read_pieces
from firth.formats.tokenizers.vocab_files import (
    TokenizerSettings,
    read_ids,
    read_lines,
    read_merges,
)
from firth.tokenizers.tokenizer import SENTINEL
from firth.tokenizers.trainer import KINDS
from firth.utils.errors import InputError, MismatchError

MAX_SENTINELS = 10_000

# Letters, digits, punctuation, line ends, other white space (tiktoken's cl100k_base).
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_WORDS = WORDS % r"\p{N}"  # single digits (Bai et al. 2023)
# Liu et al. 2020, in the order of their ids.
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ "
    "ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()


@dataclass(frozen=True)
class VocabularySource:
    """The files and settings that a tokenizer is built from."""

    file: Path  # the vocabulary
    settings: TokenizerSettings
    usual: Mapping[str, str]  # the family's special tokens by role; empty: those of the file
    spaced: bool  # the mask token includes the space before it

    @cached_property
    def pieces(self) -> SentencePieceModel:
        """The content of the SentencePiece file."""
        return read_pieces(self.file)

    @cached_property
    def roles(self) -> dict[str, AddedToken]:
        """The special tokens by role: from the settings, else the family's."""
        usual = self.usual or {
            role: self.pieces.pieces[id].text for role, id in self.pieces.roles.items()
        }
        found: dict[str, AddedToken | None] = {
            role: AddedToken(token, special=True) for role, token in usual.items()
        }
        found |= self.settings.roles()
        explicit = isinstance(self.settings.values.get("mask_token"), dict)
        if (mask := found.get("mask")) and self.spaced and not explicit:
            found["mask"] = AddedToken(mask.content, special=True, lstrip=True)
        return {role: token for role, token in found.items() if token is not None}

    def token(self, role: str) -> str:
        """Return the special token of a required role."""
        if role not in self.roles:
            raise InputError(f"{self.file.parent} has no {role} token, which its family needs.")
        return self.roles[role].content


def wordpiece(source: VocabularySource) -> tokenizers.Tokenizer:
    """BERT: words, then greedy longest match, `##` inside a word."""
    ids = read_lines(source.file.parent / "vocab.txt")
    settings = source.settings
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=source.token("unk")))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.values.get("strip_accents"),
        lowercase=settings.flag("do_lower_case", True),
    )
    return _like("wordpiece", backend)


def _like(kind: str, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    backend.pre_tokenizer = KINDS[kind].pre_tokenizer
    backend.decoder = KINDS[kind].decoder
    return backend


def _pairs(source: VocabularySource, **options: Any) -> tokenizers.Tokenizer:
    ids = read_ids(source.file.parent / "vocab.json")
    merges = read_merges(source.file.parent / "merges.txt", ids)
    return tokenizers.Tokenizer(models.BPE(ids, merges, **options))


def byte_level(source: VocabularySource) -> tokenizers.Tokenizer:
    """GPT-2: byte-level BPE."""
    backend = _like("bpe", _pairs(source))
    space = source.settings.flag("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    return backend


def qwen(source: VocabularySource) -> tokenizers.Tokenizer:
    """Qwen: byte-level BPE with its own pre-tokenization."""
    backend = _like("bpe", _pairs(source))
    backend.normalizer = normalizers.NFC()
    space = source.settings.flag("add_prefix_space", False)
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spelt])
    return backend


def gpt1(source: VocabularySource) -> tokenizers.Tokenizer:
    """GPT-1: character-level BPE, `</w>` at the end of a word, lower case."""
    backend = _pairs(source, unk_token=source.token("unk"), end_of_word_suffix="</w>")
    backend.normalizer = KINDS["bpe-word"].normalizer(True, True)
    return _like("bpe-word", backend)


def _cut(
    pieces: SentencePieceModel,
    scored: Sequence[tuple[str, float]] = (),
    unknown: int | None = None,
    *,
    byte_fallback: bool = False,
) -> tokenizers.Tokenizer:
    """Build the model (Unigram or BPE) of a SentencePiece file, by default with its own pieces."""
    scored = scored or pieces.scored
    unknown = pieces.roles["unk"] if unknown is None else unknown
    if pieces.algorithm == "unigram":
        model: models.Model = models.Unigram(list(scored), unknown, byte_fallback)
    else:
        model = models.BPE(
            {text: id for id, (text, _) in enumerate(scored)},
            pieces.merges,
            unk_token=scored[unknown][0],
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    return tokenizers.Tokenizer(model)


def _normalized(backend: tokenizers.Tokenizer, *steps: Any, charsmap: bytes = b"") -> None:
    last = [normalizers.Precompiled(charsmap)] if charsmap else []
    if every := [*steps, *last]:
        backend.normalizer = normalizers.Sequence(every)


def _marked(backend: tokenizers.Tokenizer, *, prefix: str = "always", words: bool = True) -> None:
    """Replace spaces by ▁, with one before the first word; with `words`, first split at spaces."""
    first = [pre_tokenizers.WhitespaceSplit()] if words else []
    spaces = pre_tokenizers.Metaspace(prepend_scheme=prefix)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, spaces])
    backend.decoder = decoders.Metaspace(prepend_scheme=prefix)


def _prefix(source: VocabularySource, without: str = "never") -> str:
    return "always" if source.settings.flag("add_prefix_space", True) else without


def sentinels(source: VocabularySource) -> list[str]:
    """Return T5's sentinels in the order of their ids, the first sentinel last."""
    count = source.settings.values.get("extra_ids", 100)
    if not isinstance(count, int) or not 0 <= count <= MAX_SENTINELS:
        raise InputError(f"{source.file.parent}: extra_ids = {count!r} is not possible.")
    return [SENTINEL.format(i) for i in reversed(range(count))]


def t5(source: VocabularySource) -> tokenizers.Tokenizer:
    """T5: SentencePiece, followed by sentinels."""
    pieces = source.pieces
    extra = [(token, 0.0) for token in sentinels(source)]
    backend = _cut(pieces, pieces.scored + extra)
    _normalized(backend, charsmap=pieces.charsmap)
    _marked(backend)
    return backend


def _plain_quotes(source: VocabularySource, accents: bool, lowercase: bool) -> list[Any]:
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not source.settings.flag("keep_accents", accents):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if source.settings.flag("do_lower_case", lowercase):
        steps.append(normalizers.Lowercase())
    return steps


def albert(source: VocabularySource) -> tokenizers.Tokenizer:
    """ALBERT: SentencePiece, by default lower case without accents."""
    pieces = source.pieces
    backend = _cut(pieces)
    steps = _plain_quotes(source, accents=False, lowercase=True)
    _normalized(backend, *steps, charsmap=pieces.charsmap)
    _marked(backend, prefix=_prefix(source))
    return backend


def rembert(source: VocabularySource) -> tokenizers.Tokenizer:
    """RemBERT: SentencePiece, by default with case and accents."""
    pieces = source.pieces
    backend = _cut(pieces)
    quotes, rest = (steps := _plain_quotes(source, accents=True, lowercase=False))[:2], steps[2:]
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    _normalized(backend, *quotes, one_space, *rest, charsmap=pieces.charsmap)
    _marked(backend, prefix=_prefix(source), words=False)
    return backend


def deberta(source: VocabularySource) -> tokenizers.Tokenizer:
    """DeBERTa v2 and v3: SentencePiece without its own normalization."""
    pieces, settings = source.pieces, source.settings
    backend = _cut(pieces)
    lower = [normalizers.Lowercase()] if settings.flag("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    end = normalizers.Strip(left=False, right=True)
    _normalized(backend, *lower, spaces, normalizers.NFC(), end)
    _marked(backend, prefix=_prefix(source, "first"), words=False)
    if settings.flag("split_by_punct", False):
        signs = pre_tokenizers.Punctuation("isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([signs, backend.pre_tokenizer])
    return backend


def _fairseq(source: VocabularySource, languages: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """SentencePiece with fairseq's ids: four special tokens replace the file's first three."""
    pieces = source.pieces
    if any(piece.type == NORMAL for piece in pieces.pieces[:3]):
        raise MismatchError(
            f"{source.file}: the first three pieces should be special tokens, as in fairseq."
        )
    tokens = [source.token(role) for role in ("bos", "pad", "eos", "unk")]
    last = [*languages, source.token("mask")]
    scored = [(t, 0.0) for t in tokens] + pieces.scored[3:] + [(t, 0.0) for t in last]
    backend = _cut(pieces, scored, tokens.index(source.token("unk")))
    _marked(backend, prefix=_prefix(source))
    return backend


def xlm_roberta(source: VocabularySource) -> tokenizers.Tokenizer:
    """XLM-RoBERTa: SentencePiece with fairseq's ids."""
    backend = _fairseq(source)
    _normalized(backend, charsmap=source.pieces.charsmap)
    return backend


def mbart(source: VocabularySource) -> tokenizers.Tokenizer:
    """mBART: the same without normalization, and with a token for each language."""
    return _fairseq(source, MBART_LANGUAGES)


def byte_fallback_decoder(backend: tokenizers.Tokenizer, prefix: bool) -> tokenizers.Tokenizer:
    """Set a decoder for pieces with byte fallback."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", left=1)] * prefix)
    return backend


def llama(source: VocabularySource) -> tokenizers.Tokenizer:
    """Llama and Mistral: SentencePiece BPE with byte fallback."""
    pieces, settings = source.pieces, source.settings
    backend = _cut(pieces, byte_fallback=True)
    prefix = settings.flag("add_prefix_space", True)
    scheme = "always" if settings.flag("legacy", False) else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme if prefix else "never", split=False
    )
    return byte_fallback_decoder(backend, prefix)


def gemma(source: VocabularySource) -> tokenizers.Tokenizer:
    """Gemma: the same, with no space before the first word."""
    pieces = source.pieces
    backend = _cut(pieces, byte_fallback=True)
    backend.normalizer = normalizers.Replace(" ", "▁")
    return byte_fallback_decoder(backend, prefix=False)


def plain(source: VocabularySource) -> tokenizers.Tokenizer:
    """SentencePiece's own behaviour."""
    pieces = source.pieces
    backend = _cut(pieces, byte_fallback=pieces.byte_fallback)
    steps: list[Any] = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    if pieces.squeeze:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    steps += [normalizers.Prepend("▁")] if pieces.dummy_prefix else []
    _normalized(backend, *steps, normalizers.Replace(" ", "▁"))
    return byte_fallback_decoder(backend, pieces.dummy_prefix)
