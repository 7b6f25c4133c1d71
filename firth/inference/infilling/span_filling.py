"""Fill blanks with a model that generates spans of any length.

T5, or a decoder pre-trained with a denoising objective, generates each span after its sentinel;
BART generates the whole text again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.generation.beam_search import beam_search
from firth.inference.generation.generation_config import MAX_SEQUENCES, GenerationConfig
from firth.inference.generation.sampling import GeneratedTokens
from firth.inference.generation.token_generation import greedy_decode
from firth.inference.infilling.blanks import BlankedText, BlankFill, span_fill, tokenize_words
from firth.inference.infilling.fill_methods import (
    MAX_SPAN_TOKENS,
    BlankFiller,
    EncodedBlanks,
    FillCandidate,
    FilledSentence,
    FillResult,
    Ids,
)
from firth.inference.scoring.token_scoring import ScoringRequest, score_requests
from firth.models.config import LanguageModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import max_output_length
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError
from firth.utils.streams import bounded_batches

EXTRA_TOKENS = 8  # per blank, that a regenerated text may be longer than its input
MAX_BEAMS = 320  # in a batch


def fill_sentinels(
    network: LanguageNetwork, tokenizer: Tokenizer, corrupted: Sequence[int]
) -> list[list[int]]:
    """Generate the span of each sentinel in a corrupted text, greedily (T5)."""
    sentinels = [id for id in corrupted if id in set(tokenizer.sentinel_ids)]
    if not sentinels:
        raise UsageError("The text has no sentinel: write <extra_id_0> where something is missing.")
    limit = min(network.config.max_positions - 1, 8 * len(sentinels) + 8)
    eos_token_id = network.config.eos_token_ids
    [output] = greedy_decode(
        network, [list(corrupted)], max_new_tokens=limit, eos_token_id=eos_token_id
    )
    return [tokens_after_sentinel(output, id, set(sentinels)) for id in sentinels]


def tokens_after_sentinel(output: Sequence[int], sentinel: int, sentinels: set[int]) -> list[int]:
    """Return the tokens after a sentinel, up to the next one.

    >>> tokens_after_sentinel([90, 1, 2, 91, 3], 90, {90, 91})
    [1, 2]
    >>> tokens_after_sentinel([90, 1], 91, {90, 91})
    []
    """
    if sentinel not in output:
        return []
    span = []
    for id in output[output.index(sentinel) + 1 :]:
        if id in sentinels:
            break
        span.append(id)
    return span


# ---- constraints --------------------------------------------------------------------------------


def allowed_span_tokens(filler: BlankFiller, blanks: int) -> Callable[[Sequence[int]], Tensor]:
    """Return a function that maps T5's output so far to the tokens that may follow it.

    An output is each sentinel in order with a span after it; the last span ends with the next
    sentinel or the end token. Spans contain neither sentinels nor other special tokens.
    """
    tokenizer, config = filler.tokenizer, filler.network.config
    sentinels = tokenizer.sentinel_ids[: blanks + 1]
    last = [sentinels[-1], *([] if config.eos_token_id is None else [config.eos_token_id])]
    number = {id: i for i, id in enumerate(sentinels)}
    is_text = torch.zeros(config.vocab_size, dtype=torch.bool)
    is_text[: len(tokenizer)] = True
    is_text[[*tokenizer.backend.get_added_tokens_decoder(), *tokenizer.sentinel_ids]] = False

    def allowed_next(output: Sequence[int]) -> Tensor:
        begin = max((i for i, id in enumerate(output) if id in number), default=-1)
        blank = number[output[begin]] if output else -1
        full = not output or len(output) - begin > MAX_SPAN_TOKENS
        allowed = torch.zeros_like(is_text) if full else is_text.clone()
        allowed[last if blank == blanks - 1 else sentinels[blank + 1]] = True
        return allowed

    return allowed_next


def extract_fills(blanks: BlankedText, tokenizer: Tokenizer, text: str) -> list[str] | None:
    """Return what a regenerated text has in each blank; None if it changed the other parts."""
    parts = [
        r"\s+".join(map(re.escape, tokenizer.decode(tokenizer.encode(part)).split()))
        for part in blanks.parts
    ]
    match = re.fullmatch(r"\s*" + r"\s*(.*?)\s*".join(parts) + r"\s*", text, re.DOTALL)
    return list(match.groups()) if match else None


# ---- generation ---------------------------------------------------------------------------------


class GeneratedFill(NamedTuple):
    """A generated output: the text of each blank, and the filled text."""

    parts: tuple[str, ...]  # empty if the output changed more than the blanks
    log_prob: float
    text: str


def fill_by_generation(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], top: int, targets: Sequence[str]
) -> list[FillResult]:
    """Fill blanks by beam search, or score the given `targets`."""
    results = []
    beams = min(2 * top, MAX_SEQUENCES)  # several outputs may have the same text
    for batch in bounded_batches(questions, lambda one: beams, max_size=MAX_BEAMS):
        if targets:
            fills = _score(filler, batch, targets)
        else:
            found = zip(batch, generate_fills(filler, batch, beams), strict=True)
            fills = [[_decode(filler, question, one) for one in own] for question, own in found]
        for question, own in zip(batch, fills, strict=True):
            results.append(_merge(question, own, len(targets) or top))
    return results


def generate_fills(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], beams: int
) -> list[list[GeneratedTokens]]:
    """Return the most probable outputs of the decoder for each text, best first."""
    network = filler.network
    options: dict[str, Any] = {}
    if filler.method == "spans":
        counts = [len(question.blanks) for question in questions]
        allowed = {count: allowed_span_tokens(filler, count) for count in counts}
        sentinels = filler.tokenizer.sentinel_ids
        options["allowed_tokens"] = lambda i, output: allowed[counts[i]](output)
        options["should_stop"] = lambda i, output: output[-1] == sentinels[counts[i]]
    return beam_search(
        network,
        [question.ids for question in questions],
        GenerationConfig(method="beam", beams=beams, n=beams, length_penalty=0.0),
        eos_token_id=network.config.eos_token_ids,
        limits=[max_fill_tokens(filler, question) for question in questions],
        **options,
    )


def max_fill_tokens(filler: BlankFiller, question: EncodedBlanks) -> int:
    """The maximum length of an output: of all spans, or a little more than the input."""
    blanks = len(question.blanks)
    longest = len(question.ids) + EXTRA_TOKENS * blanks
    if filler.method == "spans":
        longest = blanks * (MAX_SPAN_TOKENS + 1) + 1
    before = 1 if filler.network.config.has_encoder else len(question.ids)  # in the decoder
    return min(max_output_length(filler.network) - before, longest)


def output_request(
    config: LanguageModelConfig, source: Ids, targets: Sequence[int]
) -> ScoringRequest:
    """Return the decoder's input that predicts an output: after the source, without an encoder."""
    if config.has_encoder:
        tokens = (config.decoder_start_token_id or 0, *targets[:-1])
        return ScoringRequest(tokens, range(len(tokens)), targets, source)
    tokens, first = (*source, *targets[:-1]), len(source) - 1
    positions, prefix = range(first, len(tokens)), config.prefix_length(len(source))
    return ScoringRequest(tokens, positions, targets, prefix=prefix)


