"""From a vocabulary to a tokenizer, as each family does it.

Each function here makes what one family's tokenizer does to a text before special tokens come in:
how it is normalised, cut into words, cut into tokens, and put together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from firth.errors import InputError, MismatchError
from firth.text.sentencepiece import NORMAL, PieceModel, read_pieces
from firth.text.tokenizer import SENTINEL
from firth.text.tokenizer_files import Settings, read_ids, read_lines, read_merges
from firth.text.vocabulary import KINDS

MOST_SENTINELS = 10_000

# Letters, digits one by one, signs, line ends, other white space (Bai et al. 2023).
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Liu et al. 2020, in the order of their ids.
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ "
    "ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()


@dataclass(frozen=True)
class Source:
    """What a tokenizer is made of."""

    file: Path  # the vocabulary
    settings: Settings
    usual: Mapping[str, str]  # the family's special tokens by role; none: those that the file names
    spaced: bool  # the mask takes the space before it along

    @cached_property
    def pieces(self) -> PieceModel:
        """What a SentencePiece file holds."""
        return read_pieces(self.file)

    @cached_property
    def roles(self) -> dict[str, AddedToken]:
        """The special token of each role: as the directory says, else as the family has it."""
        usual = self.usual or {
            role: self.pieces.pieces[id].text for role, id in self.pieces.roles.items()
        }
        found: dict[str, AddedToken | None] = {
            role: AddedToken(token, special=True) for role, token in usual.items()
        }
        found |= self.settings.roles()
        told = isinstance(self.settings.values.get("mask_token"), dict)
        if (mask := found.get("mask")) and self.spaced and not told:
            found["mask"] = AddedToken(mask.content, special=True, lstrip=True)
        return {role: token for role, token in found.items() if token is not None}

    def token(self, role: str) -> str:
        """The text of the special token that a role must have."""
        if role not in self.roles:
            raise InputError(f"{self.file.parent} has no {role} token, which its family needs.")
        return self.roles[role].content


def wordpiece(source: Source) -> tokenizers.Tokenizer:
    """BERT: words, then the longest pieces that are tokens, `##` inside a word."""
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


def _pairs(source: Source, **options: Any) -> tokenizers.Tokenizer:
    ids = read_ids(source.file.parent / "vocab.json")
    merges = read_merges(source.file.parent / "merges.txt", ids)
    return tokenizers.Tokenizer(models.BPE(ids, merges, **options))


def byte_level(source: Source) -> tokenizers.Tokenizer:
    """GPT-2: merges of bytes."""
    backend = _like("bpe", _pairs(source))
    space = source.settings.flag("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    return backend


def qwen(source: Source) -> tokenizers.Tokenizer:
    """Qwen: merges of bytes, with words of its own."""
    backend = _like("bpe", _pairs(source))
    backend.normalizer = normalizers.NFC()
    space = source.settings.flag("add_prefix_space", False)
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spelt])
    return backend


def gpt1(source: Source) -> tokenizers.Tokenizer:
    """GPT-1: merges of letters, `</w>` at the end of a word, all in lower case."""
    backend = _pairs(source, unk_token=source.token("unk"), end_of_word_suffix="</w>")
    backend.normalizer = KINDS["bpe-word"].normalizer(True)
    return _like("bpe-word", backend)


def _cut(
    pieces: PieceModel,
    scored: Sequence[tuple[str, float]],
    unknown: int,
    *,
    byte_fallback: bool = False,
) -> tokenizers.Tokenizer:
    """The algorithm of a SentencePiece file, on its pieces or on some made of these."""
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
    """Spaces become ▁, and one stands before the first word; before that, text is cut at spaces."""
    first = [pre_tokenizers.WhitespaceSplit()] if words else []
    spaces = pre_tokenizers.Metaspace(prepend_scheme=prefix)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, spaces])
    backend.decoder = decoders.Metaspace(prepend_scheme=prefix)


def _prefix(source: Source, without: str = "never") -> str:
    return "always" if source.settings.flag("add_prefix_space", True) else without


def sentinels(source: Source) -> list[str]:
    """T5's, in the order of their ids: the first one has the last."""
    count = source.settings.values.get("extra_ids", 100)
    if not isinstance(count, int) or not 0 <= count <= MOST_SENTINELS:
        raise InputError(f"{source.file.parent}: its settings ask for {count!r} extra_ids.")
    return [SENTINEL.format(i) for i in reversed(range(count))]


