"""Rows that a network reads, and the tokens that it is asked for at some of their places.

    N  tokens of a batch     P  places that are asked about     V  vocabulary

Any number of rows is answered in batches of similar length, in memory that does not grow with their
number. How they are batched makes no difference to what is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.draws import Bools, Floats, Longs
from firth.errors import MismatchError
from firth.inference.batches import by_length, not_numbers
from firth.models.cache import Cache
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.streams import in_windows

BATCH = {"cpu": 4096, "cuda": 65_536}  # tokens that a network reads at once
ALIKE = 16  # tokens that all rows of a batch begin with, from which on they are read once
AHEAD = 16  # batches of rows that are sorted by their length together
SCORES = {"cpu": 1 << 20, "cuda": 1 << 26}  # numbers held at a time: the scores of all tokens at
FEWEST = 128  # places, or more

Ids = Sequence[int]


@dataclass(frozen=True)
class Score:
    """How likely some tokens are, each given what a model could see of the others.

    >>> score = Score(np.array([-1.0, -0.5]), is_greedy=False)
    >>> score.sum, score.tokens, score.mean
    (-1.5, 2, -0.75)
    """

    logs: Floats  # (T,) natural logarithms
    is_greedy: bool  # every token was the likeliest at its place

    @property
    def sum(self) -> float:
        """The logarithm of the probability of all of them together."""
        return float(self.logs.sum())

    @property
    def tokens(self) -> int:
        """How many tokens were scored."""
        return len(self.logs)

    @property
    def mean(self) -> float:
        """The sum for each token; 0 where there is none."""
        return self.sum / max(1, self.tokens)


@dataclass(frozen=True)
class Asked:
    """A row that a network reads, and the tokens that it is asked for at some of its places."""

    row: tuple[int, ...]
    places: Ids
    targets: Ids
    source: tuple[int, ...] = ()  # what an encoder in front reads

    @property
    def size(self) -> int:
        """How many tokens are read for it."""
        return len(self.source) + len(self.row)


def scores(
    network: Transformer, asked: Iterable[Asked], *, both_ways: bool = False, batch: int = 0
) -> Iterator[Score]:
    """Answer rows in their order; those that are the same, or begin another, are read once.

    `both_ways`: every token of a row sees all others. `batch`: tokens that are read at once.
    """
    check_head(network)
    size = batch or BATCH.get(network.tokens.weight.device.type, BATCH["cpu"])
    for window in in_windows(asked, lambda one: one.size, size * AHEAD):
        yield from _answers(network, window, both_ways, size)


def check_head(network: Transformer, name: str = "This model") -> None:
    """Only a network that predicts tokens can be asked for them."""
    if "language" not in network.heads:
        raise MismatchError(
            f"{name} has no language head: it predicts no tokens, so it cannot say how likely a "
            "text is; take a model as it was pre-trained."
        )


def _answers(
    network: Transformer, window: Sequence[Asked], both_ways: bool, size: int
) -> list[Score]:
    found: list[Score | None] = [None] * len(window)
    groups = _shared(window, both_ways)
    firsts = [window[group[0]] for group in groups]
    for batch in by_length([(len(one.source), len(one.row)) for one in firsts], size):
        together = [groups[i] for i in batch]
        flat = [i for row in together for i in row]
        rows = [firsts[i] for i in batch]
        starts = np.cumsum([0, *(len(row.row) for row in rows)])
        owners = np.repeat(starts[:-1], [len(row) for row in together])
        counts = [len(window[i].targets) for i in flat]
        own = chain.from_iterable(window[i].places for i in flat)
        places = np.fromiter(own, np.int64, sum(counts)) + np.repeat(owners, counts)
        wanted = chain.from_iterable(window[i].targets for i in flat)
        targets = np.fromiter(wanted, np.int64, sum(counts))
        with torch.no_grad():
            logs, best = look(network, read_rows(network, rows, both_ways), places, targets)
        ends = np.cumsum([0, *counts])
        others = np.concatenate([[0], np.cumsum(~best)])[ends]  # up to each end, others were best
        greedy = (np.diff(others) == 0).tolist()
        parts = zip(flat, pairwise(ends.tolist()), greedy, strict=True)
        for i, (begin, end), likeliest in parts:
            found[i] = Score(logs[begin:end], likeliest)
    return [score for score in found if score is not None]


def _shared(window: Sequence[Asked], both_ways: bool) -> list[list[int]]:
    """Which questions are answered by reading one row: that of the first of them.

    Where nothing sees what follows it, a row also answers for every row that it begins with.

    >>> rows = [Asked((1, 2), (), ()), Asked((1, 2, 3), (), ()), Asked((1,), (), ())]
    >>> _shared(rows, both_ways=False), _shared(rows, both_ways=True)
    ([[1, 0, 2]], [[1], [0], [2]])
    """
    keys = [(one.source, one.row) for one in window]
    groups: list[list[int]] = []
    source: tuple[int, ...] = ()
    row: tuple[int, ...] = ()
    # From the last to the first in the order of a dictionary: a row stands behind all it begins.
    for i in sorted(range(len(window)), key=keys.__getitem__, reverse=True):
        own = keys[i][1]
        same = own == row if both_ways else own == row[: len(own)]
        if groups and same and keys[i][0] == source:
            groups[-1].append(i)
        else:
            source, row = keys[i]
            groups.append([i])
    return groups


def look(
    network: Transformer, hidden: Tensor, places: Longs, targets: Longs
) -> tuple[Floats, Bools]:
    """The log-probability of each target at its place of the stream; whether it is the likeliest.

    Scores are made in 32 bits whatever the network computes in, for some places at a time.
    """
    device = hidden.device
    distinct, which = np.unique(places, return_inverse=True)
    logs, best = np.empty(len(places)), np.empty(len(places), dtype=np.bool_)
    at_once = max(FEWEST, SCORES.get(device.type, SCORES["cpu"]) // network.config.vocabulary)
    tensor = partial(torch.as_tensor, device=device)
    for begin in range(0, len(distinct), at_once):
        found = network.logits(hidden[tensor(distinct[begin : begin + at_once])]).float()  # (P, V)
        inside = np.flatnonzero((which >= begin) & (which < begin + at_once))
        row, target = tensor(which[inside] - begin), tensor(targets[inside])
        own, most = found[row, target], found.amax(-1)
        total = found.sub_(most[:, None]).exp_().sum(-1).log().double() + most
        logs[inside] = (own.double() - total[row]).cpu().numpy()
        best[inside] = (own == most[row]).cpu().numpy()
    if np.isnan(logs).any():
        raise not_numbers()
    return logs, best


def read_rows(network: Transformer, rows: Sequence[Asked], both_ways: bool) -> Tensor:
    """What the head sees of rows end to end."""  # (N, W)
    device = network.tokens.weight.device
    alone = not network.config.has_encoder or not network.config.has_decoder
    if alone and not both_ways and (shared := _alike(rows)) >= ALIKE:
        return _read_behind(network, rows, shared, device)
    tokens = torch.tensor([id for row in rows for id in row.row], device=device)
    lengths = [len(row.row) for row in rows]
    mask = Mask(lengths, device=device) if both_ways else Mask.causal(lengths, device=device)
    if alone:
        return network(tokens, mask)
    sources = list(dict.fromkeys(row.source for row in rows))
    read = Mask([len(source) for source in sources], device=device)
    ids = torch.tensor([id for source in sources for id in source], device=device)
    numbers = {source: i for i, source in enumerate(sources)}
    each = np.array([numbers[row.source] for row in rows])
    memory = network.encode(ids, read)[_again(read, each, network).to(device)]
    memory_mask = Mask(read.lengths[each], device=device)
    return network(tokens, mask, memory=memory, memory_mask=memory_mask)


def _alike(rows: Sequence[Asked]) -> int:
    """With how many tokens all of several rows begin alike; the last of each is its own.

    >>> _alike([Asked((1, 2, 3, 4), (), ()), Asked((1, 2, 3), (), ())])
    2
    """
    if len(rows) < 2:
        return 0
    first, last = min(row.row for row in rows), max(row.row for row in rows)
    pairs = zip(first, last, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    return min(same, min(len(row.row) for row in rows) - 1)


def _read_behind(
    network: Transformer, rows: Sequence[Asked], shared: int, device: torch.device
) -> Tensor:
    """What the head sees of rows that begin alike: the beginning is read once, and kept."""
    rest = np.array([len(row.row) - shared for row in rows])
    size: Any = {"device": device, "dtype": network.tokens.weight.dtype}
    cache = Cache.empty(network.config, 1, shared + int(rest.max()), **size)
    begin = torch.tensor(rows[0].row[:shared], device=device)
    first = network(begin, Mask.causal([shared], device=device), cache=cache)
    cache.spread(len(rows))
    tokens = torch.tensor([id for row in rows for id in row.row[shared:]], device=device)
    last = network(tokens, Mask.causal(rest, device=device), cache=cache)
    ends = shared + np.cumsum(rest)
    places = [
        np.concatenate([np.arange(shared), np.arange(end - own, end)])
        for own, end in zip(rest, ends, strict=True)
    ]
    return torch.cat([first, last])[torch.from_numpy(np.concatenate(places)).to(device)]


def _again(read: Mask, each: Longs, network: Transformer) -> Tensor:
    """Where the encoder's output for the source of each row stands; behind all, that of prompts."""
    assert network.encoder is not None
    prompt = len(network.encoder.prompt()) if network.encoder.prompt is not None else 0
    begins = np.cumsum(read.lengths) - read.lengths
    own = [np.arange(begins[i], begins[i] + read.lengths[i]) for i in each]
    before = [np.arange(prompt) + read.tokens + prompt * i for i in each]
    return torch.from_numpy(np.concatenate([*own, *before]))
