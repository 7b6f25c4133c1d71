"""Terminal output of `tokenizer train --trace`: merges or rounds of pruning, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from firth.cli.terminal import new_table
from firth.cli.views.tokenizers import readable
from firth.tokenizers.bpe import MergeStep

if TYPE_CHECKING:
    from firth.tokenizers.tokenizer import Tokenizer
    from firth.tokenizers.unigram import PruningRound

MERGES = (
    "Each step merges the most frequent pair of neighbouring tokens into a new token; count: how "
    "often the pair occurs at that point. Of equally frequent pairs, the one with the older tokens "
    "is merged."
)
MARKS = {
    "wordpiece": " ## marks a token inside a word.",
    "bpe": " Ġ is a space: a word includes the space before it.",
    "bpe-word": " </w> marks the end of a word.",
}
SCORE = (
    "Score = count / (count of the first token × count of the second): high if the two rarely "
    "occur apart. Google's WordPiece merges the pair with the highest score; here, as in Hugging "
    "Face's `tokenizers`, the count decides, and the score is for comparison."
)
ROUNDS = (
    "Unigram begins with all frequent substrings. Each round estimates the probability of every "
    "piece (two iterations of expectation maximization) and removes up to a quarter of the pieces, "
    "those whose removal increases the loss least; at the end the most probable ones fill the "
    "vocabulary. Loss: mean of -log p(word), in nats; tokens: of all distinct words."
)
NONE = {
    "char": "There are no merges: the vocabulary is the most frequent characters.",
    "word": "There are no merges: the vocabulary is the most frequent words.",
}


def values(steps: Sequence[MergeStep | PruningRound], kind: str) -> list[dict[str, Any]]:
    """Return the steps for `--json`, with the score of WordPiece."""
    rows = []
    for number, step in enumerate(steps, 1):
        rows.append({"step": number, **asdict(step)})
        if kind == "wordpiece" and isinstance(step, MergeStep):
            rows[-1]["score"] = step.score
    return rows


def trace(
    steps: Sequence[MergeStep | PruningRound], kind: str, tokenizer: Tokenizer, limit: int
) -> list[RenderableType]:
    """Show the first `limit` steps, after a sentence about each column."""
    if kind in NONE:
        return [NONE[kind]]
    if kind == "unigram":
        rounds = [(str(i), *_round(step)) for i, step in enumerate(steps[:limit], 1)]
        return [ROUNDS, new_table("round", "pieces", "loss", "tokens", rows=rounds)]
    shown = [step for step in steps[:limit] if isinstance(step, MergeStep)]
    columns = ["step", "pair", "count", "new token"]
    columns += ["count of first", "count of second", "score"] if kind == "wordpiece" else []
    rows = [(str(i), *_merge(step, kind)) for i, step in enumerate(shown, 1)]
    rest = len(steps) - len(shown)
    more = [f"… and {rest:,} more; --trace-steps 0 shows all."] if rest else []
    notes = [MERGES + MARKS[kind], *([SCORE] if kind == "wordpiece" else [])]
    return [
        *notes,
        _start(tokenizer, len(steps)),
        new_table(*columns, rows=rows, left=(1, 3)),
        *more,
    ]


def _start(tokenizer: Tokenizer, merges: int) -> str:
    """Describe the vocabulary before the first merge."""
    first = len(tokenizer) - len(tokenizer.sentinel_ids) - merges
    special = tokenizer.vocabulary.special
    tokens = [tokenizer.backend.id_to_token(id) for id in range(first) if not special[id]]
    listed = "all bytes" if tokenizer.kind == "bpe" else " ".join(map(str, tokens))
    return f"Before the first merge there are {len(tokens)} tokens besides special ones: {listed}"


def _round(step: Any) -> tuple[str, ...]:
    return f"{step.pieces:,}", f"{step.loss:.3f}", f"{step.tokens:,}"


def _merge(step: MergeStep, kind: str) -> tuple[str, ...]:
    names = [readable(kind, token) for token in (step.left, step.right, step.token)]
    cells = (f"{names[0]} + {names[1]}", f"{step.count:,}", names[2])
    if kind != "wordpiece":
        return cells
    return *cells, f"{step.left_count:,}", f"{step.right_count:,}", f"{step.score:.3g}"
