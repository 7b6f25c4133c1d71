"""Every pre-training scheme as one row: what it draws from shards, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from firth.objectives.batch import Batch, Packed
from firth.objectives.causal import causal, hybrid, prefix
from firth.objectives.denoising import infilling, raw_length, span_corruption
from firth.objectives.masked import masked, masked_spans
from firth.objectives.pairs import next_sentence, sentence_order
from firth.objectives.replaced import hidden_for_generator
from firth.text.batches import Pieces, Position, Sampler
from firth.text.tokenizer import Vocabulary

Pairs = tuple[Pieces, Pieces, Any]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One row: `draw` decides which text comes next, `build` hides something in it.

    `draw` must run in order; `build` is pure and may run anywhere. Both are given the options.
    """

    about: str
    source: str
    architectures: tuple[str, ...]  # that can learn from it
    predicts: tuple[str, ...]  # the names of its predictions
    start: tuple[str, ...] = ()  # the role of the token a decoder behind an encoder begins with
    fills: str = ""  # how it teaches to fill blanks: `masks`, `spans` or `whole`
    share: Callable[..., float] = lambda **_: 1.0  # of all tokens, how many are predicted
    weights: dict[str, float] = field(default_factory=dict)  # of its losses, if not all count alike
    draw: Callable[..., tuple[Any, Position]]
    build: Callable[..., Batch]


def _framed(sampler: Sampler, pieces: Pieces, vocabulary: Vocabulary) -> Packed:
    """`[CLS] text [SEP]` around every piece."""
    first, last = vocabulary.id("cls", "bos"), vocabulary.id("sep", "eos")
    return sampler.gather(pieces, first=first, last=last)


def _documents(sampler: Sampler, pieces: Pieces, vocabulary: Vocabulary) -> Packed:
    """A beginning and an end only where a document really begins and ends."""
    first, last = vocabulary.id("bos", "cls"), vocabulary.id("eos", "sep")
    return sampler.gather(pieces, first=first, last=last, at_document_ends_only=True)


Frame = Callable[[Sampler, Pieces, Vocabulary], Packed]


def _on(frame: Frame, objective: Callable[..., Batch], **fixed: Any) -> Callable[..., Batch]:
    """An objective on framed pieces."""

    def build(sampler: Sampler, drawn: Pieces, vocabulary: Vocabulary, **options: Any) -> Batch:
        options.pop("length", None)
        return objective(frame(sampler, drawn, vocabulary), vocabulary, **fixed, **options)

    return build


def _without_vocabulary(objective: Callable[[Packed], Batch]) -> Callable[..., Batch]:
    return lambda packed, vocabulary: objective(packed)


def _next_sentence(
    sampler: Sampler, drawn: Pairs, vocabulary: Vocabulary, *, length: int, **options: Any
) -> Batch:
    first, second, follows = drawn
    texts = sampler.gather(first), sampler.gather(second)
    pairs = next_sentence(*texts, follows, vocabulary, length=length)
    return _also_masked(pairs, vocabulary, **options)


def _sentence_order(
    sampler: Sampler, drawn: Pairs, vocabulary: Vocabulary, *, length: int, **options: Any
) -> Batch:
    first, second, _ = drawn
    pairs = sentence_order(sampler.gather(first), sampler.gather(second), vocabulary, length=length)
    return _also_masked(pairs, vocabulary, **options)


def _also_masked(pairs: Batch, vocabulary: Vocabulary, **options: Any) -> Batch:
    hidden = masked(pairs.inputs, vocabulary, **options)
    return replace(hidden, predictions={**hidden.predictions, **pairs.predictions})


def _span_corruption(
    sampler: Sampler, drawn: Pieces, vocabulary: Vocabulary, *, length: int, **options: Any
) -> Batch:
    return span_corruption(sampler.gather(drawn), vocabulary, **options)


def _infilling(
    sampler: Sampler, drawn: Pieces, vocabulary: Vocabulary, *, length: int, **options: Any
) -> Batch:
    text = replace(sampler.gather(drawn), sentences=sampler.sentence_starts(drawn))
    return infilling(text, vocabulary, **options)


def _take(
    sampler: Sampler, position: Position, length: int, tokens: int, **_: Any
) -> tuple[Pieces, Position]:
    """Pieces of at most `length`, whatever will be hidden in them."""
    return sampler.take(position, length=length, tokens=tokens)


def _take_pairs(
    random_half: bool, sampler: Sampler, position: Position, length: int, tokens: int, **_: Any
) -> tuple[Pairs, Position]:
    return sampler.take_pairs(position, length=length, tokens=tokens, random_half=random_half)


def _take_for_spans(
    sampler: Sampler, position: Position, *, length: int, tokens: int, **options: Any
) -> tuple[Pieces, Position]:
    """Pieces that give inputs, and targets, of at most `length`; an end token each."""
    raw = raw_length(length, **options)
    return sampler.take(position, length=raw + 1, tokens=tokens, frame=1)


