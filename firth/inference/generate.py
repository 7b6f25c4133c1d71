"""Write on: what a model puts behind a prompt, or makes of what its encoder reads."""

from __future__ import annotations

from collections.abc import Sequence

from firth.adapt.prompts import room_in
from firth.errors import Misuse
from firth.inference.beam import beam_search
from firth.inference.choosing import Choosing, Stops, Written
from firth.inference.settings import Generation
from firth.inference.writing import Prompts
from firth.models.transformer import Transformer

AT_ONCE = 16  # tokens that are chosen without a word between: Ctrl-C waits for them


def generate(
    network: Transformer,
    prompts: Prompts,
    settings: Generation = Generation(),
    *,
    end: int | None,
    room: Sequence[int] | None = None,
    numbers: Sequence[int] | None = None,
    stops: Stops | None = None,
) -> list[list[Written]]:
    """What is written behind each prompt, in tokens: n texts, of beams the best first.

    A decoder goes on from its prompt; behind an encoder, the prompt is what the encoder reads.
    Prompts may be of any lengths. `end` is the token that ends a text, `room` how many tokens fit
    behind each prompt, `numbers` which prompt each is: what is drawn depends on that and the
    seed, not on the others in the batch.
    """
    if not prompts:
        return []
    room = _room(network, prompts) if room is None else room
    fits = [min(settings.max_new_tokens, places) for places in room]
    if settings.method == "beam":
        return beam_search(network, prompts, settings, end=end, room=fits, stops=stops)
    numbers = range(len(prompts)) if numbers is None else numbers
    choosing = Choosing(
        network, prompts, settings, end=end, room=fits, numbers=numbers, stops=stops
    )
    while not choosing.done:
        choosing.step(AT_ONCE)
    return choosing.written()


def _room(network: Transformer, prompts: Prompts) -> list[int]:
    """How many tokens fit behind each prompt."""
    places = room_in(network.stack)
    if network.config.has_encoder:
        return [places - 1] * len(prompts)
    if (longest := max(map(len, prompts))) >= places:
        raise Misuse(f"A prompt has {longest:,} tokens, the model sees only {places:,}; cut it.")
    return [places - len(prompt) for prompt in prompts]


def greedy(
    network: Transformer, prompts: Prompts, *, most: int, end: int | None
) -> list[list[int]]:
    """The likeliest continuation of each prompt, token by token, up to `most` or the end token."""
    settings = Generation(max_new_tokens=most)
    return [list(one.tokens) for [one] in generate(network, prompts, settings, end=end)]
