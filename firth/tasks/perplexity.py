"""How well a model predicts running text: perplexity, and bits for each character and byte.

A decoder reads every text through a window that slides over it, and is asked for each token once.
A masked model is asked for each token hidden in turn: its pseudo-perplexity (Salazar et al. 2020).
What is counted, and what is one text, is a convention; the field has several, and they have names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from firth.adapt.prompts import room
from firth.draws import Floats, Longs
from firth.errors import InputError, MismatchError, Misuse
from firth.inference.rows import Asked, check_head, scores
from firth.inference.score import cannot_read_whole
from firth.inference.windows import windows
from firth.metrics.bootstrap import Figure
from firth.metrics.language import COLUMNS, language
from firth.streams import in_windows
from firth.tasks.frame import Frame, Text, make_frame
from firth.tasks.lm import ASSISTANT, Continue, learned_tokens
from firth.tasks.reading.examples import Passage
from firth.tasks.reading.passages import read_lines, read_passages
from firth.tasks.scoring import Asking, Measure, Measured, Scorer
from firth.tasks.task import Facts
from firth.text.counting import PIECE
from firth.text.encoding import TOGETHER, Lookup, encode_parts

UNIT = 1024  # characters of a part that is resampled; a shorter text is one part
LONGEST = 1 << 16  # characters of a part in which nothing says where to cut
MOST = 1 << 16  # parts that are told apart; of a longer text, neighbours are counted together
CONTEXT = {True: 1024, False: 256}  # tokens of a window for a decoder; for a masked model
MASKED = (
    "A masked model sees both sides of a token: its pseudo-perplexity is not comparable with a "
    "decoder's perplexity."
)
SHORT = "The text is a single part, too short to resample: the intervals say nothing."


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What is one text, and what is counted in it."""

    about: str
    headline: str  # the figure that papers print
    stream: bool = True  # a file is one text, line by line; else every document is one
    line_ends: bool = False  # the end of a line counts as a word, <eos>


CONVENTIONS = {
    "plain": Convention(
        about="every document by itself; words are what stands between white space",
        headline="token_perplexity",
        stream=False,
    ),
    "wikitext": Convention(  # Merity et al. 2017: 245,569 words in WikiText-103's test file
        about="the whole file as one text; words, and an <eos> for every line, also an empty one",
        headline="word_perplexity",
        line_ends=True,
    ),
    "ptb": Convention(  # Mikolov et al. 2010: 82,430 words in the test file
        about="the whole file as one text; words, and an <eos> for every line",
        headline="word_perplexity",
        line_ends=True,
    ),
    "enwik8": Convention(  # Hutter 2006; called bits per character, counted in bytes
        about="the whole file as one text; bits for each of its bytes",
        headline="bits_per_byte",
    ),
}


