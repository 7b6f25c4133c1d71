"""Log-probabilities of target tokens at given positions of token sequences.

    N  tokens of a batch     P  scored positions     V  vocabulary     W  hidden size

Requests are batched by length, in memory that does not grow with their number. Results do not
depend on the batching.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from firth.inference.batching import batch_by_length, nan_error
from firth.models.kv_cache import KVCache
from firth.models.language_model import (
    LanguageNetwork,
    ScoringModel,
    TokenScorer,
    predicts_tokens,
)
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.training.distributed.ranks import join_shares, own_share
from firth.utils.device_transfer import to_device
from firth.utils.errors import MismatchError
from firth.utils.rng import Bools, Floats, Longs
from firth.utils.streams import bounded_batches

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}
BATCHES_PER_WINDOW = 16  # batches of requests that are sorted by length together
MIN_SHARED_PREFIX = 16  # tokens from which on a common prefix is computed once
MAX_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 26}  # logits in memory at a time, or those of
MIN_POSITIONS = 128  # positions, if that is more

Ids = Sequence[int]


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of target tokens.

    >>> score = TokenScores(np.array([-1.0, -0.5]), is_greedy=False)
    >>> score.sum, score.tokens, score.mean
    (-1.5, 2, -0.75)
    """

    log_probs: Floats  # (T,) natural logarithms
    is_greedy: bool  # whether every target is the most probable token at its position

    @property
    def sum(self) -> float:
        """The log-probability of all targets together."""
        return float(self.log_probs.sum())

    @property
    def tokens(self) -> int:
        """The number of scored tokens."""
        return len(self.log_probs)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0 if there is none."""
        return self.sum / max(1, self.tokens)


@dataclass(frozen=True)
class ScoringRequest:
    """An input sequence, and the target tokens to score at some of its positions."""

    tokens: tuple[int, ...]
    positions: Ids
    targets: Ids
    source: tuple[int, ...] = ()  # the encoder's input of an encoder-decoder
    prefix: int = 0  # first tokens that attend in both directions: the prompt of a prefix LM

    @property
    def size(self) -> int:
        """The number of input tokens."""
        return len(self.source) + len(self.tokens)


def score_requests(
    network: ScoringModel,
    requests: Iterable[ScoringRequest],
    *,
    bidirectional: bool = False,
    batch_tokens: int = 0,
    temperature: float = 1.0,
) -> Iterator[TokenScores]:
    """Score requests in order; inputs that equal or begin another one are computed once.

    `bidirectional`: attention over the whole sequence instead of a causal mask.
    """
    check_language_head(network)
    size = batch_tokens or default_batch_tokens(network)
    window_size = size * BATCHES_PER_WINDOW
    for window in bounded_batches(
        requests, lambda one: one.size, max_size=window_size, max_items=sys.maxsize
    ):
        yield from _score_window(network, window, bidirectional, size, temperature)


def default_batch_tokens(network: ScoringModel) -> int:
    """Return the tokens per batch that suit the network's device."""
    return BATCH_TOKENS.get(network.device.type, BATCH_TOKENS["cpu"])


def check_language_head(network: ScoringModel, name: str = "This model") -> None:
    """Raise an error for a network that does not predict tokens."""
    if not predicts_tokens(network):
        raise MismatchError(
            f"{name} has no language head, so it predicts no tokens and cannot score text; use a "
            "pre-trained language model."
        )


