"""Fill in the blanks of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from firth.adapt.prompts import room
from firth.errors import MismatchError, Misuse
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Guess:
    """A token for a blank, how likely it is, and the text with it."""

    token: str
    score: float
    text: str


@torch.no_grad()
def fill(
    network: Transformer, tokenizer: Tokenizer, text: str, *, top: int = 5
) -> list[list[Guess]]:
    """The likeliest tokens for each mask of a text, best first."""
    if network.config.architecture != "encoder":
        raise MismatchError(
            f"A {network.config.architecture} does not fill blanks: that takes an encoder, which "
            "sees both sides."
        )
    if "mask" not in tokenizer.special_ids:
        raise MismatchError("This model's tokenizer has no mask token, so it has no blanks.")
    mask_id, mask_token = tokenizer.special_ids["mask"], tokenizer.special_tokens["mask"]
    ids = tokenizer.encode(text, specials=True)
    blanks = [i for i, id in enumerate(ids) if id == mask_id]
    if not blanks:
        raise Misuse(f"There is no {mask_token} in the text: write one where a word is missing.")
    if len(ids) > (most := room(network)):
        raise Misuse(f"The text has {len(ids)} tokens, the model sees only {most}.")
    device = network.tokens.weight.device
    hidden = network(torch.tensor(ids, device=device), Mask([len(ids)], device=device))
    shares = network.logits(hidden[blanks]).float().softmax(-1)  # (blanks, V)
    best = shares.topk(min(top, shares.shape[1]))
    return [
        [
            _guess(tokenizer, ids, blank, int(id), float(share))
            for share, id in zip(row_shares, row_ids, strict=True)
        ]
        for blank, row_shares, row_ids in zip(blanks, best.values, best.indices, strict=True)
    ]


def _guess(tokenizer: Tokenizer, ids: list[int], blank: int, id: int, share: float) -> Guess:
    whole = [*ids[:blank], id, *ids[blank + 1 :]]
    token = tokenizer.decode([id]).strip() or str(tokenizer.backend.id_to_token(id))
    return Guess(token, share, tokenizer.decode(whole, skip_specials=True))