def _hidden(rate: float = 0.15, **_: Any) -> float:
    return rate


def _twice_hidden(rate: float = 0.15, **_: Any) -> float:
    """SpanBERT asks for a hidden token where it stands, and from the boundary of its span."""
    return 2 * rate


def _hybrid_share(masked_share: float = 0.5, rate: float = 0.15, **_: Any) -> float:
    return masked_share * rate + 1 - masked_share


def _span_share(rate: float = 0.15, mean_length: float = 3.0, **_: Any) -> float:
    """A sentinel for each span stands on both sides.

    >>> round(_span_share(), 3), round(114 / (512 + 114), 3)  # T5's lengths
    (0.182, 0.182)
    """
    spans = rate / mean_length
    return (rate + spans) / (1 + 2 * spans)


def _infilling_share(rate: float = 0.3, mean_length: float = 3.0, **_: Any) -> float:
    """All of the text is asked for, and read without its spans."""
    return 1 / (2 - rate + rate / mean_length)


ENCODER, DECODER, BOTH = "encoder", "decoder", "encoder-decoder"

OBJECTIVES = {
    "masked": Objective(
        about="15 % of the tokens hidden, drawn anew each time",
        source="BERT without pairs: RoBERTa, Liu et al. 2019",
        architectures=(ENCODER,),
        predicts=("masked",),
        fills="masks",
        share=_hidden,
        draw=_take,
        build=_on(_framed, masked),
    ),
    "masked-words": Objective(
        about="whole words hidden",
        source="BERT's whole-word release, 2019",
        architectures=(ENCODER,),
        predicts=("masked",),
        fills="masks",
        share=_hidden,
        draw=_take,
        build=_on(_framed, masked, whole_words=True),
    ),
    "masked-spans": Objective(
        about="spans hidden, predicted also from their two boundaries",
        source="SpanBERT, Joshi et al. 2020",
        architectures=(ENCODER,),
        predicts=("masked", "boundary"),
        fills="masks",
        share=_twice_hidden,
        draw=_take,
        build=_on(_framed, masked_spans),
    ),
    "masked-nsp": Objective(
        about="hidden tokens, and whether the second text follows the first",
        source="BERT, Devlin et al. 2019",
        architectures=(ENCODER,),
        predicts=("masked", "next sentence"),
        fills="masks",
        share=_hidden,
        draw=partial(_take_pairs, True),
        build=_next_sentence,
    ),
    "masked-sop": Objective(
        about="hidden tokens, and whether two texts were swapped",
        source="ALBERT, Lan et al. 2020",
        architectures=(ENCODER,),
        predicts=("masked", "sentence order"),
        fills="masks",
        share=_hidden,
        draw=partial(_take_pairs, False),
        build=_sentence_order,
    ),
    "replaced": Objective(
        about="which tokens another network made up",
        source="ELECTRA, Clark et al. 2020",
        architectures=(ENCODER,),
        predicts=("replaced",),
        share=_hidden,
        weights={"replaced": 50.0},
        draw=_take,
        build=_on(_framed, hidden_for_generator),
    ),
    "causal": Objective(
        about="the next token",
        source="GPT, Radford et al. 2018",
        architectures=(DECODER,),
        predicts=("causal",),
        draw=_take,
        build=_on(_documents, _without_vocabulary(causal)),
    ),
    "prefix": Objective(
        about="the next token, behind a beginning that is read both ways",
        source="Raffel et al. 2020, section 3.2.1",
        architectures=(DECODER,),
        predicts=("prefix",),
        share=lambda **_: 0.5,
        draw=_take,
        build=_on(_documents, _without_vocabulary(prefix)),
    ),
    "hybrid": Objective(
        about="masked and causal sequences for one network",
        source="GPT-BERT, Charpentier and Samuel 2024",
        architectures=(DECODER,),
        predicts=("masked", "causal"),
        fills="masks",
        share=_hybrid_share,
        draw=_take,
        build=_on(_documents, hybrid),
    ),
    "span-corruption": Objective(
        about="spans taken out, asked for one by one",
        source="T5, Raffel et al. 2020",
        architectures=(BOTH,),
        predicts=("denoising",),
        start=("pad", "bos", "cls"),
        fills="spans",
        share=_span_share,
        draw=_take_for_spans,
        build=_span_corruption,
    ),
    "infilling": Objective(
        about="spans behind one mask each, sentences shuffled, the text asked for",
        source="BART, Lewis et al. 2020",
        architectures=(BOTH,),
        predicts=("denoising",),
        start=("eos", "sep"),
        fills="whole",
        share=_infilling_share,
        draw=_take,
        build=_infilling,
    ),
}


def fills(objective: str | None) -> str:
    """How an objective teaches to fill blanks; "" where it does not, or is not known.

    >>> fills("hybrid"), fills("causal"), fills(None)
    ('masks', '', '')
    """
    return OBJECTIVES[objective].fills if objective in OBJECTIVES else ""
