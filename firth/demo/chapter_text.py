"""Chapter: the corpus, and how a tokenizer splits it."""

from __future__ import annotations

from itertools import cycle

from firth.data.sentences import sentence_starts
from firth.demo.workspace import Findings, Workspace, command
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.figures import Figure, KeyNumber, KeyNumbers, MarkedText, Piece

# The lectures' example of a word that no vocabulary needs to contain.
SENTENCE = "The dog barked unbelievably loudly at the mailman."
COLOURS = "abcd"
NUM_SENTENCES = 5  # shown of the first story


def text_and_tokens(workspace: Workspace) -> Findings:
    """Write the stories, train a tokenizer on them and split a sentence with it."""
    stories, tokenizer = workspace.stories, workspace.tokenizer
    train = (workspace.folder / "train.txt").read_text(encoding="utf-8")
    opening = train.partition("\n\n")[0]
    starts = sentence_starts(opening)
    opening = opening[: starts[NUM_SENTENCES] if len(starts) > NUM_SENTENCES else None].strip()
    fertility = tokenizer.coverage([train[:100_000]]).fertility
    facts = KeyNumbers(
        (
            KeyNumber(f"{stories.words:,}", f"words of text, in {stories.stories:,} short stories"),
            KeyNumber(f"{stories.vocabulary:,}", "different words in them"),
            KeyNumber(f"{len(tokenizer):,}", "tokens in the vocabulary: words and parts of words"),
            KeyNumber(f"{fertility:.2f}", "tokens per word; rare words need several"),
        )
    )
    story = MarkedText("The first story begins", (Piece(f"{opening} …"),))
    pieces = split(tokenizer, SENTENCE)
    caption = "Each colour is one token, and the number after it is what the model reads."
    values = {
        "stories": stories.stories,
        "words": stories.words,
        "different_words": stories.vocabulary,
        "vocab_size": len(tokenizer),
        "tokens_per_word": fertility,
        "sentence": SENTENCE,
        "tokens": [piece.text for piece in pieces if piece.mark],
    }
    shown = command("tokenizer show", workspace.out / "tokenizer", text=SENTENCE)
    commands = [workspace.stories_command, workspace.prepare_commands[0], shown]
    figures: list[Figure] = [
        facts,
        story,
        MarkedText("A sentence as tokens", tuple(pieces), caption),
    ]
    return Findings(figures, values, commands)


def split(tokenizer: Tokenizer, text: str) -> list[Piece]:
    """Return the tokens of a text in alternating colours, with their numbers."""
    pieces = []
    for token, colour in zip(tokenizer.pieces(text), cycle(COLOURS)):
        pieces += [Piece(token.token, colour, str(token.id)), Piece(" ")]
    return pieces
