"""Texts that a model puts behind texts: prompts in words, completions in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from firth.adapt.prompts import reading_room, room_in
from firth.errors import MismatchError, Misuse
from firth.inference.choosing import Choosing, Written
from firth.inference.explain import Step, explain
from firth.inference.framing import around_prompt
from firth.inference.generate import generate
from firth.inference.settings import Generation
from firth.inference.spelling import Speller, Stream, cut, stops_in
from firth.models.transformer import Transformer
from firth.text.readers import INVALID
from firth.text.tokenizer import Tokenizer

BATCH = {"cpu": 1 << 14, "cuda": 1 << 18}  # tokens that are kept at once
ROWS = 256  # texts that are written at once, at most


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A text that a model wrote behind a prompt."""

    text: str  # without the prompt; a stop string and what follows it are cut off
    tokens: tuple[int, ...]  # all that were written, but the one that ends a text
    score: float  # mean log-probability of a token; of beams, what the search compared
    logprob: float  # sum of the log-probabilities, that of an end too
    ended: str  # end: the model ended it; stop: a stop string came; length: it was enough
    steps: tuple[Step, ...] = ()  # how each token was chosen, where that is asked for

    def values(self) -> dict[str, Any]:
        """As JSON knows it."""
        values = {**asdict(self), "tokens": list(self.tokens)}
        return values if self.steps else {k: v for k, v in values.items() if k != "steps"}


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A prompt, and what was written behind it."""

    prompt: str
    completions: tuple[Completion, ...]
    notes: tuple[str, ...] = ()  # what of the prompt was not used

    def values(self) -> dict[str, Any]:
        """As JSON knows it."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        found = [completion.values() for completion in self.completions]
        return {"prompt": self.prompt, "completions": found, **notes}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt as a network is given it."""

    text: str
    ids: tuple[int, ...]
    room: int  # new tokens that fit, at most
    speller: Speller
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Teller:
    """A network that writes, with the tokenizers of what it writes and reads."""

    network: Transformer
    tokenizer: Tokenizer
    reader: Tokenizer | None = None  # of an encoder that has its own
    taught: bool = False  # it learned a task, with texts as the tokenizer frames them
    settings: Generation = field(default_factory=Generation)
    explains: bool = False  # every completion says how its tokens were chosen

    def __post_init__(self) -> None:
        config = self.network.config
        if not config.has_decoder:
            raise MismatchError(
                "An encoder does not write: it learned to see both sides of every token, and "
                f"behind a prompt there is nothing yet. {self._instead} to write, take a decoder "
                "or an encoder-decoder."
            )
        if "language" not in self.network.heads:
            raise MismatchError(
                "This model has no head that predicts tokens, so it cannot write; it was taught "
                "labels, which `firth predict` asks it for."
            )

    @property
    def _instead(self) -> str:
        """What an encoder can do."""
        if "language" in self.network.heads:
            return "It can fill blanks (`firth fill`);"
        return "It makes vectors (`firth embed`), and has no head that predicts tokens;"

    @property
    def end(self) -> int | None:
        """The token that ends a text."""
        return self.network.config.end_id

    def ask(self, text: str) -> Asked:
        """Make a prompt of a text; of one that is too long, the end is kept."""
        config, most = self.network.config, self.settings.max_new_tokens
        text = INVALID.sub("\ufffd", text)
        head, tail = around_prompt(config, self.tokenizer, self.reader, taught=self.taught)
        body = (self.reader or self.tokenizer).encode(text)
        size = len(head) + len(body) + len(tail)
        if not size:
            raise Misuse(
                "There is no text to go on from, and this model has no token that begins one: "
                "write a word or two."
            )
        places, reads, notes = room_in(self.network.stack), reading_room(self.network), []
        if config.has_encoder:
            seen, room = reads, min(most, places - 1)
        else:
            seen = places - 1 if size < places else max(1, places - most, places // 2)
            room = min(most, places - min(size, seen))
        kept = len(body) - max(0, size - seen)
        if kept < len(body):
            body = body[len(body) - kept :]
            notes.append(
                f"The prompt has {size:,} tokens, the model sees {reads:,}: only the last "
                f"{kept:,} are kept."
            )
        if room < most:
            notes.append(f"Only {room:,} of {most:,} new tokens fit.")
        marks = (config.begin_id, config.padding_id, config.end_id, config.start_id)
        hidden = frozenset(id for id in marks if id is not None)
        before = () if config.has_encoder else tuple(body)
        speller = Speller(tokenizer=self.tokenizer, before=before, hidden=hidden)
        ids = (*head, *body, *tail)
        return Asked(text=text, ids=ids, room=room, speller=speller, notes=tuple(notes))

    def complete(self, prompts: Iterable[str]) -> Iterator[Completed]:
        """Completions of many prompts, as they come; memory for one batch of them."""
        return self.write(zip(count(), map(self.ask, prompts)))

    def write(self, asked: Iterable[tuple[int, Asked]]) -> Iterator[Completed]:
        """The same of prompts that were made; what is drawn depends on their numbers."""
        for batch in _batches(asked, self._budget(), self.settings):
            yield from self._completed(*zip(*batch, strict=True))

    def _budget(self) -> int:
        return BATCH.get(self.network.tokens.weight.device.type, BATCH["cpu"])

    def _completed(self, numbers: Sequence[int], batch: Sequence[Asked]) -> list[Completed]:
        """Of one batch."""
        stops = self.settings.stop
        found = generate(
            self.network,
            [asked.ids for asked in batch],
            self.settings,
            end=self.end,
            room=[asked.room for asked in batch],
            numbers=numbers,
            stops=(lambda i, ids: stops_in(batch[i].speller, ids, stops)) if stops else None,
        )
        return [
            Completed(
                prompt=asked.text,
                completions=tuple(self._completion(asked, written) for written in rows),
                notes=asked.notes,
            )
            for asked, rows in zip(batch, found, strict=True)
        ]

    def stream(self, prompt: str) -> Iterator[str | Completed]:
        """The one completion of a prompt, in pieces as they become certain; at last, all of it."""
        settings = self.settings
        if settings.ways > 1:
            raise Misuse("Only one completion can be told as it comes: no beams, and n=1.")
        asked, stops = self.ask(prompt), settings.stop
        choosing = Choosing(
            self.network,
            [asked.ids],
            settings,
            end=self.end,
            room=[asked.room],
            numbers=[0],
            stops=(lambda i, ids: stops_in(asked.speller, ids, stops)) if stops else None,
        )
        telling = Stream(asked.speller, stops)
        while not choosing.done:
            token = int(choosing.step())
            if token == self.end:  # a GPU may look later whether that was the end
                break
            if piece := telling.add(token):
                yield piece
        if piece := telling.finish():
            yield piece
        completion = self._completion(asked, choosing.written()[0][0])
        yield Completed(prompt=asked.text, completions=(completion,), notes=asked.notes)

    def _completion(self, asked: Asked, written: Written) -> Completion:
        """What was written, in words."""
        text = cut(asked.speller.text(written.tokens), self.settings.stop)
        steps: tuple[Step, ...] = ()
        if self.explains:
            ends = [self.end] if written.ended == "end" and self.end is not None else []
            said = [*written.tokens, *ends]
            steps = explain(self.network, asked.speller, asked.ids, said, self.settings)
        return Completion(text=text, steps=steps, **asdict(written))


def _batches(
    asked: Iterable[tuple[int, Asked]], budget: int, settings: Generation
) -> Iterator[list[tuple[int, Asked]]]:
    """Neighbours, so many that the texts behind them are about so many tokens together."""
    batch: list[tuple[int, Asked]] = []
    longest = 0
    for number, one in asked:
        own = len(one.ids) + one.room
        texts = (len(batch) + 1) * settings.ways
        if batch and (texts * max(longest, own) > budget or texts > ROWS):
            yield batch
            batch, longest = [], 0
        batch.append((number, one))
        longest = max(longest, own)
    if batch:
        yield batch


def continue_text(
    network: Transformer, tokenizer: Tokenizer, prompt: str, *, most: int = 40
) -> str:
    """The likeliest text behind a prompt, or of what an encoder reads; without the prompt."""
    settings = Generation(max_new_tokens=most)
    teller = Teller(network=network, tokenizer=tokenizer, settings=settings)
    return next(teller.complete([prompt])).completions[0].text