def _score_window(
    network: ScoringModel,
    window: Sequence[ScoringRequest],
    bidirectional: bool,
    size: int,
    temperature: float,
) -> list[TokenScores]:
    scores: dict[int, TokenScores] = {}
    groups = _shared_inputs(window, bidirectional)
    inputs = [window[group[0]] for group in groups]
    shapes = [(len(one.source), len(one.tokens)) for one in inputs]
    for batch in own_share(batch_by_length(shapes, size)):
        batch_groups = [groups[i] for i in batch]
        batch_inputs = [inputs[i] for i in batch]
        flat = [i for group in batch_groups for i in group]
        starts = np.cumsum([0, *(len(one.tokens) for one in batch_inputs)])
        offsets = np.repeat(starts[:-1], [len(group) for group in batch_groups])
        counts = [len(window[i].targets) for i in flat]
        own = chain.from_iterable(window[i].positions for i in flat)
        positions = np.fromiter(own, np.int64, sum(counts)) + np.repeat(offsets, counts)
        all_targets = chain.from_iterable(window[i].targets for i in flat)
        targets = np.fromiter(all_targets, np.int64, sum(counts))
        with torch.no_grad():
            hidden = hidden_states(network, batch_inputs, bidirectional)
            found = target_log_probs(network, hidden, positions, targets, temperature)
            log_probs, is_top = scores_on_host(*found)
        ends = np.cumsum([0, *counts])
        misses = np.concatenate([[0], np.cumsum(~is_top)])[ends]  # before each end
        greedy = (np.diff(misses) == 0).tolist()
        parts = zip(flat, pairwise(ends.tolist()), greedy, strict=True)
        for i, (begin, end), is_greedy in parts:
            scores[i] = TokenScores(log_probs[begin:end], is_greedy)
    scores = join_shares(scores)
    return [scores[i] for i in range(len(window)) if i in scores]


def _shared_inputs(window: Sequence[ScoringRequest], bidirectional: bool) -> list[list[int]]:
    """Group requests that one forward pass answers: that of the first in the group.

    With a causal mask, an input also answers for every input that it begins with.

    >>> rows = [ScoringRequest(ids, (), ()) for ids in [(1, 2), (1, 2, 3), (1,)]]
    >>> _shared_inputs(rows, bidirectional=False), _shared_inputs(rows, bidirectional=True)
    ([[1, 0, 2]], [[1], [0], [2]])
    """
    keys = [((one.source, one.prefix), one.tokens) for one in window]
    groups: list[list[int]] = []
    shared: tuple[tuple[int, ...], int] = ((), 0)
    longest: tuple[int, ...] = ()
    # In descending lexicographic order, a sequence comes before all its prefixes.
    for i in sorted(range(len(window)), key=keys.__getitem__, reverse=True):
        own = keys[i][1]
        same = own == longest if bidirectional else own == longest[: len(own)]
        if groups and same and keys[i][0] == shared:
            groups[-1].append(i)
        else:
            shared, longest = keys[i]
            groups.append([i])
    return groups


