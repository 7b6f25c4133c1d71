"""Write on: the likeliest next token, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from firth.adapt.prompts import room_in
from firth.errors import MismatchError, Misuse
from firth.models.cache import Cache
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer


@torch.no_grad()
def greedy(
    network: Transformer, prompts: Sequence[Sequence[int]], *, most: int, end: int | None
) -> list[list[int]]:
    """The likeliest continuation of each prompt, token by token, up to `most` or the end token.

    A decoder goes on from its prompt; behind an encoder, the prompt is what the encoder reads.
    """
    device = network.tokens.weight.device
    tokens = torch.tensor([id for prompt in prompts for id in prompt], device=device)
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    room = most + 1 if network.config.has_encoder else longest + most
    size = {"device": device, "dtype": network.tokens.weight.dtype}
    cache = Cache.empty(network.config, len(prompts), room, **size)  # type: ignore[arg-type]
    if network.config.has_encoder:
        cache.memory = Mask(lengths, device=device)
        memory = network.encode(tokens, cache.memory)
        start = torch.full((len(prompts),), network.config.start_id or 0, device=device)
        mask = Mask.causal([1] * len(prompts), device=device)
        hidden = network(start, mask, memory=memory, cache=cache)
    else:
        hidden = network(tokens, Mask.causal(lengths, device=device), cache=cache)
        hidden = hidden[torch.tensor(lengths, device=device).cumsum(0) - 1]
    return _continue(network, hidden, cache, most, end)


def _continue(
    network: Transformer, hidden: Tensor, cache: Cache, most: int, end: int | None
) -> list[list[int]]:
    """Choose, and look again, until every sequence has ended."""
    rows = len(hidden)
    step = Mask.causal([1] * rows, device=hidden.device)
    chosen: list[Tensor] = []
    ended = torch.zeros(rows, dtype=torch.bool, device=hidden.device)
    for i in range(most):
        token = network.logits(hidden).argmax(-1)  # (B,)
        chosen.append(token)
        ended |= token == (-1 if end is None else end)
        if bool(ended.all()) or i == most - 1:
            break
        hidden = network(token, step, cache=cache)
    written = torch.stack(chosen, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in written]


def continue_text(
    network: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    most: int = 40,
    reader: Tokenizer | None = None,
) -> str:
    """What a model writes after a prompt, or makes of what its encoder reads; without the prompt.

    A decoder is given the token that begins a document first; an encoder, the one that ends it,
    or, with a tokenizer of its own (`reader`), what that puts around a text.
    """
    config = network.config
    if not config.has_decoder:
        raise MismatchError(
            "An encoder does not write: it sees both sides of every token. Take a decoder or an "
            "encoder-decoder."
        )
    ids = tokenizer.encode(prompt) if reader is None else reader.encode(prompt, specials=True)
    begin = [config.begin_id] if config.begin_id is not None else []
    end = [config.end_id] if config.end_id is not None else []
    if reader is None:
        ids = [*ids, *end] if config.has_encoder else [*begin, *ids]
    if not ids:
        raise Misuse("There is no text to go on from.")
    places = room_in(network.stack)
    room = places - len(ids)
    if not config.has_encoder and room < 1:
        raise Misuse(f"The prompt has {len(ids)} tokens, the model sees only {places}.")
    most = min(most, places - 1 if config.has_encoder else room)
    written = greedy(network, [ids], most=most, end=config.end_id)[0]
    return tokenizer.decode(written)
