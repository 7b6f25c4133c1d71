"""Chapter: what a model is trained to predict, and what it may look at."""

from __future__ import annotations

from dataclasses import asdict

from firth.demo.workspace import Findings, Workspace, command
from firth.jobs.objective_examples import show_objectives
from firth.models.masks import Mask
from firth.objectives.preview import ObjectivePreview
from firth.utils.figures import AttentionMask, Figure, MarkedText, Piece

TEXT = "The quick brown fox jumps over the lazy dog and runs into the forest."
MASK_PROB = 0.3  # more than BERT's 0.15, so that a short text shows it
# The objective of each architecture, and what the model predicts.
OBJECTIVES = {
    "masked": "An encoder (BERT) predicts masked tokens",
    "causal": "A decoder (GPT) predicts each next token",
    "span-corruption": "An encoder-decoder (T5) predicts removed spans",
}
MARKS = {"hidden": "hidden", "changed": "d", "kept": "b", "prefix": "prefix", "special": "soft"}
TOKENS = ("The", "cat", "sat", "on", "the", "mat")
PREFIX = 3  # tokens of the prefix mask that see each other


def objectives_and_masks(workspace: Workspace) -> Findings:
    """Show three objectives on one text and the three attention masks."""
    found, _ = show_objectives(
        TEXT,
        list(OBJECTIVES),
        tokenizer=workspace.tokenizer,
        mask_prob=MASK_PROB,
        seed=workspace.seed,
    )
    previews = list({one.objective: one for one in reversed(found)}.values())[::-1]
    masks = attention_masks()
    options = {
        "text": TEXT,
        "tokenizer": workspace.out / "tokenizer",
        "mask_prob": MASK_PROB,
        "objective": list(OBJECTIVES),
    }
    commands = [
        command("objectives", **options),
        command("presets", "encoder-tiny", masks=True),
        command("presets", "decoder-tiny", masks=True),
        command("presets", "decoder-tiny", masks=True, prefix=PREFIX),
    ]
    values = {
        "objectives": [asdict(preview) for preview in previews],
        "masks": {mask.title: sum(map(sum, mask.visible)) for mask in masks},
    }
    figures: list[Figure] = [_shown(preview) for preview in previews]
    return Findings([*figures, *masks], values, commands)


def attention_masks() -> list[AttentionMask]:
    """Return the masks of an encoder, a decoder and a prefix language model.

    >>> [sum(map(sum, mask.visible)) for mask in attention_masks()]
    [36, 21, 24]
    """
    n = len(TOKENS)
    masks = {
        "Bidirectional: encoder": (None, "Every token sees every token, left and right."),
        "Causal: decoder": ([0], "A token sees itself and what comes before it."),
        "Prefix: read, then write": (
            [PREFIX],
            f"The first {PREFIX} tokens see each other, the rest only what comes before: so an "
            "encoder-decoder reads its input in both directions and writes from left to right.",
        ),
    }
    found = []
    for title, (prefix, caption) in masks.items():
        visible = Mask([n], prefix=prefix).visible().tolist()
        count = f"{sum(map(sum, visible))} of {n * n} connections. {caption}"
        found.append(AttentionMask(title, TOKENS, tuple(map(tuple, visible)), count))
    return found


def _shown(preview: ObjectivePreview) -> MarkedText:
    """Show the input of an objective, and its targets below."""
    pieces = []
    for token in preview.reads:
        pieces += [Piece(token.token, MARKS.get(token.role, "")), Piece(" ")]
    targets = "; ".join(" ".join(words) for words in preview.predicts.values())
    return MarkedText(OBJECTIVES[preview.objective], tuple(pieces), f"To predict: {targets}")
