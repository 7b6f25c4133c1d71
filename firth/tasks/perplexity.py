"""Perplexity of running text, and bits per character and byte.

A decoder scores each token once, in a sliding window. A masked model scores each token with that
token masked: pseudo-perplexity (Salazar et al. 2020). Benchmarks differ in what they count as one
text and as a word; CONVENTIONS names these differences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from firth.data.windows import sliding_windows
from firth.inference.scoring.log_likelihood import no_likelihood_message
from firth.inference.scoring.token_scoring import (
    ScoringRequest,
    check_language_head,
    score_requests,
)
from firth.metrics.bootstrap import Metric
from firth.metrics.language_modelling import COLUMNS, language_model_metrics
from firth.models.transformer import max_text_length
from firth.tasks.inputs import InputTemplate, TokenizedText, task_tokenizer
from firth.tasks.lm import ASSISTANT, LanguageModelTask, trainable_tokens
from firth.tasks.readers.columns import good_examples
from firth.tasks.readers.examples import PassageExample
from firth.tasks.readers.running_text import read_lines, read_passages
from firth.tasks.scoring_task import Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.tasks.task import TaskMetadata
from firth.tokenizers.counting import PIECE
from firth.tokenizers.encoding import BATCH_CHARACTERS, CachedEncoder, encode_parts
from firth.tokenizers.tokenizer import encode_batch
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.rng import Floats, Longs
from firth.utils.streams import bounded_batches

PART_CHARACTERS = 1024  # of a part, the unit of the bootstrap; a shorter text is one part
MAX_PART = 1 << 16  # characters of a part without white space
MAX_PARTS = 1 << 16  # of longer texts, neighbouring parts are merged
DEFAULT_CONTEXT = {True: 1024, False: 256}  # tokens of a window: decoder, masked model
MASKED = (
    "Pseudo-perplexity of a masked model, which sees both sides of a token, is not comparable with "
    "a decoder's perplexity."
)
SHORT = "The text is too short for the bootstrap: the intervals are not meaningful."


@dataclass(frozen=True, kw_only=True)
class PerplexityConvention:
    """What counts as one text and as a word in a benchmark."""

    about: str
    headline: str  # the metric that papers report
    stream: bool = True  # a file is one text; else every document is one
    line_ends: bool = False  # the end of a line counts as a word, <eos>


CONVENTIONS = {
    "plain": PerplexityConvention(
        about="every document is one text; words are separated by white space",
        headline="token_perplexity",
        stream=False,
    ),
    # Merity et al. 2017: 245,569 words in WikiText-103's test file
    "wikitext": PerplexityConvention(
        about="the file is one text; words, and an <eos> for every line, also for empty ones",
        headline="word_perplexity",
        line_ends=True,
    ),
    "ptb": PerplexityConvention(  # Mikolov et al. 2010: 82,430 words in the test file
        about="the file is one text; words, and an <eos> for every line",
        headline="word_perplexity",
        line_ends=True,
    ),
    "enwik8": PerplexityConvention(  # Hutter 2006; called bits per character, counted in bytes
        about="the file is one text; bits per byte",
        headline="bits_per_byte",
    ),
}


@dataclass
class UnknownTokens:
    """Counts targets that are the unknown token, which hides what the text says there."""

    id: int | None
    count: int = 0

    def counted(self, requests: Iterable[ScoringRequest]) -> Iterator[ScoringRequest]:
        """Yield the same requests."""
        for request in requests:
            self.count += sum(target == self.id for target in request.targets)
            yield request

    def notes(self, tokens: int) -> list[str]:
        """Return a note, if there are any."""
        if not self.count:
            return []
        return [
            f"{self.count / tokens:.1%} of the tokens are unknown words, all scored as the same "
            "word: compare only models with this tokenizer."
        ]


class LossAccumulator:
    """Counts and losses of each part of a text, in bounded memory."""

    def __init__(self) -> None:
        self.rows: Floats = np.zeros((MAX_PARTS, len(COLUMNS)))
        self.fold = 0  # how often neighbouring parts were merged
        self.count = 0

    def open(self, text: str, line_ends: bool) -> int:
        """Start a part and return its number."""
        number, self.count = self.count, self.count + 1
        while number >> self.fold >= MAX_PARTS:
            self.rows[: MAX_PARTS // 2] = self.rows[::2] + self.rows[1::2]
            self.rows[MAX_PARTS // 2 :] = 0.0
            self.fold += 1
        words = len(text.split()) + (text.count("\n") if line_ends else 0)
        self.rows[number >> self.fold, 2:] += words, len(text), len(text.encode())
        return number

    def add(self, numbers: Longs, logs: Floats) -> None:
        """Add the log-probabilities of tokens to their parts."""
        rows = numbers >> self.fold
        np.add.at(self.rows[:, 0], rows, -logs)
        np.add.at(self.rows[:, 1], rows, 1.0)

    @property
    def totals(self) -> dict[str, float]:
        """Counts of the whole text."""
        return dict(zip(COLUMNS, self.rows.sum(0).tolist(), strict=True))


@dataclass(frozen=True)
class DocumentEncoder:
    """Tokenizes texts; each token has the number of its part, or -1 if it is not scored."""

    lookup: CachedEncoder
    ledger: LossAccumulator
    convention: PerplexityConvention

    def pieces(self, parts: Iterable[str]) -> Iterator[Longs]:
        """Tokenize the parts of a text; yield arrays (2, L) of tokens and part numbers."""
        for together in bounded_batches(parts, len, max_size=BATCH_CHARACTERS):
            ends = self.convention.line_ends
            numbers = [self.ledger.open(part, ends) for part in together]
            tokens, lengths = encode_parts(self.lookup, [together])
            yield np.stack([tokens, np.repeat(np.array(numbers, np.int64), lengths)])

    def dialogue(self, passage: PassageExample, path: str) -> Iterator[Longs]:
        """Tokenize a dialogue, in which only the assistant's turns are scored."""
        LanguageModelTask().check(TaskMetadata(task="lm"), [passage], Path(path))
        [made] = encode_batch(self.lookup.backend, [passage.text], offsets=True)
        replies = [turn.content for turn in passage.turns if turn.role in ASSISTANT]
        number = self.ledger.open("\n".join(replies), self.convention.line_ends)
        tokens = np.array(made.ids, dtype=np.int64)
        flags = trainable_tokens(passage, TokenizedText(tokens, tuple(made.offsets)))
        yield np.stack([tokens, np.where(flags, number, -1)])


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute perplexity and bits per character and byte of a file."""
    config = scorer.config
    if config.architecture == "encoder-decoder":
        raise MismatchError(no_likelihood_message(config.architecture))
    check_language_head(scorer.network, scorer.name)
    name = options.convention or "plain"
    convention = convention_named(name)
    options = _sized(scorer, options)
    backend = tokenizers.Tokenizer.from_str(scorer.tokenizer.to_json())
    backend.encode_special_tokens = True  # `<unk>` in raw text is no special token
    ledger, pending = LossAccumulator(), deque[Longs]()
    count, texts = _texts(DocumentEncoder(CachedEncoder(backend), ledger, convention), options)
    make_requests = _causal_requests if config.has_decoder else _masked_requests
    bidirectional = not config.has_decoder
    unknown = UnknownTokens(scorer.tokenizer.unknown_id)
    requests = unknown.counted(make_requests(scorer, texts, options, pending))
    done = 0
    for i, score in enumerate(
        score_requests(scorer.network, requests, bidirectional=bidirectional)
    ):
        ledger.add(pending.popleft(), score.log_probs)
        done += score.tokens
        if i % 64 == 63:
            scorer.progress("tokens scored", done, 0)
    if not done:
        raise InputError(f"{options.data} has no text to score.")
    alone = int((ledger.rows[:, 1] > 0).sum()) == 1
    return ScoringResult(
        n=count(),
        metrics=_named(language_model_metrics(ledger.rows), convention, masked=bidirectional),
        details={
            "convention": name,
            "units": "lines" if convention.stream else "documents",
            "context": options.context,
            "stride": options.stride,
            "counts": {key: int(x) for key, x in ledger.totals.items() if key != "nats"},
            "nats": ledger.totals["nats"],
        },
        notes=[
            *(scorer.notes if config.has_decoder else [MASKED]),
            *([SHORT] if alone else []),
            *unknown.notes(done),
        ],
    )


def convention_named(name: str) -> PerplexityConvention:
    """Look up a convention by its name."""
    if name not in CONVENTIONS:
        raise UsageError(f"There is no convention {name!r}; there are {', '.join(CONVENTIONS)}.")
    return CONVENTIONS[name]


def _sized(scorer: Scorer, options: ScoringOptions) -> ScoringOptions:
    """Fill in the defaults of context and stride, and check both."""
    most, decoder = max_text_length(scorer.network), scorer.config.has_decoder
    context = options.context or min(DEFAULT_CONTEXT[decoder], most)
    if not 2 <= context <= most:
        raise UsageError(f"--context is 2 to {most:,} tokens for this model, not {context:,}.")
    if not decoder:
        if options.stride:
            raise UsageError("--stride is for decoders; windows of a masked model do not overlap.")
        return replace(options, context=context, stride=context)
    stride = options.stride or max(1, context // 2)
    if not 1 <= stride < context:
        raise UsageError(f"--stride is 1 to {context - 1:,} tokens in a window of {context:,}.")
    return replace(options, context=context, stride=stride)


def _texts(
    reader: DocumentEncoder, options: ScoringOptions
) -> tuple[Callable[[], int], Iterator[Iterator[Longs]]]:
    """Return a function that counts documents or lines, and the tokenized texts."""
    limit, seen = options.limit or None, [0]

    def counted(items: Iterator[Any]) -> Iterator[Any]:
        for item in islice(items, limit):
            seen[0] += 1
            yield item

    if reader.convention.stream:
        complete = reader.convention.line_ends
        lines = counted(good_examples(partial(read_lines, complete=complete), options.file))
        return lambda: seen[0], iter([reader.pieces(_parts(lines))])
    passages = counted(good_examples(read_passages, options.file))
    texts = (
        reader.dialogue(passage, str(options.data))
        if passage.turns
        else reader.pieces(_parts([passage.text]))
        for passage in passages
    )
    return lambda: seen[0], texts


def _parts(chunks: Iterable[str]) -> Iterator[str]:
    """Split a text into parts of about PART_CHARACTERS that begin with white space.

    Splitting there does not change the tokens. A very long part without white space is split
    anywhere.
    """
    held, at = "", 0
    for chunk in chunks:
        held, at = held[at:] + chunk, 0
        while len(held) - at > 2 * PART_CHARACTERS:
            found = PIECE.match(held, at + PART_CHARACTERS)
            end = found.end() if found else len(held)
            if end == len(held):  # the next chunk may continue it
                if end - at <= MAX_PART:
                    break
                end = at + MAX_PART
            yield held[at:end]
            at = end
    if held[at:]:
        yield held[at:]


def _causal_requests(
    scorer: Scorer, texts: Iterable[Iterator[Longs]], options: ScoringOptions, pending: deque[Longs]
) -> Iterator[ScoringRequest]:
    """Yield requests of a decoder: every token given the preceding tokens of its window."""
    begin = scorer.config.bos_token_id
    first = [] if begin is None else [np.array([[begin], [-1]])]
    for pieces in texts:
        for (tokens, numbers), known in sliding_windows(
            chain(first, pieces), options.context, options.stride
        ):
            places = known + np.flatnonzero(numbers[known:] >= 0)
            if len(places):
                pending.append(numbers[places])
                yield ScoringRequest(
                    tuple(tokens[:-1].tolist()),
                    (places - 1).tolist(),
                    tokens[places].tolist(),
                    prefix=scorer.config.prefix_length(int(places[0])),
                )


def _masked_requests(
    scorer: Scorer, texts: Iterable[Iterator[Longs]], options: ScoringOptions, pending: deque[Longs]
) -> Iterator[ScoringRequest]:
    """Yield requests of a masked model: every token of a window, masked in turn."""
    mask = scorer.tokenizer.special_ids.get("mask")
    if mask is None:
        raise MismatchError(
            "This model's tokenizer has no mask token, which pseudo-perplexity needs."
        )
    tokenizer = task_tokenizer(scorer.config, scorer.tokenizer, "language")
    template = InputTemplate(tokenizer, scorer.config, options.context)
    size = template.room()
    for pieces in texts:
        for (tokens, numbers), _ in sliding_windows(pieces, size, size, known=0):
            framed = template.one(TokenizedText(tokens, ()))
            row = framed.tokens.tolist()
            for place in np.flatnonzero(numbers >= 0).tolist():
                at = framed.first + place
                pending.append(numbers[place : place + 1])
                yield ScoringRequest((*row[:at], mask, *row[at + 1 :]), (at,), (row[at],))


def _named(
    metrics: dict[str, Metric], convention: PerplexityConvention, masked: bool
) -> dict[str, Metric]:
    """Put the convention's metric first; rename those of a masked model."""
    if masked:
        names = {
            "token_perplexity": "pseudo_perplexity",
            "word_perplexity": "pseudo_word_perplexity",
        }
        return {name: metrics[old] for old, name in names.items()}
    first = convention.headline
    return {first: metrics[first], **metrics}


LM = ScoringTask(
    about="language modelling: perplexity, bits per byte",
    columns="plain text · text · messages",
    metric="loss",
    architectures=("encoder", "decoder"),
    options=("convention", "context", "stride"),
    roles=("text",),
    run=measure,
)
