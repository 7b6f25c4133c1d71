"""Build the tokenizer of a GGUF file from its metadata values.

There are two models. "gpt2" is byte-level BPE: its merges are listed, and `tokenizer.ggml.pre`
names the pre-tokenization. "llama" is SentencePiece: each token has a score, two tokens are merged
if the result is a token, the highest score first; other characters fall back to bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from firth.formats.tokenizers.backends import QWEN_WORDS, WORDS, byte_fallback_decoder
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError

NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5  # types of tokens
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # ours -> llama.cpp's
MAX_TOKEN_CHARACTERS = 1000  # characters of a token
TYPES = {
    str: "a text",
    int: "a number",
    bool: "a yes or no",
    list: "a list of texts",
    np.ndarray: "a list of numbers",
}
NO_TOKENIZER = ("none", "no_vocab")


class PreTokenization(NamedTuple):
    """A pre-tokenization and related defaults."""

    pattern: str | None = None  # regular expression of one word; None: GPT-2's
    digits: bool = False  # split digits
    whole: bool = False  # a word that is a token is not split (`ignore_merges`)
    begins: bool = False  # default of add_bos_token


LLAMA3 = WORDS % r"\p{N}{1,3}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (  # a word changes from upper to lower case once
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS = {
    **dict.fromkeys(("default", "gpt-2"), PreTokenization()),
    **dict.fromkeys(("smollm", "starcoder", "refact"), PreTokenization(digits=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3"),
        PreTokenization(LLAMA3, whole=True, begins=True),
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx"), PreTokenization(LLAMA3)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), PreTokenization(QWEN_WORDS)
    ),
    "tekken": PreTokenization(TEKKEN, whole=True, begins=True),
}


def gguf_tokenizer(values: Mapping[str, Any], path: Path) -> Tokenizer | None:
    """Build the tokenizer from the metadata values of a file; None if it has none.

    >>> letters = {"tokens": ["l", "o", "w", "lo", "low"], "merges": ["l o", "lo w"]}
    >>> values = {f"tokenizer.ggml.{name}": found for name, found in letters.items()}
    >>> tokenizer = gguf_tokenizer(values | {"tokenizer.ggml.model": "gpt2"}, Path("low.gguf"))
    >>> tokenizer.encode("lowlo")
    [4, 3]
    """
    kind = _get(values, "model", str, "none")
    if kind in NO_TOKENIZER:
        return None
    if kind not in BACKENDS:
        raise InputError(
            f"{path} has a tokenizer of the type {kind[:80]!r}, which is not supported; known "
            f"are {', '.join(BACKENDS)}."
        )
    try:
        return Tokenizer(_backend(values, kind), _settings(values))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # the library raises nothing more precise
        why = str(error).splitlines()[0][:200]
        raise InputError(f"{path} has an inconsistent tokenizer ({why}).") from error


def _backend(values: Mapping[str, Any], kind: str) -> tokenizers.Tokenizer:
    tokens = _tokens(values)
    types = _column(values, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    backend = BACKENDS[kind](values, tokens, types)
    roles = set(token_roles(values).values())
    special = [id for id, type in enumerate(types) if type == CONTROL or id in roles]
    whole = [id for id, type in enumerate(types) if type == USER and id not in roles]
    for ids, is_special in ((special, True), (whole, False)):
        backend.add_tokens(
            [tokenizers.AddedToken(tokens[i], normalized=False, special=is_special) for i in ids]
        )
    if frame := _frame(values, tokens):
        backend.post_processor = frame
    return backend


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`."""
    tokens, template = _tokens(values), values.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": tokens[id] for role, id in token_roles(values).items()},
        **({"chat_template": template} if isinstance(template, str) else {}),
    }


