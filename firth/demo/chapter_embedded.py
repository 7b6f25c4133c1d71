"""Chapter: the models that come with Firth, trained as in the chapter before but on more text."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.packing import PackedSequences
from firth.demo.workspace import DECODER, ENCODER, SEQ2SEQ, Findings, Workspace, command
from firth.embedded import PRETRAINING_TOKENS
from firth.inference.infilling.span_filling import fill_sentinels, tokens_after_sentinel
from firth.model import Model
from firth.objectives.denoising import span_corruption
from firth.utils.figures import Bar, BarChart, Figure, KeyNumber, KeyNumbers, MarkedText, Piece

# Sentences of the lectures; none of them occurs in the stories.
BLANKS = (
    "The [MASK] barked loudly at the mailman.",
    "The capital of France is [MASK].",
    "The sun rises in the [MASK].",
    "I went to the [MASK] to buy milk.",
)
NUM_GUESSES = 4
PROMPT = "Once upon a time"
NUM_NEW_TOKENS = 90
NUM_PASSAGES, PASSAGE_WORDS = 20, 80  # from which spans are removed


@dataclass(frozen=True)
class RestoredText:
    """A text with removed spans, and what the model predicted for them."""

    pieces: list[tuple[str, str | None]]  # (text, None) or (removed, predicted)

    @property
    def right(self) -> float:
        """Return the fraction of the removed words that were predicted at their position.

        >>> RestoredText([("the dog", None), ("barked loudly", "barked again")]).right
        0.5
        """
        taken = [(was.split(), now.split()) for was, now in self.pieces if now is not None]
        hits = sum(a == b for was, now in taken for a, b in zip(was, now, strict=False))
        return hits / max(1, sum(len(was) for was, _ in taken))


def embedded_models(workspace: Workspace) -> Findings:
    """Fill blanks, continue a story and restore removed spans with the embedded models."""
    encoder, decoder, both = (workspace.model(name) for name in (ENCODER, DECODER, SEQ2SEQ))
    fills = {text: encoder.fill(text)[0][:NUM_GUESSES] for text in BLANKS}
    sampling: dict[str, Any] = {"method": "sample", "temperature": 0.7, "seed": workspace.seed}
    story = decoder.generate(PROMPT, max_new_tokens=NUM_NEW_TOKENS, **sampling)
    passages = [restore_spans(both, text, workspace.seed) for text in _passages(workspace)]
    restored = passages[0]
    everywhere = RestoredText([piece for passage in passages for piece in passage.pieces])
    facts = [
        KeyNumber(f"{model.num_parameters / 1e6:.1f} M", f"parameters of {name}{_tokens(name)}")
        for name, model in ((ENCODER, encoder), (DECODER, decoder), (SEQ2SEQ, both))
    ]
    figures: list[Figure] = [
        KeyNumbers(tuple(facts)),
        *(
            BarChart(text, tuple(Bar(one.token, one.score) for one in guesses))
            for text, guesses in fills.items()
        ),
        MarkedText(
            f"{DECODER} continues a story",
            (Piece(PROMPT, "strong"), Piece(" "), Piece(story.strip(), "a")),
            "The model wrote the coloured part, one token at a time.",
        ),
        _restored_figure(restored, everywhere.right),
    ]
    values = {
        "fills": {text: [asdict(one) for one in guesses] for text, guesses in fills.items()},
        "continuation": {"prompt": PROMPT, "text": story},
        "restored": {**asdict(restored), "right": everywhere.right},
    }
    cut = " ".join("___" if now is not None else was for was, now in restored.pieces)
    cut = re.sub(r" ([,.;:!?])", r"\1", cut)
    commands = [
        *(command("fill", ENCODER, text) for text in BLANKS[:1]),
        command("generate", DECODER, PROMPT, max_new_tokens=NUM_NEW_TOKENS, **sampling),
        command("fill", SEQ2SEQ, cut),
    ]
    return Findings(figures, values, commands)


def _tokens(name: str) -> str:
    tokens = PRETRAINING_TOKENS[name]
    return f", pre-trained on {tokens / 1e6:,.0f} million tokens"


def _passages(workspace: Workspace) -> list[str]:
    """Return the first sentences of stories that no model was trained on."""
    text = Path(workspace.folder / "test.txt").read_text(encoding="utf-8")
    return [_first_sentences(story) for story in text.split("\n\n")[:NUM_PASSAGES] if story]


def _first_sentences(story: str) -> str:
    sentences: list[str] = []
    for sentence in re.split(r"(?<=[.?!]) ", story):
        if len(" ".join([*sentences, sentence]).split()) > PASSAGE_WORDS:
            break
        sentences.append(sentence)
    return " ".join(sentences)


def restore_spans(model: Model, text: str, seed: int = 0) -> RestoredText:
    """Remove spans from a text, and let the model predict them."""
    tokenizer, key = model.require_tokenizer(), np.array([seed + 7], dtype=np.uint64)
    ids = np.array([piece.id for piece in tokenizer.pieces(text)], dtype=np.int64)
    batch = span_corruption(PackedSequences.join([ids], key), tokenizer.vocabulary)
    corrupted: list[int] = batch.inputs.tokens.tolist()
    targets = batch.predictions["denoising"].targets.tolist()
    sentinels = set(tokenizer.sentinel_ids)
    predicted = iter(fill_sentinels(model.network, tokenizer, corrupted))
    pieces: list[tuple[str, str | None]] = []
    kept: list[int] = []
    for id in corrupted:
        if id not in sentinels:
            kept.append(id)
            continue
        pieces.append((tokenizer.decode(kept).strip(), None))
        was, now = tokens_after_sentinel(targets, id, sentinels), next(predicted)
        texts = [tokenizer.decode(ids, skip_specials=True).strip() for ids in (was, now)]
        pieces.append((texts[0], texts[1]))
        kept = []
    pieces.append((tokenizer.decode(kept, skip_specials=True).strip(), None))
    return RestoredText([piece for piece in pieces if piece[0] or piece[1]])


def _restored_figure(restored: RestoredText, right: float) -> MarkedText:
    """Mark right and wrong spans; after a wrong one, show what was removed."""
    pieces = []
    for was, now in restored.pieces:
        if now is None:
            pieces.append(Piece(was))
        elif now == was:
            pieces.append(Piece(now, "right"))
        else:
            pieces.append(Piece(now or "…", "wrong", f"was: {was}"))
        pieces.append(Piece(" "))
    return MarkedText(
        f"{SEQ2SEQ} restores removed words of an unseen story",
        tuple(pieces),
        f"Right words are green. Of the words removed from {NUM_PASSAGES} stories, {right:.0%} are "
        "right and at their place.",
    )