def _decode(filler: BlankFiller, question: EncodedBlanks, result: GeneratedTokens) -> GeneratedFill:
    tokenizer, blanks = filler.tokenizer, question.blanks
    if filler.method == "spans":
        sentinels = tokenizer.sentinel_ids
        spans = [
            tokens_after_sentinel(result.tokens, id, set(sentinels))
            for id in sentinels[: len(blanks)]
        ]
        fills = [span_fill(tokenizer, span) for span in spans]
        parts, text = tuple(fill.text for fill in fills), blanks.filled(fills)
    else:
        text = tokenizer.decode(result.tokens, skip_specials=True).strip()
        parts = tuple(extract_fills(blanks, tokenizer, text) or ())
    return GeneratedFill(parts, result.logprob, text)


def _score(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], targets: Sequence[str]
) -> list[list[GeneratedFill]]:
    """Score the targets in the single blank of each text."""
    network, requests = filler.network, list[ScoringRequest]()
    outputs = []
    for question in questions:
        if len(question.blanks) > 1:
            raise UsageError("A model that generates spans can score targets for one blank only.")
        for target in targets:
            text = question.blanks.filled([BlankFill(target)])
            sequences = answer_sequences(filler, question, [target])
            outputs.append((text, target, len(sequences)))
            requests += [output_request(network.config, question.ids, ids) for ids in sequences]
    sums = iter([score.sum for score in score_requests(network, requests)])
    fills = []
    for text, target, count in outputs:
        log_prob = float(np.logaddexp.reduce([next(sums) for _ in range(count)]))
        fills.append(GeneratedFill((target,), log_prob, text))
    size = len(targets)
    return [fills[i * size : (i + 1) * size] for i in range(len(questions))]


def answer_sequences(
    filler: BlankFiller, question: EncodedBlanks, answers: Sequence[str]
) -> list[Ids]:
    """Return the decoder outputs that fill the blanks with `answers`: spans may end in two ways."""
    if filler.method != "spans":
        return [filler.encode_framed(question.blanks.filled([BlankFill(one) for one in answers]))]
    eos_token_id, sentinels = filler.network.config.eos_token_id, filler.tokenizer.sentinel_ids
    output: list[int] = []
    for sentinel, part, answer in zip(sentinels, question.blanks.parts, answers, strict=False):
        [span] = tokenize_words(filler.tokenizer, [answer], spaced=part[-1:].isspace())
        output += [sentinel, *span]
    ends = [sentinels[len(answers)], *([] if eos_token_id is None else [eos_token_id])]
    return [(*output, end) for end in ends]


def _merge(question: EncodedBlanks, fills: Sequence[GeneratedFill], top: int) -> FillResult:
    """Add up the probabilities of outputs with the same text, and with the same fill of a blank."""
    by_text: dict[str, list[GeneratedFill]] = defaultdict(list)
    for fill in fills:
        by_text[fill.text].append(fill)
    sentences = [
        FilledSentence(list(own[0].parts), sum(exp(fill.log_prob) for fill in own), text)
        for text, own in by_text.items()
    ]
    sentences.sort(key=lambda sentence: -sentence.score)
    if len(question.blanks) == 1:
        candidates = [
            FillCandidate((*sentence.tokens, "")[0], sentence.score, sentence.text)
            for sentence in sentences
        ]
        return FillResult(question.text, [candidates[:top]], [])
    lists = []
    for blank in range(len(question.blanks)):
        by_part: dict[str, list[FilledSentence]] = defaultdict(list)
        for sentence in sentences:
            if sentence.tokens:
                by_part[sentence.tokens[blank]].append(sentence)
        candidates = [
            FillCandidate(part, sum(sentence.score for sentence in own), own[0].text)
            for part, own in by_part.items()
        ]
        lists.append(sorted(candidates, key=lambda candidate: -candidate.score)[:top])
    return FillResult(question.text, lists, sentences[:top])
