"""The last word of a text, which only someone who has read all of it can guess (LAMBADA).

A word is right if the model finds each of its tokens likeliest, one behind the other (Paperno et
al. 2016; with the space before it, as Radford et al. 2019 ask). Its perplexity is that of whole
words, however many tokens they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from firth.adapt.prompts import room_in
from firth.errors import InputError, MismatchError
from firth.inference.framing import given
from firth.inference.rows import Score, check_head
from firth.inference.score import continuations
from firth.metrics.bootstrap import means
from firth.metrics.language import scaled
from firth.tasks.reading.columns import place
from firth.tasks.reading.examples import LastWord
from firth.tasks.reading.judged import read_last_words
from firth.tasks.scoring import Asking, Measure, Measured, Scorer

AT_ONCE = 256  # texts that are tokenised and scored together

Pair = tuple[list[int], list[int]]  # what stands before, and the word, in tokens


def measure(scorer: Scorer, asking: Asking) -> Measured:
    """How often the last word is guessed, and how likely it is."""
    if scorer.config.architecture != "decoder":
        raise MismatchError(
            f"An {scorer.config.architecture} cannot be asked how a text goes on, since it does "
            "not read from left to right; last words take a decoder."
        )
    check_head(scorer.network, scorer.name)
    options = {"format": asking.format, "limit": asking.limit, **asking.columns}
    examples = read_last_words(asking.data, **options)  # type: ignore[arg-type]
    found: list[Score] = []
    cut = 0
    for begin in range(0, len(examples), AT_ONCE):
        pairs = list(_pairs(scorer, examples[begin : begin + AT_ONCE], str(asking.data)))
        fitting = [_fitting(scorer, pair) for pair in pairs]
        cut += sum(pair != whole for pair, whole in zip(fitting, pairs, strict=True))
        found += continuations(scorer.network, fitting)
        scorer.progress("words guessed", len(found), len(examples))
    right = np.array([score.is_greedy for score in found], dtype=np.float64)
    losses = np.array([-score.sum for score in found])
    figures = means({"accuracy": right, "perplexity": losses})
    figures["perplexity"] = scaled(figures["perplexity"], is_perplexity=True)
    notes = [f"Longer than the model reads: {cut:,}, whose ends were kept."] if cut else []
    tokens = sum(score.tokens for score in found)
    return Measured(n=len(found), figures=figures, details={"tokens": tokens}, notes=notes)


def _pairs(scorer: Scorer, examples: Sequence[LastWord], path: str) -> Iterator[Pair]:
    """Texts and their last words in tokens, as they are when the whole is tokenised.

    A token belongs to the word if it ends in it, so the space before a word does, too.
    """
    begin = given(scorer.config.begin_id)
    wholes = [f"{example.text} {example.word}" for example in examples]
    made = scorer.tokenizer.backend.encode_batch(wholes, add_special_tokens=False)
    for example, whole, encoding in zip(examples, wholes, made, strict=True):
        ends = [end for _, end in encoding.offsets]
        first = next((i for i, end in enumerate(ends) if end > len(example.text) + 1), len(ends))
        if first > 0 and ends[first - 1] > len(example.text):  # the space is a token of its own
            first -= 1
        context = [*begin, *encoding.ids[:first]]
        if not context or first == len(ends):
            raise InputError(
                f"{place(path, example.line)}: the tokenizer makes one token of all of "
                f"{whole!r:.40}, so no word of it can be asked for."
            )
        yield context, encoding.ids[first:]


def _fitting(scorer: Scorer, pair: Pair) -> Pair:
    """The end of a context that is too long, with the token that begins a text."""
    context, word = pair
    most = room_in(scorer.network.stack) - len(word) + 1
    if len(context) <= most:
        return pair
    if most < 2:
        raise MismatchError(f"A word of {len(word)} tokens leaves the model nothing to read.")
    begin = context[:1] if context[0] == scorer.config.begin_id else []
    return [*begin, *context[len(context) - most + len(begin) :]], word


LAST_WORD = Measure(
    about="the last word of a text, guessed from all before it (LAMBADA)",
    columns="plain text, one on each line · text",
    metric="accuracy",
    architectures=("decoder",),
    options=(),
    roles=("text",),
    run=measure,
)