def token_roles(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the special token ids by role."""
    size = len(_get(values, "tokens", list, []))
    found = {role: _get(values, f"{name}_token_id", int, None) for role, name in ROLES.items()}
    roles = {role: id for role, id in found.items() if id is not None}
    for role, id in roles.items():
        if not 0 <= id < size:
            raise InputError(f"the {role} token is number {id:,} of only {size:,} tokens.")
    return roles


def adds_bos(values: Mapping[str, Any]) -> bool:
    """Return whether the bos token is added before a text."""
    is_bytes = _get(values, "model", str, "none") == "gpt2"
    usual = _cut(values).begins if is_bytes else True
    return "bos" in token_roles(values) and _get(values, "add_bos_token", bool, usual)


def _get(values: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a metadata value of the tokenizer, and check its type."""
    value = values.get(f"tokenizer.ggml.{name}")
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"tokenizer.ggml.{name} is not {TYPES[kind]}.")
    return value


def _tokens(values: Mapping[str, Any]) -> list[str]:
    tokens = _get(values, "tokens", list, [])
    named = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if not named or not all(isinstance(token, str) for token in named):
        raise InputError("it has a tokenizer without tokens.")
    twice, times = Counter(named).most_common(1)[0]
    if times > 1:
        raise InputError(f"its tokenizer has the token {twice[:80]!r} {times} times.")
    if (longest := max(map(len, named))) > MAX_TOKEN_CHARACTERS:
        raise InputError(f"its tokenizer has a token of {longest:,} characters.")
    return named


def _column(values: Mapping[str, Any], name: str, size: int) -> list[Any]:
    """Return one number for each token, or an empty list."""
    found = _get(values, name, np.ndarray, None)
    if found is not None and len(found) != size:
        raise InputError(f"tokenizer.ggml.{name} has {len(found):,} rows for {size:,} tokens.")
    return [] if found is None else found.tolist()


def _merges(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the listed merges."""
    merges = [tuple(str(merge).split(" ")) for merge in _get(values, "merges", list, [])]
    for merge in merges:
        if len(merge) != 2:
            raise InputError(f"its tokenizer merges {' '.join(merge)[:80]!r}, which is no pair.")
    return merges  # type: ignore[return-value]


def _cut(values: Mapping[str, Any]) -> PreTokenization:
    name = _get(values, "pre", str, "default")
    if name not in CUTS:
        raise InputError(
            f"the pre-tokenization {name[:80]!r} of its tokenizer is not supported; known are "
            f"{', '.join(CUTS)}."
        )
    return CUTS[name]


def _byte_level(
    values: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    cut = _cut(values)
    ids = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(ids, _merges(values), ignore_merges=cut.whole))
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern:
        steps.append(pre_tokenizers.Split(tokenizers.Regex(cut.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.pattern))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(
    values: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    unknown, scores = token_roles(values).get("unk"), _column(values, "scores", len(tokens))
    backend = tokenizers.Tokenizer(
        models.BPE(
            {token: id for id, token in enumerate(tokens)},
            _merges(values) or _implied_merges(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space = _get(values, "add_space_prefix", bool, True)  # before the first word
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="first" if space else "never", split=False
    )
    return byte_fallback_decoder(backend, space)


def _implied_merges(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens whose concatenation is a token, the highest score first."""
    if not scores:
        raise InputError("its tokenizer has neither scores nor merges.")
    merged = {
        token: score
        for token, type, score in zip(tokens, types, scores, strict=True)
        if type in (NORMAL, USER, UNUSED)
    }
    pairs = [
        (score, token[:end], token[end:])
        for token, score in merged.items()
        for end in range(1, len(token))
        if token[:end] in merged and token[end:] in merged
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [(first, second) for _, first, second in pairs]


BACKENDS = {"gpt2": _byte_level, "llama": _sentence_piece}


def _frame(values: Mapping[str, Any], tokens: Sequence[str]) -> processors.PostProcessor | None:
    """Return the post-processor that adds bos and eos tokens, None if there are none."""
    roles = token_roles(values)
    adds_end = "eos" in roles and _get(values, "add_eos_token", bool, False)
    begin = [tokens[roles["bos"]]] if adds_bos(values) else []
    end = [tokens[roles["eos"]]] if adds_end else []
    if not begin and not end:
        return None
    return processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *begin, "$B", *end],
        special_tokens=[(tokens[id], id) for id in roles.values()],
    )