def t5(source: Source) -> tokenizers.Tokenizer:
    """T5: SentencePiece, with sentinels behind it."""
    pieces = source.pieces
    extra = [(token, 0.0) for token in sentinels(source)]
    backend = _cut(pieces, pieces.scored + extra, pieces.roles["unk"])
    _normalized(backend, charsmap=pieces.charsmap)
    _marked(backend)
    return backend


def _plain_quotes(source: Source, accents: bool, lowercase: bool) -> list[Any]:
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not source.settings.flag("keep_accents", accents):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if source.settings.flag("do_lower_case", lowercase):
        steps.append(normalizers.Lowercase())
    return steps


def albert(source: Source) -> tokenizers.Tokenizer:
    """ALBERT: SentencePiece, as a rule without capitals and accents."""
    pieces = source.pieces
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"])
    steps = _plain_quotes(source, accents=False, lowercase=True)
    _normalized(backend, *steps, charsmap=pieces.charsmap)
    _marked(backend, prefix=_prefix(source))
    return backend


def rembert(source: Source) -> tokenizers.Tokenizer:
    """RemBERT: SentencePiece with capitals and accents."""
    pieces = source.pieces
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"])
    quotes, rest = (steps := _plain_quotes(source, accents=True, lowercase=False))[:2], steps[2:]
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    _normalized(backend, *quotes, one_space, *rest, charsmap=pieces.charsmap)
    _marked(backend, prefix=_prefix(source), words=False)
    return backend


def deberta(source: Source) -> tokenizers.Tokenizer:
    """DeBERTa from its second version on: SentencePiece without its own normalisation."""
    pieces, settings = source.pieces, source.settings
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"])
    lower = [normalizers.Lowercase()] if settings.flag("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    end = normalizers.Strip(left=False, right=True)
    _normalized(backend, *lower, spaces, normalizers.NFC(), end)
    _marked(backend, prefix=_prefix(source, "first"), words=False)
    if settings.flag("split_by_punct", False):
        signs = pre_tokenizers.Punctuation("isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([signs, backend.pre_tokenizer])
    return backend


def _fairseq(source: Source, languages: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """Fairseq's own first four tokens in place of the file's first three, its others at the end."""
    pieces = source.pieces
    if any(piece.type == NORMAL for piece in pieces.pieces[:3]):
        raise MismatchError(
            f"{source.file}: the first three pieces should be special, as fairseq has them."
        )
    tokens = [source.token(role) for role in ("bos", "pad", "eos", "unk")]
    last = [*languages, source.token("mask")]
    scored = [(t, 0.0) for t in tokens] + pieces.scored[3:] + [(t, 0.0) for t in last]
    backend = _cut(pieces, scored, tokens.index(source.token("unk")))
    _marked(backend, prefix=_prefix(source))
    return backend


def xlm_roberta(source: Source) -> tokenizers.Tokenizer:
    """XLM-RoBERTa: SentencePiece under fairseq's numbers."""
    backend = _fairseq(source)
    _normalized(backend, charsmap=source.pieces.charsmap)
    return backend


def mbart(source: Source) -> tokenizers.Tokenizer:
    """mBART: the same without its normalisation, and with a token for each language."""
    return _fairseq(source, MBART_LANGUAGES)


def _spelt(backend: tokenizers.Tokenizer, prefix: bool) -> tokenizers.Tokenizer:
    """Decode pieces that may be bytes."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", left=1)] * prefix)
    return backend


def llama(source: Source) -> tokenizers.Tokenizer:
    """Llama and Mistral: SentencePiece merges; a character without a token is spelt in bytes."""
    pieces, settings = source.pieces, source.settings
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"], byte_fallback=True)
    prefix = settings.flag("add_prefix_space", True)
    scheme = "always" if settings.flag("legacy", False) else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme if prefix else "never", split=False
    )
    return _spelt(backend, prefix)


def gemma(source: Source) -> tokenizers.Tokenizer:
    """Gemma: the same, with no space before the first word."""
    pieces = source.pieces
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"], byte_fallback=True)
    backend.normalizer = normalizers.Replace(" ", "▁")
    return _spelt(backend, prefix=False)


def plain(source: Source) -> tokenizers.Tokenizer:
    """As SentencePiece itself does it."""
    pieces = source.pieces
    backend = _cut(pieces, pieces.scored, pieces.roles["unk"], byte_fallback=pieces.byte_fallback)
    steps: list[Any] = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    if pieces.squeeze:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    steps += [normalizers.Prepend("▁")] if pieces.dummy_prefix else []
    _normalized(backend, *steps, normalizers.Replace(" ", "▁"))
    return _spelt(backend, pieces.dummy_prefix)
