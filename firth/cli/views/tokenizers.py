"""Terminal output of `tokenizer show`: the tokens of a text in alternating colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.tokenizers.description import PROBE, describe_tokenizer
from firth.tokenizers.display import decode_byte_level

if TYPE_CHECKING:
    from firth.tokenizers.tokenizer import Tokenizer, TokenPiece

UNKNOWN = "white on red"


def tokenizers(tokenizers: Mapping[str, Tokenizer], texts: Sequence[str]) -> list[RenderableType]:
    """Describe one tokenizer, or several if there are no texts to compare them on."""
    parts: list[RenderableType] = []
    if len(tokenizers) == 1 or not texts:
        parts = [part for each in tokenizers.items() for part in _description(*each)]
    return parts + (_comparison(tokenizers, texts) if texts else [])


def _description(name: str, tokenizer: Tokenizer) -> list[RenderableType]:
    """Show the kind, the vocabulary, the special tokens and examples of tokens."""
    found = describe_tokenizer(tokenizer)
    facts = {
        "kind": f"{found.kind} ({found.about})",
        "vocabulary": f"{found.vocab_size:,} tokens, among them:",
        **{f"  {what}": f"{count:,}" for what, count in found.counts.items()},
        "one text": found.one_text,
        "two texts": found.two_texts,
        "normalization": f"{PROBE} → {found.normalized}",
        **({} if found.max_length is None else {"maximum length": f"{found.max_length:,} tokens"}),
        **{what: _words(found.kind, tokens) for what, tokens in found.examples.items()},
    }
    special = [
        (one.role, one.token, "missing" if one.id is None else str(one.id), one.use)
        for one in found.special_tokens
    ]
    table = new_table("role", "special token", "id", "use", rows=special, left=(0, 1, 3))
    return [
        Text(name, "bold"),
        new_table("property", "value", rows=list(facts.items()), left=(0, 1)),
        *([table] if special else []),
    ]


def _words(kind: str, tokens: Sequence[str]) -> str:
    return "  ".join(readable(kind, token) if token.strip() else repr(token) for token in tokens)


def _comparison(tokenizers: Mapping[str, Tokenizer], texts: Sequence[str]) -> list[RenderableType]:
    """Show the tokens of each text, then tokens per word and the fraction of unknown tokens."""
    pieces = Table(show_lines=True)
    pieces.add_column("text", max_width=24)
    for name in tokenizers:
        pieces.add_column(name, overflow="fold")
    for text in texts:
        pieces.add_row(text, *(_coloured(t.kind, t.pieces(text)) for t in tokenizers.values()))
    summary = new_table("tokenizer", "kind", "vocabulary", "tokens", "tokens per word", "unknown")
    for name, tokenizer in tokenizers.items():
        coverage = tokenizer.coverage(texts)
        rates = f"{coverage.fertility:.2f}", f"{coverage.unknown_rate:.1%}"
        summary.add_row(name, tokenizer.kind, f"{len(tokenizer):,}", f"{coverage.tokens:,}", *rates)
    return [pieces, summary]


def _coloured(kind: str, pieces: Sequence[TokenPiece]) -> Text:
    """Colour tokens alternately, with their ids below."""
    line = Text()
    for piece, colour in zip(pieces, cycle(COLOURS)):
        line.append(readable(kind, piece.token), colour if piece.known else UNKNOWN)
        line.append(" ")
    line.append("\nids: " + " ".join(str(piece.id) for piece in pieces), "dim")
    return line


def readable(kind: str, token: str) -> str:
    """Decode the bytes of a byte-level token that are not ASCII.

    >>> readable("bpe", "ĠÃ©tÃ©"), readable("bpe", "Ã"), readable("wordpiece", "##té")
    ('Ġété', '\\\\xc3', '##té')
    """
    if kind != "bpe":
        return token.replace("\n", "⏎")
    return decode_byte_level(token).replace(" ", "Ġ").replace("\n", "Ċ")
