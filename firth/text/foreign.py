"""Tokenizers as other programs leave them: a vocabulary, and what its family does around it.

A family is a row: the file it comes in, its special tokens, and how the file becomes a tokenizer
(`rebuild.py`). Ids are those that `transformers` 5 gives for the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from firth.errors import FirthError, InputError
from firth.text import rebuild
from firth.text.moses import read_moses
from firth.text.rebuild import MBART_LANGUAGES, Source, sentinels
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_files import ROLES, Settings, read_object, read_settings
from firth.text.vocabulary import SPECIALS, Specials, described, surround

PIECES = (
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
    *("spm.model", "sentencepiece.model"),
)
FILES = ("vocab.txt", "vocab.json", "merges.txt", *PIECES)
UNTOLD = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")  # classes that say nothing
KEPT = ("model_max_length", "padding_side", "truncation_side", "chat_template")  # settings


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family makes a tokenizer of its files."""

    models: str = ""  # as config.json names them
    classes: str = ""  # as tokenizer_config.json names them
    file: str
    specials: Specials
    build: Callable[[Source], tokenizers.Tokenizer | Tokenizer]
    extra: Callable[[Source], Sequence[str]] = lambda source: ()  # special tokens without a role
    chosen: Mapping[str, str] = field(default_factory=dict)  # token of the template: its setting
    spaced: bool = False  # the mask takes the space before it along
    trims: bool = False  # the space before a token is no part of its place in the text


def _cls_sep(**roles: str) -> Specials:
    """[CLS] and [SEP] around a text, and segments, as in BERT."""
    usual = dict(cls="[CLS]", sep="[SEP]", mask="[MASK]", bos="[CLS]", eos="[SEP]")
    return Specials(usual | roles, SPECIALS["bert"].single, SPECIALS["bert"].pair)


def _bare(**roles: str) -> Specials:
    """Nothing around a text, unless the settings ask for it."""
    return Specials(roles, "$A", "$A $B")


