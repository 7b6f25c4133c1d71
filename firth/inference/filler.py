"""How a model fills blanks, what it is asked, and what it says.

An encoder, or a decoder that learned to fill too (GPT-BERT, Charpentier and Samuel 2024), is asked
for the token of each blank; an encoder-decoder writes spans of any length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from firth.adapt.prompts import reading_room, room
from firth.errors import MismatchError, Misuse
from firth.inference.blanks import Blanks, find_blanks, sentinels
from firth.models.transformer import Transformer
from firth.objectives.table import fills
from firth.text.tokenizer import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Guess:
    """What may stand in a blank, how likely it is, and the text with it."""

    token: str
    score: float
    text: str


@dataclass(frozen=True)
class Whole:
    """A text with all its blanks filled, and how likely that is."""

    tokens: list[str]
    score: float
    text: str


@dataclass(frozen=True)
class Filled:
    """What may stand in each blank of a text, best first; of several blanks, also all together."""

    text: str
    blanks: list[list[Guess]]
    wholes: list[Whole]

    def values(self) -> dict[str, Any]:
        """The guesses as plain JSON values: a list, or a list for each of several blanks."""
        lists = [[asdict(guess) for guess in guesses] for guesses in self.blanks]
        if len(lists) == 1:
            return {"text": self.text, "predictions": lists[0]}
        wholes = [asdict(whole) for whole in self.wholes]
        return {"text": self.text, "predictions": lists, "sentences": wholes}


@dataclass(frozen=True)
class Question:
    """A text with blanks, as a model reads it."""

    text: str
    blanks: Blanks
    ids: Ids
    places: Ids  # of the blanks, where the model sees them one by one


@dataclass(frozen=True, kw_only=True)
class Filler:
    """How a model fills blanks: `masks`, `spans` (T5) or `whole` (BART)."""

    network: Transformer
    tokenizer: Tokenizer
    way: str

    @property
    def shift(self) -> int:
        """A decoder is asked for a token at the place before it."""
        return int(self.network.config.architecture == "decoder")

    @property
    def mark(self) -> str:
        """How this model's blanks are written."""
        return sentinels(1)[0] if self.way == "spans" else self.tokenizer.special_tokens["mask"]

    def read(self, text: str) -> Question:
        """A text with its blanks; one that has none, or is too long, is refused."""
        blanks = find_blanks(text, self.mark)
        if self.way == "spans" and len(blanks) >= len(self.tokenizer.sentinel_ids):
            most = len(self.tokenizer.sentinel_ids) - 1
            raise Misuse(f"The text has {len(blanks)} blanks, the model knows only {most}.")
        marks = sentinels(len(blanks)) if self.way == "spans" else [self.mark] * len(blanks)
        ids = self.frame(blanks.marked(marks))
        mask = self.tokenizer.special_ids.get("mask")
        places = tuple(i for i, id in enumerate(ids) if id == mask and self.way == "masks")
        if self.shift and places and places[0] == 0:
            raise Misuse("Nothing stands before the first blank, where the model looks from.")
        return Question(text, blanks, ids, places)

    def frame(self, text: str) -> Ids:
        """The tokens of a text, with those that the model expects around it."""
        config, end = self.network.config, self.network.config.end_id
        if (self.way == "masks" and not self.shift) or self.way == "whole":
            ids = self.tokenizer.encode(text, specials=True)
        else:
            begin = config.begin_id if self.shift else None
            own = self.tokenizer.encode(text)
            ids = [id for id in (begin, *own, end) if id is not None]
        if len(ids) > (most := self.room):
            raise Misuse(f"The text has {len(ids)} tokens, the model sees only {most}.")
        return tuple(ids)

    @property
    def room(self) -> int:
        """How many tokens a text may have."""
        return room(self.network) if self.way == "masks" else reading_room(self.network)


def make_filler(
    network: Transformer, tokenizer: Tokenizer, *, objective: str | None = None
) -> Filler:
    """How a model fills blanks, by its architecture and the objective it was pre-trained with."""
    architecture, taught = network.config.architecture, fills(objective)
    if architecture == "decoder" and taught != "masks":
        raise MismatchError(
            "A decoder sees only what stands before a blank; to fill it takes an encoder, an "
            "encoder-decoder, or a decoder pre-trained with the hybrid objective. `firth generate` "
            "lets this one go on with a text."
        )
    if "language" not in network.heads:
        raise MismatchError(
            "This model has no language head: it makes vectors or labels, but predicts no tokens. "
            "One that learned to fill in what is hidden, and was saved with its head, fills blanks."
        )
    has_mask, has_sentinels = "mask" in tokenizer.special_ids, bool(tokenizer.sentinel_ids)
    if architecture == "encoder-decoder" and network.config.reader is None:
        if has_sentinels and not (taught == "whole" and has_mask):
            return Filler(network=network, tokenizer=tokenizer, way="spans")
        if has_mask:
            return Filler(network=network, tokenizer=tokenizer, way="whole")
    if architecture == "encoder-decoder":
        raise MismatchError(
            "This model never saw a blank: its tokenizer has no sentinels (as T5's) and no mask "
            "(as BART's), or its two halves come from elsewhere."
        )
    if not has_mask:
        raise MismatchError("This model's tokenizer has no mask token, so it has no blanks.")
    return Filler(network=network, tokenizer=tokenizer, way="masks")
