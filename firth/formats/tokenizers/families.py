"""Build tokenizers from vocabulary files without `tokenizer.json`.

Each family is one row: its vocabulary file, its special tokens, and the function that builds the
tokenizer (`backends.py`). Token ids equal those of `transformers` 5 for the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from firth.formats.json_files import read_object
from firth.formats.tokenizers import backends as rebuild
from firth.formats.tokenizers.backends import MBART_LANGUAGES, VocabularySource, sentinels
from firth.formats.tokenizers.moses import read_moses
from firth.formats.tokenizers.vocab_files import TokenizerSettings, read_settings
from firth.tokenizers.tokenizer import ROLES, Tokenizer
from firth.tokenizers.trainer import SPECIALS, SpecialTokens, set_template, tokenizer_config
from firth.utils.errors import FirthError, InputError

PIECES = (
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
    *("spm.model", "sentencepiece.model"),
)
FILES = ("vocab.txt", "vocab.json", "merges.txt", *PIECES)
# Tokenizer classes that do not identify a family.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
COPIED_SETTINGS = ("model_max_length", "padding_side", "truncation_side", "chat_template")


@dataclass(frozen=True)
class TokenizerFamily:
    """How a family builds a tokenizer from its files."""

    models: str  # `model_type` in config.json
    file: str
    specials: SpecialTokens
    build: Callable[[VocabularySource], tokenizers.Tokenizer | Tokenizer]
    extra: Callable[[VocabularySource], Sequence[str]] = lambda source: ()  # tokens without a role
    chosen: Mapping[str, str] = field(default_factory=dict)  # template token -> setting that has it
    spaced: bool = False  # the mask token includes the space before it
    trims: bool = False  # offsets do not include the space before a token


def _cls_sep(**roles: str) -> SpecialTokens:
    """Special tokens and templates as in BERT: [CLS] text [SEP]."""
    tokens = dict(cls="[CLS]", sep="[SEP]", mask="[MASK]", bos="[CLS]", eos="[SEP]")
    return SpecialTokens(tokens | roles, SPECIALS["bert"].single, SPECIALS["bert"].pair)


def _bare(**roles: str) -> SpecialTokens:
    """Special tokens without templates, unless the settings have `add_bos_token` and the like."""
    return SpecialTokens(roles, "$A", "$A $B")


BERT, ROBERTA = SPECIALS["bert"], SPECIALS["roberta"]
DISTILBERT = SpecialTokens(BERT.roles, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")
DEBERTA = _cls_sep(unk="[UNK]", pad="[PAD]")
BYTE_DEBERTA = SpecialTokens(DEBERTA.roles, DISTILBERT.single, "[CLS] $A [SEP] [SEP] $B [SEP]")
MPNET = SpecialTokens(ROBERTA.roles | {"unk": "[UNK]"}, ROBERTA.single, ROBERTA.pair)
MBART = SpecialTokens(ROBERTA.roles, "$A </s> en_XX", "$A $B </s> en_XX")
ALBERT = _cls_sep(unk="<unk>", pad="<pad>")
LLAMA = _bare(unk="<unk>", bos="<s>", eos="</s>")
GEMMA = _bare(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>")
QWEN = _bare(unk="<|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")
XLM = SpecialTokens(
    dict(unk="<unk>", bos="<s>", sep="</s>", pad="<pad>", cls="</s>", mask="<special1>"),
    "<s> $A </s>",
    "<s> $A </s> $B:1 </s>:1",
)
FAMILIES = (
    TokenizerFamily("bert electra mobilebert", "vocab.txt", BERT, rebuild.wordpiece),
    TokenizerFamily("distilbert", "vocab.txt", DISTILBERT, rebuild.wordpiece),
    TokenizerFamily("mpnet", "vocab.txt", MPNET, rebuild.wordpiece, spaced=True),
    TokenizerFamily("gpt2", "vocab.json", SPECIALS["gpt2"], rebuild.byte_level),
    TokenizerFamily("roberta bart", "vocab.json", ROBERTA, rebuild.byte_level, trims=True),
    TokenizerFamily("deberta", "vocab.json", BYTE_DEBERTA, rebuild.byte_level),
    TokenizerFamily("qwen2 qwen3", "vocab.json", QWEN, rebuild.qwen),
    TokenizerFamily("openai-gpt", "vocab.json", _bare(unk="<unk>"), rebuild.gpt1),
    TokenizerFamily("xlm", "vocab.json", XLM, read_moses),
    TokenizerFamily("t5 mt5", "spiece.model", SPECIALS["t5"], rebuild.t5, extra=sentinels),
    TokenizerFamily("albert", "spiece.model", ALBERT, rebuild.albert),
    TokenizerFamily("rembert", "sentencepiece.model", ALBERT, rebuild.rembert),
    TokenizerFamily("deberta-v2", "spm.model", DEBERTA, rebuild.deberta),
    TokenizerFamily("xlm-roberta", "sentencepiece.bpe.model", ROBERTA, rebuild.xlm_roberta),
    TokenizerFamily(
        "mbart",
        "sentencepiece.bpe.model",
        MBART,
        rebuild.mbart,
        extra=lambda source: MBART_LANGUAGES,
        chosen={"en_XX": "src_lang"},
        spaced=True,
    ),
    TokenizerFamily("llama mistral", "tokenizer.model", LLAMA, rebuild.llama),
    TokenizerFamily("gemma gemma2 gemma3 gemma3_text", "tokenizer.model", GEMMA, rebuild.gemma),
)
BY_MODEL = {name: family for family in FAMILIES for name in family.models.split()}
PLAIN_SENTENCEPIECE = TokenizerFamily("", PIECES[0], _bare(), rebuild.plain)
BY_FILE = {
    "vocab.txt": BY_MODEL["bert"],
    **dict.fromkeys(("vocab.json", "merges.txt"), BY_MODEL["gpt2"]),
    **dict.fromkeys(PIECES, PLAIN_SENTENCEPIECE),
}
# By `tokenizer_class` in lower case: XLMRobertaTokenizer is of xlm-roberta.
BY_CLASS = {f"{name.replace('-', '')}tokenizer": family for name, family in BY_MODEL.items()}


def build_tokenizer(folder: Path) -> Tokenizer:
    """Build the tokenizer of a directory without `tokenizer.json`."""
    settings = read_settings(folder)
    family, file = _family(folder, settings)
    source = VocabularySource(file, settings, family.specials.roles, family.spaced)
    try:
        made = family.build(source)
        return made if isinstance(made, Tokenizer) else _finished(made, family, source)
    except FirthError:
        raise
    except Exception as error:  # the library raises nothing more precise
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"The tokenizer in {folder} is inconsistent ({why}).") from error


def complete_settings(
    folder: Path, settings: TokenizerSettings, backend: tokenizers.Tokenizer
) -> dict[str, Any]:
    """Add missing roles of special tokens to the settings of a `tokenizer.json`.

    They are those of the named family or, if the settings have no roles at all, of the family whose
    special tokens are all in the vocabulary.
    """
    tokens = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    family = _named(folder, settings)
    if family is None and not settings.roles():
        fitting = [one for one in FAMILIES if tokens.issuperset(one.specials.tokens)]
        family = max(fitting, key=lambda one: len(one.specials.tokens), default=None)
    usual = family.specials.roles if family is not None else {}
    found = {f"{role}_token": token for role, token in usual.items() if token in tokens}
    return {**found, **settings.values}


def _family(folder: Path, settings: TokenizerSettings) -> tuple[TokenizerFamily, Path]:
    """Return the family and vocabulary file of a directory, by its settings, else by its files."""
    name = _class(folder, settings)
    if name.lower() not in BY_CLASS and name not in (*GENERIC_CLASSES, ""):
        raise InputError(
            f"{folder} has a {name}, which cannot be built from its files; save it with a "
            "tokenizer.json, as `transformers` does."
        )
    family = _named(folder, settings)
    there = [file for file in FILES if (folder / file).is_file()]
    alike = PIECES if family is not None and family.file in PIECES else ()
    names = [family.file, *alike] if family is not None else []
    if family is not None and (file := next((one for one in names if one in there), None)):
        return family, folder / file
    if family is not None and name.lower() in BY_CLASS:
        raise InputError(f"{folder} holds no {family.file}, which a {name} needs.")
    return BY_FILE[there[0]], folder / there[0]


def _named(folder: Path, settings: TokenizerSettings) -> TokenizerFamily | None:
    """Return the family that the tokenizer settings or the model config name."""
    name, config = _class(folder, settings), read_object(folder / "config.json")
    return BY_CLASS.get(name.lower()) or BY_MODEL.get(str(config.get("model_type")))


def _class(folder: Path, settings: TokenizerSettings) -> str:
    """Return the tokenizer class that the settings name, "" if none."""
    config = read_object(folder / "config.json")
    name = settings.values.get("tokenizer_class") or config.get("tokenizer_class") or ""
    return str(name).removesuffix("Fast")


def _finished(
    backend: tokenizers.Tokenizer, family: TokenizerFamily, source: VocabularySource
) -> Tokenizer:
    """Add special tokens, added tokens and templates."""
    extra = [*source.settings.extra(), *_symbols(family, source)]
    _add(backend, source, extra)
    specials = _specials(family, source)
    for setting in family.chosen.values():
        named = source.settings.values.get(setting)
        if named and (not isinstance(named, str) or backend.token_to_id(named) is None):
            raise InputError(f"{source.file.parent}: {setting} is {named!r}, which has no token.")
    set_template(backend, specials)
    if family.trims:
        trim = processors.ByteLevel(trim_offsets=True)
        backend.post_processor = processors.Sequence([trim, backend.post_processor])
    others = dict.fromkeys(token.content for token in extra if token.special)
    for token in source.roles.values():
        others.pop(token.content, None)
    values = source.settings.values
    kept = {name: values[name] for name in COPIED_SETTINGS if values.get(name) is not None}
    return Tokenizer(backend, tokenizer_config(specials, list(others)) | kept)


def _symbols(family: TokenizerFamily, source: VocabularySource) -> list[AddedToken]:
    """Return added tokens without a role that the vocabulary or the family defines."""
    tokens = [AddedToken(token, special=True) for token in family.extra(source)]
    if family.file in PIECES:
        tokens += [
            AddedToken(token, normalized=False, special=is_control)
            for token, is_control in source.pieces.symbols
        ]
    return tokens


def _add(
    backend: tokenizers.Tokenizer, source: VocabularySource, extra: Sequence[AddedToken]
) -> None:
    """Add tokens that are matched before pre-tokenization; new ones get the next ids."""
    tokens: dict[str, AddedToken] = {}
    roles = source.roles
    named = [roles[role] for role in ROLES if role in roles]
    for token in [*source.settings.added.values(), *named, *extra]:
        tokens.setdefault(token.content, token)
    for token in named:
        tokens[token.content].special = True
    backend.add_tokens(list(tokens.values()))
    folder = source.file.parent
    for id, token in source.settings.added.items():
        if (got := backend.token_to_id(token.content)) != id:
            raise InputError(
                f"{folder}: the added token {token.content!r} should have the id {id}, but after "
                f"{source.file.name} it is {got}."
            )
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        raise InputError(
            f"{folder}: the ids in {source.file.name} have gaps or duplicates, so added tokens "
            "would share ids with others."
        )


def _specials(family: TokenizerFamily, source: VocabularySource) -> SpecialTokens:
    """Return a family's special tokens and templates with the tokens of this directory."""
    roles = {role: token.content for role, token in source.roles.items()}
    single, pair = family.specials.single, family.specials.pair
    if single == "$A":
        return SpecialTokens(roles, *_asked(roles, source.settings))
    usual = {token: role for role, token in family.specials.roles.items()}

    def actual(place: str) -> str:
        token, colon, segment = place.partition(":")
        if token in usual:
            token = source.token(usual[token])
        elif token in family.chosen:
            token = source.settings.values.get(family.chosen[token]) or token
        return f"{token}{colon}{segment}"

    return SpecialTokens(roles, *(" ".join(map(actual, form.split())) for form in (single, pair)))


def _asked(roles: Mapping[str, str], settings: TokenizerSettings) -> tuple[str, str]:
    """Return the templates by the settings `add_bos_token` and `add_eos_token`."""
    begin = [roles["bos"]] if "bos" in roles and settings.flag("add_bos_token", False) else []
    end = [roles["eos"]] if "eos" in roles and settings.flag("add_eos_token", False) else []
    first = [*begin, "$A", *end]
    second = [f"{token}:1" for token in (*begin, "$B", *end)]
    return " ".join(first), " ".join([*first, *second] if begin or end else ["$A", "$B"])