class Ledger:
    """What is counted in each part of a text, in memory that does not grow with the text."""

    def __init__(self) -> None:
        self.rows: Floats = np.zeros((MOST, len(COLUMNS)))
        self.fold = 0  # how often neighbours were put together
        self.count = 0

    def open(self, text: str, line_ends: bool) -> int:
        """Begin a part: the number by which its tokens are counted."""
        number, self.count = self.count, self.count + 1
        while number >> self.fold >= MOST:
            self.rows[: MOST // 2] = self.rows[::2] + self.rows[1::2]
            self.rows[MOST // 2 :] = 0.0
            self.fold += 1
        words = len(text.split()) + (text.count("\n") if line_ends else 0)
        self.rows[number >> self.fold, 2:] += words, len(text), len(text.encode())
        return number

    def add(self, numbers: Longs, logs: Floats) -> None:
        """Count tokens, each in the part it belongs to."""
        rows = numbers >> self.fold
        np.add.at(self.rows[:, 0], rows, -logs)
        np.add.at(self.rows[:, 1], rows, 1.0)

    @property
    def totals(self) -> dict[str, float]:
        """Of everything."""
        return dict(zip(COLUMNS, self.rows.sum(0).tolist(), strict=True))


@dataclass(frozen=True)
class Reader:
    """Texts in tokens, each with the number of the part it belongs to; -1: it is not asked for."""

    lookup: Lookup
    ledger: Ledger
    convention: Convention

    def pieces(self, parts: Iterable[str]) -> Iterator[Longs]:
        """A text that comes in parts, in pieces (2, L): tokens and their numbers."""
        for together in in_windows(parts, len, TOGETHER):
            ends = self.convention.line_ends
            numbers = [self.ledger.open(part, ends) for part in together]
            tokens, lengths = encode_parts(self.lookup, [together])
            yield np.stack([tokens, np.repeat(np.array(numbers, np.int64), lengths)])

    def dialogue(self, passage: Passage, path: str) -> Iterator[Longs]:
        """A dialogue, of which only what the assistant says is asked for."""
        Continue().check(Facts(task="lm"), [passage], Path(path))
        made = self.lookup.backend.encode(passage.text, add_special_tokens=False)
        said = [turn.content for turn in passage.turns if turn.role in ASSISTANT]
        number = self.ledger.open("\n".join(said), self.convention.line_ends)
        tokens = np.array(made.ids, dtype=np.int64)
        flags = learned_tokens(passage, Text(tokens, tuple(made.offsets)))
        yield np.stack([tokens, np.where(flags, number, -1)])


def measure(scorer: Scorer, asking: Asking) -> Measured:
    """The perplexity of a file, and its bits for each character and byte."""
    config = scorer.config
    if config.architecture == "encoder-decoder":
        raise MismatchError(cannot_read_whole(config.architecture))
    check_head(scorer.network, scorer.name)
    name = asking.convention or "plain"
    convention = convention_named(name)
    asking = _sized(scorer, asking)
    backend = tokenizers.Tokenizer.from_str(scorer.tokenizer.to_json())
    backend.encode_special_tokens = True  # a `<unk>` in raw text is only letters
    ledger, awaited = Ledger(), deque[Longs]()
    count, texts = _texts(Reader(Lookup(backend), ledger, convention), asking)
    ask = _continued if config.has_decoder else _hidden
    both_ways = not config.has_decoder
    asked = ask(scorer, texts, asking, awaited)
    done = 0
    for i, score in enumerate(scores(scorer.network, asked, both_ways=both_ways)):
        ledger.add(awaited.popleft(), score.logs)
        done += score.tokens
        if i % 64 == 63:
            scorer.progress("tokens scored", done, 0)
    if not done:
        raise InputError(f"{asking.data} holds no text that could be asked for.")
    alone = int((ledger.rows[:, 1] > 0).sum()) == 1
    return Measured(
        n=count(),
        figures=_named(language(ledger.rows), convention, masked=both_ways),
        details={
            "convention": name,
            "units": "lines" if convention.stream else "documents",
            "context": asking.context,
            "stride": asking.stride,
            "counts": {key: int(x) for key, x in ledger.totals.items() if key != "nats"},
            "nats": ledger.totals["nats"],
        },
        notes=(scorer.notes if config.has_decoder else [MASKED]) + ([SHORT] if alone else []),
    )


def convention_named(name: str) -> Convention:
    """A convention by its name."""
    if name not in CONVENTIONS:
        raise Misuse(f"There is no convention {name!r}; there are {', '.join(CONVENTIONS)}.")
    return CONVENTIONS[name]


def _sized(scorer: Scorer, asking: Asking) -> Asking:
    """How much is read at once, and how far the window slides."""
    most, decoder = room(scorer.network), scorer.config.has_decoder
    context = asking.context or min(CONTEXT[decoder], most)
    if not 2 <= context <= most:
        raise Misuse(f"--context is 2 to {most:,} tokens for this model, not {context:,}.")
    if not decoder:
        if asking.stride:
            raise Misuse("--stride is for decoders; a masked model reads pieces side by side.")
        return replace(asking, context=context, stride=context)
    stride = asking.stride or max(1, context // 2)
    if not 1 <= stride < context:
        raise Misuse(f"--stride is 1 to {context - 1:,} tokens in a window of {context:,}.")
    return replace(asking, context=context, stride=stride)


def _texts(reader: Reader, asking: Asking) -> tuple[Callable[[], int], Iterator[Iterator[Longs]]]:
    """How many documents or lines there were, once they are read; and each text in pieces."""
    limit, seen = asking.limit or None, [0]
    options: dict[str, Any] = {"format": asking.format, **asking.columns}

    def counted(items: Iterator[Any]) -> Iterator[Any]:
        for item in islice(items, limit):
            seen[0] += 1
            yield item

    if reader.convention.stream:
        complete = reader.convention.line_ends
        lines = counted(read_lines(asking.data, complete=complete, **options))
        return lambda: seen[0], iter([reader.pieces(_parts(lines))])
    passages = counted(read_passages(asking.data, **options))
    texts = (
        reader.dialogue(passage, str(asking.data))
        if passage.turns
        else reader.pieces(_parts([passage.text]))
        for passage in passages
    )
    return lambda: seen[0], texts


def _parts(chunks: Iterable[str]) -> Iterator[str]:
    """A text that comes in chunks, in parts of some UNIT characters that begin with white space.

    Cut there, the parts have the tokens of the whole. Where there is none for very long, they are
    cut anywhere.
    """
    held, at = "", 0
    for chunk in chunks:
        held, at = held[at:] + chunk, 0
        while len(held) - at > 2 * UNIT:
            found = PIECE.match(held, at + UNIT)
            end = found.end() if found else len(held)
            if end == len(held):  # what follows may belong to it
                if end - at <= LONGEST:
                    break
                end = at + LONGEST
            yield held[at:end]
            at = end
    if held[at:]:
        yield held[at:]


def _continued(
    scorer: Scorer, texts: Iterable[Iterator[Longs]], asking: Asking, awaited: deque[Longs]
) -> Iterator[Asked]:
    """What a decoder is asked: every token behind those of its window that stand before it."""
    begin = scorer.config.begin_id
    first = [] if begin is None else [np.array([[begin], [-1]])]
    for pieces in texts:
        for (tokens, numbers), known in windows(
            chain(first, pieces), asking.context, asking.stride
        ):
            places = known + np.flatnonzero(numbers[known:] >= 0)
            if len(places):
                awaited.append(numbers[places])
                yield Asked(
                    tuple(tokens[:-1].tolist()), (places - 1).tolist(), tokens[places].tolist()
                )


def _hidden(
    scorer: Scorer, texts: Iterable[Iterator[Longs]], asking: Asking, awaited: deque[Longs]
) -> Iterator[Asked]:
    """What a masked model is asked: every token of a piece, hidden in turn."""
    mask = scorer.tokenizer.special_ids.get("mask")
    if mask is None:
        raise MismatchError("This model's tokenizer has no mask token, so no token can be hidden.")
    frame: Frame = make_frame(scorer.config, scorer.tokenizer, asking.context)
    size = frame.room()
    for pieces in texts:
        for (tokens, numbers), _ in windows(pieces, size, size, known=0):
            framed = frame.one(Text(tokens, ()))
            row = framed.tokens.tolist()
            for place in np.flatnonzero(numbers >= 0).tolist():
                at = framed.first + place
                awaited.append(numbers[place : place + 1])
                yield Asked((*row[:at], mask, *row[at + 1 :]), (at,), (row[at],))


def _named(figures: dict[str, Figure], convention: Convention, masked: bool) -> dict[str, Figure]:
    """The figure that papers print first; a masked model's say that they are something else."""
    if masked:
        names = {
            "token_perplexity": "pseudo_perplexity",
            "word_perplexity": "pseudo_word_perplexity",
        }
        return {name: figures[old] for old, name in names.items()}
    first = convention.headline
    return {first: figures[first], **figures}


LM = Measure(
    about="going on with a text: perplexity, bits per byte",
    columns="plain text · text · messages",
    metric="loss",
    architectures=("encoder", "decoder"),
    options=("convention", "context", "stride"),
    roles=("text",),
    run=measure,
)