ROBERTA = SPECIALS["roberta"]
FAMILIES = (
    Family(
        models="bert electra mobilebert",
        classes="BertTokenizer ElectraTokenizer MobileBertTokenizer",
        file="vocab.txt",
        specials=SPECIALS["bert"],
        build=rebuild.wordpiece,
    ),
    Family(
        models="distilbert",
        classes="DistilBertTokenizer",
        file="vocab.txt",
        specials=Specials(SPECIALS["bert"].roles, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
        build=rebuild.wordpiece,
    ),
    Family(
        models="mpnet",
        classes="MPNetTokenizer",
        file="vocab.txt",
        specials=Specials(ROBERTA.roles | {"unk": "[UNK]"}, ROBERTA.single, ROBERTA.pair),
        build=rebuild.wordpiece,
        spaced=True,
    ),
    Family(
        models="gpt2",
        classes="GPT2Tokenizer",
        file="vocab.json",
        specials=SPECIALS["gpt2"],
        build=rebuild.byte_level,
    ),
    Family(
        models="roberta bart",
        classes="RobertaTokenizer BartTokenizer",
        file="vocab.json",
        specials=ROBERTA,
        build=rebuild.byte_level,
        trims=True,
    ),
    Family(
        models="deberta",
        classes="DebertaTokenizer",
        file="vocab.json",
        specials=Specials(
            _cls_sep(unk="[UNK]", pad="[PAD]").roles,
            "[CLS] $A [SEP]",
            "[CLS] $A [SEP] [SEP] $B [SEP]",
        ),
        build=rebuild.byte_level,
    ),
    Family(
        models="qwen2 qwen3",
        classes="Qwen2Tokenizer",
        file="vocab.json",
        specials=_bare(unk="<|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>"),
        build=rebuild.qwen,
    ),
    Family(
        models="openai-gpt",
        classes="OpenAIGPTTokenizer",
        file="vocab.json",
        specials=_bare(unk="<unk>"),
        build=rebuild.gpt1,
    ),
    Family(
        models="xlm",
        classes="XLMTokenizer",
        file="vocab.json",
        specials=Specials(
            dict(unk="<unk>", bos="<s>", sep="</s>", pad="<pad>", cls="</s>", mask="<special1>"),
            "<s> $A </s>",
            "<s> $A </s> $B:1 </s>:1",
        ),
        build=read_moses,
    ),
    Family(
        models="t5 mt5",
        classes="T5Tokenizer MT5Tokenizer",
        file="spiece.model",
        specials=SPECIALS["t5"],
        build=rebuild.t5,
        extra=sentinels,
    ),
    Family(
        models="albert",
        classes="AlbertTokenizer",
        file="spiece.model",
        specials=_cls_sep(unk="<unk>", pad="<pad>"),
        build=rebuild.albert,
    ),
    Family(
        models="rembert",
        classes="RemBertTokenizer",
        file="sentencepiece.model",
        specials=_cls_sep(unk="<unk>", pad="<pad>"),
        build=rebuild.rembert,
    ),
    Family(
        models="deberta-v2",
        classes="DebertaV2Tokenizer",
        file="spm.model",
        specials=_cls_sep(unk="[UNK]", pad="[PAD]"),
        build=rebuild.deberta,
    ),
    Family(
        models="xlm-roberta",
        classes="XLMRobertaTokenizer",
        file="sentencepiece.bpe.model",
        specials=ROBERTA,
        build=rebuild.xlm_roberta,
    ),
    Family(
        models="mbart",
        classes="MBartTokenizer",
        file="sentencepiece.bpe.model",
        specials=Specials(ROBERTA.roles, "$A </s> en_XX", "$A $B </s> en_XX"),
        build=rebuild.mbart,
        extra=lambda source: MBART_LANGUAGES,
        chosen={"en_XX": "src_lang"},
        spaced=True,
    ),
    Family(
        models="llama mistral",
        classes="LlamaTokenizer",
        file="tokenizer.model",
        specials=_bare(unk="<unk>", bos="<s>", eos="</s>"),
        build=rebuild.llama,
    ),
    Family(
        models="gemma gemma2 gemma3 gemma3_text",
        classes="GemmaTokenizer",
        file="tokenizer.model",
        specials=_bare(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>"),
        build=rebuild.gemma,
    ),
)
BY_MODEL = {name: family for family in FAMILIES for name in family.models.split()}
BY_CLASS = {name: family for family in FAMILIES for name in family.classes.split()}
ALONE = Family(file=PIECES[0], specials=_bare(), build=rebuild.plain)
BY_FILE = {
    "vocab.txt": BY_MODEL["bert"],
    **dict.fromkeys(("vocab.json", "merges.txt"), BY_MODEL["gpt2"]),
    **dict.fromkeys(PIECES, ALONE),
}


def open_foreign(folder: Path) -> Tokenizer:
    """The tokenizer of a directory without `tokenizer.json`, from the files of its family."""
    settings = read_settings(folder)
    family, file = _family(folder, settings)
    source = Source(file, settings, family.specials.roles, family.spaced)
    try:
        made = family.build(source)
        return made if isinstance(made, Tokenizer) else _finished(made, family, source)
    except FirthError:
        raise
    except Exception as error:  # the library raises nothing more precise
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"The tokenizer in {folder} contradicts itself ({why}).") from error


def roles_beside(folder: Path, settings: Settings, backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """The settings beside a `tokenizer.json`, with the roles of special tokens they leave unsaid.

    They are those of the family that is named or, where no role is said at all, of the one whose
    special tokens are all there.
    """
    tokens = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    family = _named(folder, settings)
    if family is None and not settings.roles():
        fitting = [one for one in FAMILIES if tokens.issuperset(one.specials.tokens)]
        family = max(fitting, key=lambda one: len(one.specials.tokens), default=None)
    usual = family.specials.roles if family is not None else {}
    found = {f"{role}_token": token for role, token in usual.items() if token in tokens}
    return {**found, **settings.values}


def _family(folder: Path, settings: Settings) -> tuple[Family, Path]:
    """A directory's family and its vocabulary: what it says, else what its files look like."""
    name = _class(folder, settings)
    if name not in (*BY_CLASS, *UNTOLD, ""):
        raise InputError(
            f"{folder} has a {name}, which cannot be made of its files here; save it once with a "
            "tokenizer.json, as `transformers` does."
        )
    family = _named(folder, settings)
    there = [file for file in FILES if (folder / file).is_file()]
    alike = PIECES if family is not None and family.file in PIECES else ()
    names = [family.file, *alike] if family is not None else []
    if family is not None and (file := next((one for one in names if one in there), None)):
        return family, folder / file
    if family is not None and name in BY_CLASS:
        raise InputError(f"{folder} holds no {family.file}, which a {name} is made of.")
    return BY_FILE[there[0]], folder / there[0]


def _named(folder: Path, settings: Settings) -> Family | None:
    """The family that the settings name, or that the model beside them has."""
    name, config = _class(folder, settings), read_object(folder / "config.json")
    return BY_CLASS.get(name) or BY_MODEL.get(str(config.get("model_type")))


def _class(folder: Path, settings: Settings) -> str:
    """The class that `transformers` would use, if one is named."""
    config = read_object(folder / "config.json")
    name = settings.values.get("tokenizer_class") or config.get("tokenizer_class") or ""
    return str(name).removesuffix("Fast")


def _finished(backend: tokenizers.Tokenizer, family: Family, source: Source) -> Tokenizer:
    """Add what stands around the vocabulary: special tokens, added tokens, templates."""
    extra = [*source.settings.extra(), *_symbols(family, source)]
    _add(backend, source, extra)
    specials = _specials(family, source)
    for setting in family.chosen.values():
        named = source.settings.values.get(setting)
        if named and (not isinstance(named, str) or backend.token_to_id(named) is None):
            raise InputError(f"{source.file.parent}: {setting} is {named!r}, which has no token.")
    surround(backend, specials)
    if family.trims:
        trim = processors.ByteLevel(trim_offsets=True)
        backend.post_processor = processors.Sequence([trim, backend.post_processor])
    others = dict.fromkeys(token.content for token in extra if token.special)
    for token in source.roles.values():
        others.pop(token.content, None)
    values = source.settings.values
    kept = {name: values[name] for name in KEPT if values.get(name) is not None}
    return Tokenizer(backend, described(specials, list(others)) | kept)


def _symbols(family: Family, source: Source) -> list[AddedToken]:
    """Tokens without a role that the vocabulary itself, or the family, sets apart."""
    tokens = [AddedToken(token, special=True) for token in family.extra(source)]
    if family.file in PIECES:
        tokens += [
            AddedToken(token, normalized=False, special=is_control)
            for token, is_control in source.pieces.symbols
        ]
    return tokens


def _add(backend: tokenizers.Tokenizer, source: Source, extra: Sequence[AddedToken]) -> None:
    """Set tokens apart that are found in a text before it is cut; new ones get the next ids."""
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
                f"{folder} says that its added token {token.content!r} has the id {id}, but after "
                f"{source.file.name} it is {got}."
            )
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        raise InputError(
            f"{folder}: the ids in {source.file.name} have gaps or are used twice, so that tokens "
            "added to it would share theirs with others."
        )


def _specials(family: Family, source: Source) -> Specials:
    """A family's special tokens and templates, with the tokens that this directory has."""
    roles = {role: token.content for role, token in source.roles.items()}
    single, pair = family.specials.single, family.specials.pair
    if single == "$A":
        return Specials(roles, *_asked(roles, source.settings))
    usual = {token: role for role, token in family.specials.roles.items()}

    def actual(place: str) -> str:
        token, colon, segment = place.partition(":")
        if token in usual:
            token = source.token(usual[token])
        elif token in family.chosen:
            token = source.settings.values.get(family.chosen[token]) or token
        return f"{token}{colon}{segment}"

    return Specials(roles, *(" ".join(map(actual, form.split())) for form in (single, pair)))


def _asked(roles: Mapping[str, str], settings: Settings) -> tuple[str, str]:
    """The templates that the settings ask for: a token before a text, one behind it, or neither."""
    begin = [roles["bos"]] if "bos" in roles and settings.flag("add_bos_token", False) else []
    end = [roles["eos"]] if "eos" in roles and settings.flag("add_eos_token", False) else []
    first = [*begin, "$A", *end]
    second = [f"{token}:1" for token in (*begin, "$B", *end)]
    return " ".join(first), " ".join([*first, *second] if begin or end else ["$A", "$B"])
