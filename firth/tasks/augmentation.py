"""Data augmentation: variants of texts with words dropped, swapped or replaced.

Word dropout and swaps follow Wei and Zou 2019 (EDA); replacing words by predictions of the masked
language model follows Kobayashi 2018. A variant keeps its label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.tasks.readers.examples import LabelledExample
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError
from firth.utils.rng import Floats, Longs, derive_keys, uniform

FRACTION = 0.1  # of the words that change
DROP, SWAP, MASK, CHOOSE = 70, 71, 72, 73  # random streams
TOP_K = 10  # predictions of which one is chosen
KINDS = ("dropout", "swap", "masked")


def augment(
    examples: Sequence[LabelledExample],
    kinds: str,
    network: LanguageNetwork,
    tokenizer: Tokenizer,
    seed: int,
) -> list[LabelledExample]:
    """Append one variant of each example for every kind: `dropout`, `swap`, `masked`.

    Kinds follow one another, each in the order of the examples: the i-th result is made from
    example i % len(examples).
    """
    wanted = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    for kind in wanted:
        if kind not in KINDS:
            raise UsageError(f"--augment takes {', '.join(KINDS)}, not {kind!r}.")
    if wanted and not all(isinstance(example, LabelledExample) for example in examples):
        raise UsageError("--augment is for labelled texts: classify, pair and regress.")
    change: dict[str, Callable[[str, int], str]] = {"dropout": drop_words, "swap": swap_words}
    if "masked" in wanted:
        change["masked"] = _masked_replacer(network, tokenizer)
    found = list(examples)
    for kind in wanted:
        for i, example in enumerate(examples):
            key = int(derive_keys(derive_keys(seed, KINDS.index(kind)), i))
            found.append(replace(example, text=change[kind](example.text, key)))
    return found


def num_copies(kinds: str) -> int:
    """The number of examples made from one, including itself.

    >>> num_copies("dropout,swap"), num_copies("")
    (3, 1)
    """
    return 1 + sum(bool(kind.strip()) for kind in kinds.split(","))


def _draws(key: int, count: int, purpose: int) -> Floats:
    return uniform(derive_keys(key, np.arange(count)), purpose)


def _places(draws: Floats) -> Longs:
    """The positions that change: a fraction of all, at least one."""
    return np.flatnonzero((draws < FRACTION) | (draws == draws.min(initial=1.0)))


def drop_words(text: str, key: int) -> str:
    """Drop some words of a text.

    >>> drop_words("a b c d e f g h i j k l", key=3)
    'a b c d e f g h i k l'
    """
    words = text.split()
    gone = set(_places(_draws(key, len(words), DROP)).tolist())
    return " ".join(word for i, word in enumerate(words) if i not in gone) or text


def swap_words(text: str, key: int) -> str:
    """Swap some words of a text with the next one.

    >>> swap_words("a b c d e f g h i j k l", key=3)
    'a c b d e f g h i j k l'
    """
    words = text.split()
    for place in _places(_draws(key, max(0, len(words) - 1), SWAP)):
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def _masked_replacer(network: LanguageNetwork, tokenizer: Tokenizer) -> Callable[[str, int], str]:
    """Make a function that replaces some tokens by likely predictions of the model."""
    mask = tokenizer.special_ids.get("mask")
    if network.config.architecture != "encoder" or mask is None or "language" not in network.heads:
        raise MismatchError(
            "--augment masked needs a masked language model: an encoder with its language head."
        )
    device, special = network.tokens.weight.device, tokenizer.vocabulary.special
    never = torch.ones(network.config.vocab_size, dtype=torch.bool, device=device)
    never[: len(special)] = torch.from_numpy(special).to(device)

    @torch.no_grad()
    def replace_words(text: str, key: int) -> str:
        ids = tokenizer.encode(text, specials=True)[: network.config.max_positions]
        plain = np.flatnonzero(~special[ids])
        hidden = plain[_places(_draws(key, len(plain), MASK))]
        if not len(hidden):
            return text
        tokens, at = torch.tensor(ids, device=device), torch.from_numpy(hidden).to(device)
        old = tokens[at, None]
        tokens[at] = mask
        scores = network.logits(network(tokens, Mask([len(ids)], device=device))[at])
        scores = scores.masked_fill(never, -torch.inf).scatter(1, old, -torch.inf)
        likely = scores.topk(TOP_K).indices  # (H, TOP_K)
        draws = (_draws(key, len(hidden), CHOOSE) * TOP_K).astype(int)
        for place, row, draw in zip(hidden, likely.cpu().tolist(), draws, strict=True):
            ids[place] = row[draw]
        return tokenizer.decode(ids, skip_specials=True)

    return replace_words
