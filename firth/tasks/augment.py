"""More examples out of few: the same texts with words left out, exchanged or guessed anew.

Word dropout and swaps are after Wei and Zou 2019 (EDA), a word that the model itself finds likely
in its place after Kobayashi 2018. A new example keeps its label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from firth.draws import Floats, Longs, derive, uniform
from firth.errors import MismatchError, Misuse
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tasks.reading.examples import Labelled
from firth.text.tokenizer import Tokenizer

SHARE = 0.1  # of the words that change
DROP, SWAP, HIDE, CHOOSE = 70, 71, 72, 73  # what is drawn
LIKELY = 10  # tokens of which one is chosen
KINDS = ("dropout", "swap", "masked")


def augment(
    examples: Sequence[Labelled],
    kinds: str,
    network: Transformer,
    tokenizer: Tokenizer,
    seed: int,
) -> list[Labelled]:
    """The examples, and one more of each for every kind: `dropout`, `swap`, `masked`.

    Each kind comes behind the last, in the order of the examples: the i-th is made of example
    i % len(examples).
    """
    wanted = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    for kind in wanted:
        if kind not in KINDS:
            raise Misuse(f"--augment knows {', '.join(KINDS)}, not {kind!r}.")
    if wanted and not all(isinstance(example, Labelled) for example in examples):
        raise Misuse("--augment makes examples of labelled texts: for classify, pair and regress.")
    guess = _guesser(network, tokenizer) if "masked" in wanted else _unchanged
    change = {"dropout": dropped, "swap": swapped, "masked": guess}
    found = list(examples)
    for kind in wanted:
        for i, example in enumerate(examples):
            key = int(derive(derive(seed, KINDS.index(kind)), i))
            found.append(replace(example, text=change[kind](example.text, key)))
    return found


def copies(kinds: str) -> int:
    """How many examples become of one.

    >>> copies("dropout,swap"), copies("")
    (3, 1)
    """
    return 1 + sum(bool(kind.strip()) for kind in kinds.split(","))


def _draws(key: int, count: int, purpose: int) -> Floats:
    return uniform(derive(key, np.arange(count)), purpose)


def _places(draws: Floats) -> Longs:
    """Where something changes: at a share of all places, and at one at least."""
    return np.flatnonzero((draws < SHARE) | (draws == draws.min(initial=1.0)))


def dropped(text: str, key: int) -> str:
    """A text without some of its words.

    >>> dropped("a b c d e f g h i j k l", key=3)
    'a b c d e f g h i k l'
    """
    words = text.split()
    gone = set(_places(_draws(key, len(words), DROP)).tolist())
    return " ".join(word for i, word in enumerate(words) if i not in gone) or text


def swapped(text: str, key: int) -> str:
    """A text in which some words have changed places with the next one.

    >>> swapped("a b c d e f g h i j k l", key=3)
    'a c b d e f g h i j k l'
    """
    words = text.split()
    for place in _places(_draws(key, max(0, len(words) - 1), SWAP)):
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def _unchanged(text: str, key: int) -> str:
    return text


def _guesser(network: Transformer, tokenizer: Tokenizer) -> Callable[[str, int], str]:
    """What exchanges words for others that the model finds likely in their places."""
    mask = tokenizer.special_ids.get("mask")
    if network.config.architecture != "encoder" or mask is None or "language" not in network.heads:
        raise MismatchError(
            "--augment masked asks a masked language model: an encoder with its language head."
        )
    device, special = network.tokens.weight.device, tokenizer.vocabulary.special
    never = torch.ones(network.config.vocabulary, dtype=torch.bool, device=device)
    never[: len(special)] = torch.from_numpy(special).to(device)

    @torch.no_grad()
    def guess(text: str, key: int) -> str:
        ids = tokenizer.encode(text, specials=True)[: network.config.context]
        plain = np.flatnonzero(~special[ids])
        hidden = plain[_places(_draws(key, len(plain), HIDE))]
        if not len(hidden):
            return text
        tokens, at = torch.tensor(ids, device=device), torch.from_numpy(hidden).to(device)
        old = tokens[at, None]
        tokens[at] = mask
        scores = network.logits(network(tokens, Mask([len(ids)], device=device))[at])
        scores = scores.masked_fill(never, -torch.inf).scatter(1, old, -torch.inf)
        likely = scores.topk(LIKELY).indices  # (H, LIKELY)
        draws = (_draws(key, len(hidden), CHOOSE) * LIKELY).astype(int)
        for place, row, draw in zip(hidden, likely.cpu().tolist(), draws, strict=True):
            ids[place] = row[draw]
        return tokenizer.decode(ids, skip_specials=True)

    return guess