def target_log_probs(
    network: ScoringModel,
    hidden: Tensor,
    positions: Longs,
    targets: Longs,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return each target's log-probability at its position, and whether it is the top token.

    Logits are computed in float32, for a limited number of positions at a time, and divided by the
    temperature. The results are on the network's device: nothing waits for a GPU.
    """
    device = hidden.device
    if isinstance(network, TokenScorer):
        if temperature != 1:
            raise MismatchError("This model computes no logits, which a temperature divides.")
        where = to_device(positions, device)
        return network.score_tokens(hidden[where], to_device(targets, device))
    distinct, which = np.unique(positions, return_inverse=True)
    max_logits = MAX_LOGITS.get(device.type, MAX_LOGITS["cpu"])
    chunk = max(MIN_POSITIONS, max_logits // network.config.vocab_size)
    log_probs = torch.empty(len(positions), dtype=torch.float64, device=device)
    is_top = torch.empty(len(positions), dtype=torch.bool, device=device)
    for begin in range(0, len(distinct), chunk):
        inside = np.flatnonzero((which >= begin) & (which < begin + chunk))
        copied = (distinct[begin : begin + chunk], which[inside] - begin, targets[inside], inside)
        where, row, target, places = (to_device(values, device) for values in copied)
        logits = network.logits(hidden[where]).float()  # (P, V)
        if temperature != 1:
            logits = logits / temperature
        own, highest = logits[row, target], logits.amax(-1)
        log_sum = logits.sub_(highest[:, None]).exp_().sum(-1).log().double() + highest
        log_probs[places] = own.double() - log_sum[row]
        is_top[places] = own == highest[row]
    return log_probs, is_top


def scores_on_host(log_probs: Tensor, is_top: Tensor) -> tuple[Floats, Bools]:
    """Copy scores to the host; raise an error if one is not a number."""
    found = log_probs.double().cpu().numpy()
    if np.isnan(found).any():
        raise nan_error()
    return found, is_top.cpu().numpy()


def hidden_states(
    network: ScoringModel, rows: Sequence[ScoringRequest], bidirectional: bool
) -> Tensor:
    """Compute the last hidden states of inputs, concatenated."""  # (N, W)
    device, single_stack = network.device, network.config.architecture != "encoder-decoder"
    shared, prefix = _common_length(rows), [row.prefix for row in rows]
    if bidirectional or not single_stack or len(set(prefix)) > 1 or prefix[0] > shared:
        shared = 0
    if shared >= MIN_SHARED_PREFIX and isinstance(network, Transformer):
        return _after_shared_prefix(network, rows, shared, device)
    tokens = torch.tensor([id for row in rows for id in row.tokens], device=device)
    lengths = [len(row.tokens) for row in rows]
    mask = Mask(lengths, prefix=None if bidirectional else prefix, device=device)
    if single_stack:
        return network(tokens, mask)
    assert isinstance(network, LanguageNetwork)
    sources = list(dict.fromkeys(row.source for row in rows))
    source_mask = Mask([len(source) for source in sources], device=device)
    ids = torch.tensor([id for source in sources for id in source], device=device)
    numbers = {source: i for i, source in enumerate(sources)}
    each = np.array([numbers[row.source] for row in rows])
    indices = _memory_indices(source_mask, each, network).to(device)
    memory = network.encode_source(ids, source_mask)[indices]
    memory_mask = Mask(source_mask.lengths[each], device=device)
    return network(tokens, mask, memory=memory, memory_mask=memory_mask)


def _common_length(rows: Sequence[ScoringRequest]) -> int:
    """Return how many first tokens all rows have in common, without the last token of any.

    >>> _common_length([ScoringRequest((1, 2, 3, 4), (), ()), ScoringRequest((1, 2, 3), (), ())])
    2
    """
    if len(rows) < 2:
        return 0
    first, last = min(row.tokens for row in rows), max(row.tokens for row in rows)
    pairs = zip(first, last, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    return min(same, min(len(row.tokens) for row in rows) - 1)


def _after_shared_prefix(
    network: Transformer, rows: Sequence[ScoringRequest], shared: int, device: torch.device
) -> Tensor:
    """Compute the hidden states of rows with a common prefix, which is computed once."""  # (N, W)
    rest = np.array([len(row.tokens) - shared for row in rows])
    context = shared + int(rest.max())
    cache = KVCache.empty(network.config, 1, context, device=device, dtype=network.dtype)
    prefix = torch.tensor(rows[0].tokens[:shared], device=device)
    mask = Mask([shared], prefix=[rows[0].prefix], device=device)
    first = network(prefix, mask, cache=cache)
    cache.repeat(len(rows))
    tokens = torch.tensor([id for row in rows for id in row.tokens[shared:]], device=device)
    last = network(tokens, Mask.causal(rest, device=device), cache=cache)
    ends = shared + np.cumsum(rest)
    indices = [
        np.concatenate([np.arange(shared), np.arange(end - own, end)])
        for own, end in zip(rest, ends, strict=True)
    ]
    return torch.cat([first, last])[torch.from_numpy(np.concatenate(indices)).to(device)]


def _memory_indices(source_mask: Mask, each: Longs, network: LanguageNetwork) -> Tensor:
    """Return the indices of each row's encoder output, with the soft prompts after all sources."""
    encoder = network.encoder if isinstance(network, Transformer) else None
    prompt = 0 if encoder is None or encoder.prompt is None else len(encoder.prompt())
    lengths = source_mask.lengths
    starts = np.cumsum(lengths) - lengths
    own = [np.arange(starts[i], starts[i] + lengths[i]) for i in each]
    prompts = [np.arange(prompt) + source_mask.num_tokens + prompt * i for i in each]
    return torch.from_numpy(np.concatenate([*own, *prompts]))
