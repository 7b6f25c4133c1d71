"""Describe a tokenizer: its kind, its vocabulary, its special tokens and examples of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS

EXAMPLES = 12  # tokens of each list
ROLE_USES = {
    "bos": "begins a text",
    "eos": "ends a text",
    "unk": "replaces text that is not in the vocabulary",
    "sep": "ends a text and separates two",
    "pad": "fills shorter rows of a batch",
    "cls": "first token; its vector is used to classify a text",
    "mask": "hides a token that the model is to predict",
}
PROBE = "Été, ABC"


@dataclass(frozen=True)
class SpecialToken:
    """A special token, what it is for, and its id."""

    role: str
    token: str
    id: int | None  # None: the vocabulary lacks it
    use: str


@dataclass(frozen=True)
class TokenizerDescription:
    """What is worth knowing of a tokenizer; counts are numbers of tokens."""

    kind: str
    about: str
    vocab_size: int
    counts: dict[str, int]
    special_tokens: list[SpecialToken]
    one_text: str  # how a text is framed by special tokens
    two_texts: str
    normalized: str  # what becomes of PROBE
    max_length: int | None  # of a text, if the tokenizer states it
    examples: dict[str, list[str]]


def describe_tokenizer(tokenizer: Tokenizer) -> TokenizerDescription:
    """Describe a tokenizer.

    >>> from firth.tokenizers.trainer import train_tokenizer
    >>> tokenizer, _ = train_tokenizer(["low lower lowest"] * 2, kind="wordpiece", vocab_size=24)
    >>> description = describe_tokenizer(tokenizer)
    >>> description.one_text, description.examples["longest of letters only"][:2]
    ('[CLS] TEXT [SEP]', ['lowest', 'lower'])
    """
    vocabulary = tokenizer.vocabulary
    tokens = [tokenizer.backend.id_to_token(id) or "" for id in range(len(tokenizer))]
    ordinary = [tokens[id] for id in np.flatnonzero(~vocabulary.special) if tokens[id]]
    normalizer = tokenizer.backend.normalizer
    limit = tokenizer.config.get("model_max_length")
    return TokenizerDescription(
        kind=tokenizer.kind,
        about=KINDS[tokenizer.kind].about if tokenizer.kind in KINDS else "whole words",
        vocab_size=len(tokenizer),
        counts=_counts(tokenizer, ordinary),
        special_tokens=[
            SpecialToken(role, token, tokenizer.special_ids.get(role), ROLE_USES[role])
            for role, token in tokenizer.special_tokens.items()
        ],
        one_text=_frame(tokenizer, "a"),
        two_texts=_frame(tokenizer, "a", "a"),
        normalized=normalizer.normalize_str(PROBE) if normalizer else PROBE,
        max_length=int(limit) if isinstance(limit, int | float) and limit < 1e9 else None,
        examples={
            "first tokens": ordinary[:EXAMPLES],
            "last tokens": ordinary[-EXAMPLES:],
            "longest of letters only": _longest(ordinary),
        },
    )


def _counts(tokenizer: Tokenizer, ordinary: list[str]) -> dict[str, int]:
    vocabulary = tokenizer.vocabulary
    counts = {
        "special tokens": vocabulary.special.sum() - len(vocabulary.sentinels),
        "sentinels": len(vocabulary.sentinels),
        "words, beginnings of words, punctuation": (vocabulary.begins & ~vocabulary.special).sum(),
        "words and ends of words": (vocabulary.ends & ~vocabulary.special).sum(),
        "single characters": sum(len(token) == 1 for token in ordinary),
    }
    return {what: int(count) for what, count in counts.items() if count}


def _longest(tokens: list[str]) -> list[str]:
    """Return the longest tokens without punctuation, marks of word boundaries aside."""
    letters = [t for t in tokens if t.strip("#Ġ▁").removesuffix("</w>").isalpha()]
    return sorted(letters, key=len, reverse=True)[:EXAMPLES]


def _frame(tokenizer: Tokenizer, first: str, second: str | None = None) -> str:
    """Return how one or two texts are joined: `[CLS] TEXT [SEP]`."""
    encoding = tokenizer.backend.encode(first, second, add_special_tokens=True)
    names = ["TEXT"] if second is None else ["TEXT A", "TEXT B"]
    pairs = zip(encoding.sequence_ids, encoding.tokens, strict=True)
    parts = []
    for sequence, group in groupby(pairs, key=lambda pair: pair[0]):
        parts += [t for _, t in group] if sequence is None else [names[sequence]]
    return " ".join(parts)
