"""Prediction of the last word of a passage (LAMBADA).

A word is correct if greedy decoding gives each of its tokens (Paperno et al. 2016; with the space
before it, as in Radford et al. 2019). Perplexity is per word, however many tokens it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.inference.scoring.log_likelihood import score_continuations
from firth.inference.scoring.token_scoring import TokenScores, check_language_head
from firth.metrics.bootstrap import means
from firth.metrics.language_modelling import scaled
from firth.models.transformer import max_output_length
from firth.tasks.readers.columns import good_examples, place
from firth.tasks.readers.examples import LastWord
from firth.tasks.readers.sentence_pairs import read_last_words
from firth.tasks.scoring_task import Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.tokenizers.tokenizer import encode_batch
from firth.utils.errors import InputError, MismatchError
from firth.utils.streams import bounded_batches

BATCH_TEXTS = 256  # tokenized and scored together

Pair = tuple[list[int], list[int]]  # tokens of the context and of the word


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute accuracy and perplexity of last words."""
    if scorer.config.architecture != "decoder":
        raise MismatchError(
            f"An {scorer.config.architecture} cannot predict the next word: use a decoder."
        )
    check_language_head(scorer.network, scorer.name)
    examples = list(islice(good_examples(read_last_words, options.file), options.limit or None))
    found: list[TokenScores] = []
    cut = 0
    for batch in bounded_batches(examples, lambda one: len(one.text), max_items=BATCH_TEXTS):
        pairs = list(_pairs(scorer, batch, str(options.data)))
        fitting = [_fitting(scorer, pair) for pair in pairs]
        cut += sum(pair != whole for pair, whole in zip(fitting, pairs, strict=True))
        found += score_continuations(scorer.network, fitting)
        scorer.progress("words guessed", len(found), len(examples))
    right = np.array([score.is_greedy for score in found], dtype=np.float64)
    losses = np.array([-score.sum for score in found])
    metrics = means({"accuracy": right, "perplexity": losses})
    metrics["perplexity"] = scaled(metrics["perplexity"], is_perplexity=True)
    notes = (
        [f"{cut:,} texts were longer than the maximum length; their ends were kept."] if cut else []
    )
    tokens = sum(score.tokens for score in found)
    return ScoringResult(n=len(found), metrics=metrics, details={"tokens": tokens}, notes=notes)


def _pairs(scorer: Scorer, examples: Sequence[LastWord], path: str) -> Iterator[Pair]:
    """Tokenize whole texts and split off the tokens of the last word.

    A token belongs to the word if it ends inside it, so the space before the word does too.
    """
    wholes = [f"{example.text} {example.word}" for example in examples]
    made = encode_batch(scorer.tokenizer.backend, wholes, offsets=True)
    for example, whole, encoding in zip(examples, wholes, made, strict=True):
        ends = [end for _, end in encoding.offsets]
        first = next((i for i, end in enumerate(ends) if end > len(example.text) + 1), len(ends))
        if first > 0 and ends[first - 1] > len(example.text):  # the space is a token of its own
            first -= 1
        begin, _ = prompt_special_tokens(scorer.config, scorer.tokenizer, empty=first == 0)
        context = [*begin, *encoding.ids[:first]]
        if not context or first == len(ends):
            raise InputError(
                f"{place(path, example.line)}: {whole!r:.40} is a single token, so its last word "
                "cannot be predicted."
            )
        yield context, encoding.ids[first:]


def _fitting(scorer: Scorer, pair: Pair) -> Pair:
    """Truncate the start of a context that is too long, but keep BOS."""
    context, word = pair
    most = max_output_length(scorer.network) - len(word) + 1
    if len(context) <= most:
        return pair
    if most < 2:
        raise MismatchError(f"A word of {len(word)} tokens leaves no room for its context.")
    begin = context[:1] if context[0] == scorer.config.bos_token_id else []
    return [*begin, *context[len(context) - most + len(begin) :]], word


LAST_WORD = ScoringTask(
    about="prediction of the last word of a text (LAMBADA)",
    columns="plain text, one per line · text",
    metric="accuracy",
    architectures=("decoder",),
    options=(),
    roles=("text",),
    run=measure,
)
