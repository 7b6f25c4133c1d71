"""The registry of pre-training objectives: how each draws text and builds batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from firth.data.packing import PackedSequences
from firth.data.sampler import DocumentSpans, Sampler, SamplerPosition
from firth.objectives.batch import Batch
from firth.objectives.bilm import bilm
from firth.objectives.causal import causal, hybrid, prefix
from firth.objectives.denoising import START_ROLES, infilling, raw_length, span_corruption
from firth.objectives.masked import masked, masked_spans
from firth.objectives.pairs import next_sentence, sentence_order
from firth.objectives.replaced import mask_for_generator
from firth.objectives.text_to_text import (
    causal_denoising,
    causal_seq2seq,
    prefix_denoising,
    prefix_seq2seq,
)
from firth.tokenizers.special_tokens import with_special_tokens
from firth.tokenizers.tokenizer import Tokenizer, Vocabulary

Pairs = tuple[DocumentSpans, DocumentSpans, Any]
Roles = tuple[str, ...]  # the first that a tokenizer has gives the special token


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One pre-training objective: `draw` selects the next text, `build` makes a batch of it.

    `draw` must run in order; `build` is pure and may run in any thread. Both get the options.
    """

    about: str
    source: str
    details: str = ""  # how to read an example of it
    architectures: tuple[str, ...]  # that can be trained with it
    predicts: tuple[str, ...]  # names of its predictions
    before: Roles = ()  # the special token before an input
    after: Roles = ()  # the special token after an input; a decoder continues it
    start_token_roles: Roles = ()  # encoder-decoder: the decoder start token
    prefix_lm: bool = False  # decoder: the prompt is a bidirectional prefix
    infill_format: str = ""  # how a model fills in blanks: `masks`, `spans` or `whole`
    predicted_fraction: Callable[..., float] = lambda **_: 1.0  # of all tokens
    loss_weights: dict[str, float] = field(default_factory=dict)  # by prediction; default 1
    draw: Callable[..., tuple[Any, SamplerPosition]]
    build: Callable[..., Batch]
    validate: Callable[..., Batch] | None = None  # builds validation batches; default `build`


def _framed(sampler: Sampler, spans: DocumentSpans, vocabulary: Vocabulary) -> PackedSequences:
    """Gather spans as `[CLS] text [SEP]`."""
    first, last = vocabulary.id("cls", "bos"), vocabulary.id("sep", "eos")
    return sampler.gather(spans, first=first, last=last)


def _documents(sampler: Sampler, spans: DocumentSpans, vocabulary: Vocabulary) -> PackedSequences:
    """Gather spans with EOS where a document ends, and BOS where one begins.

    Spans of full sentences all begin with BOS, as prompts and scored texts do.
    """
    first, last = vocabulary.id("bos", "cls"), vocabulary.id("eos", "sep")
    return sampler.gather(
        spans,
        first=first,
        last=last,
        first_everywhere=sampler.full_sentences,
        last_everywhere=False,
    )


def _plain(sampler: Sampler, spans: DocumentSpans, vocabulary: Vocabulary) -> PackedSequences:
    """Gather spans without special tokens."""
    return sampler.gather(spans)


def _sentences(sampler: Sampler, spans: DocumentSpans, vocabulary: Vocabulary) -> PackedSequences:
    """Gather spans without special tokens, with the starts of their sentences."""
    return replace(sampler.gather(spans), sentences=sampler.sentence_starts(spans))


Frame = Callable[[Sampler, DocumentSpans, Vocabulary], PackedSequences]


def _with_frame(
    frame: Frame, objective: Callable[..., Batch], **fixed: Any
) -> Callable[..., Batch]:
    """Return a `build` function that frames the spans and applies an objective."""

    def build(
        sampler: Sampler, drawn: DocumentSpans, vocabulary: Vocabulary, **options: Any
    ) -> Batch:
        options.pop("length", None)
        return objective(frame(sampler, drawn, vocabulary), vocabulary, **fixed, **options)

    return build


def _masking(**fixed: Any) -> Callable[..., Batch]:
    """Return a `build` function that masks tokens; `static`: the same ones in every epoch.

    BERT's text was masked once, in ten ways (Devlin et al. 2019); Liu et al. 2019, section 4.1,
    compare static with dynamic masks.
    """

    def build(
        sampler: Sampler,
        drawn: DocumentSpans,
        vocabulary: Vocabulary,
        *,
        length: int = 0,
        static: bool = False,
        **options: Any,
    ) -> Batch:
        packed = _framed(sampler, drawn, vocabulary)
        if static:
            packed = sampler.with_static_draws(packed, drawn)
        return masked(packed, vocabulary, **fixed, **options)

    return build


def _without_vocabulary(objective: Callable[[PackedSequences], Batch]) -> Callable[..., Batch]:
    return lambda packed, vocabulary: objective(packed)


def _masked_pairs(
    random_half: bool,
    sampler: Sampler,
    drawn: Pairs,
    vocabulary: Vocabulary,
    *,
    length: int,
    **options: Any,
) -> Batch:
    """Apply next-sentence or sentence-order prediction to pairs of texts, and mask tokens."""
    first, second, follows = sampler.gather(drawn[0]), sampler.gather(drawn[1]), drawn[2]
    if random_half:
        pairs = next_sentence(first, second, follows, vocabulary, length=length)
    else:
        pairs = sentence_order(first, second, vocabulary, length=length)
    batch = masked(pairs.inputs, vocabulary, **options)
    return replace(batch, predictions={**batch.predictions, **pairs.predictions})


def _take(
    sampler: Sampler, position: SamplerPosition, length: int, tokens: int, **_: Any
) -> tuple[DocumentSpans, SamplerPosition]:
    """Draw spans of at most `length` tokens."""
    return sampler.take(position, length=length, tokens=tokens)


def _take_pairs(
    random_half: bool,
    sampler: Sampler,
    position: SamplerPosition,
    length: int,
    tokens: int,
    **_: Any,
) -> tuple[Pairs, SamplerPosition]:
    return sampler.take_pairs(position, length=length, tokens=tokens, random_half=random_half)


def _take_for_spans(
    concatenated: bool,
    sampler: Sampler,
    position: SamplerPosition,
    *,
    length: int,
    tokens: int,
    **options: Any,
) -> tuple[DocumentSpans, SamplerPosition]:
    """Draw spans whose inputs and targets, each with an end token, have at most `length` tokens."""
    raw = raw_length(length, concatenated=concatenated, **options)
    return sampler.take(position, length=raw + 1, tokens=tokens, frame=1)


def _take_for_decoder(
    sampler: Sampler, position: SamplerPosition, length: int, tokens: int, **_: Any
) -> tuple[DocumentSpans, SamplerPosition]:
    """Draw spans that have at most `length` tokens with an end token."""
    return sampler.take(position, length=length, tokens=tokens, frame=1)


def _masked_fraction(mask_prob: float = 0.15, **_: Any) -> float:
    return mask_prob


def _hybrid_fraction(masked_fraction: float = 0.5, mask_prob: float = 0.15, **_: Any) -> float:
    return masked_fraction * mask_prob + 1 - masked_fraction


def _span_fraction(noise_density: float = 0.15, mean_span_length: float = 3.0, **_: Any) -> float:
    """Each span has a sentinel in the inputs and in the targets.

    >>> round(_span_fraction(), 3), round(114 / (512 + 114), 3)  # T5's lengths
    (0.182, 0.182)
    """
    spans = noise_density / mean_span_length
    return (noise_density + spans) / (1 + 2 * spans)


def _infilling_fraction(
    noise_density: float = 0.3, mean_span_length: float = 3.0, **_: Any
) -> float:
    """The inputs are the text without its spans, the targets the whole text."""
    return 1 / (2 - noise_density + noise_density / mean_span_length)


_encoder = partial(
    Objective,
    architectures=("encoder",),
    before=("cls", "bos"),
    after=("sep", "eos"),
    predicts=("masked",),
    infill_format="masks",
    predicted_fraction=_masked_fraction,
    draw=_take,
)
_decoder = partial(Objective, architectures=("decoder",), before=("bos", "cls"), draw=_take)
_encoder_decoder = partial(
    Objective,
    architectures=("encoder-decoder",),
    after=("eos", "sep"),
    predicts=("denoising",),
    start_token_roles=START_ROLES,
    draw=_take,
)
_denoising_decoder = partial(
    _decoder,
    source="Raffel et al. 2020, sections 3.2.1 and 3.2.3",
    before=(),
    predicts=("denoising",),
    infill_format="spans",
    predicted_fraction=_span_fraction,
    draw=partial(_take_for_spans, True),
)

OBJECTIVES: dict[str, Objective] = {
    "masked": _encoder(
        about="predict tokens masked at random, by default 15 % (dynamic masking)",
        source="BERT without pairs: RoBERTa, Liu et al. 2019",
        details="Each selected token becomes the mask token (80 %), a random token (10 %) or stays "
        "(10 %).",
        build=_masking(),
    ),
    "masked-words": _encoder(
        about="predict masked whole words",
        source="BERT's whole-word release, 2019",
        details="If a word is selected, all its tokens are.",
        build=_masking(whole_words=True),
    ),
    "masked-spans": _encoder(
        about="predict masked spans, also from their two boundary tokens",
        source="SpanBERT, Joshi et al. 2020",
        details="The boundary objective predicts the same tokens from the two around the span.",
        predicts=("masked", "boundary"),
        predicted_fraction=lambda mask_prob=0.15, **_: 2 * mask_prob,  # both predictions
        build=_with_frame(_framed, masked_spans),
    ),
    "masked-nsp": _encoder(
        about="predict masked tokens, and whether the second text follows the first",
        source="BERT, Devlin et al. 2019",
        details="The vector of the first token predicts whether the second text follows.",
        predicts=("masked", "next sentence"),
        draw=partial(_take_pairs, True),
        build=partial(_masked_pairs, True),
    ),
    "masked-sop": _encoder(
        about="predict masked tokens, and whether two texts were swapped",
        source="ALBERT, Lan et al. 2020",
        details="The vector of the first token predicts whether the two texts are in their order.",
        predicts=("masked", "sentence order"),
        draw=partial(_take_pairs, False),
        build=partial(_masked_pairs, False),
    ),
    "replaced": _encoder(
        about="detect the tokens that a generator network replaced",
        source="ELECTRA, Clark et al. 2020",
        details="Here a random token of the text takes the place of the generator's sample.",
        predicts=("replaced",),
        infill_format="",
        loss_weights={"replaced": 50.0},
        build=_with_frame(_framed, mask_for_generator),
    ),
    "causal": _decoder(
        about="predict the next token",
        source="GPT, Radford et al. 2018",
        details="The target of a position is the next token, predicted from those up to there.",
        predicts=("causal",),
        build=_with_frame(_documents, _without_vocabulary(causal)),
    ),
    "prefix": _decoder(
        about="predict the next token after a bidirectional prefix",
        source="Raffel et al. 2020, section 3.2.1",
        details="The tokens of the prefix see each other; predictions begin at its last token.",
        predicts=("prefix",),
        prefix_lm=True,
        predicted_fraction=lambda **_: 0.5,
        build=_with_frame(_documents, _without_vocabulary(prefix)),
    ),
    "hybrid": _decoder(
        about="mix masked and causal sequences in each batch",
        source="GPT-BERT, Charpentier and Samuel 2024",
        details="A masked token is predicted at the position before it, like a next token.",
        predicts=("masked", "causal"),
        infill_format="masks",
        predicted_fraction=_hybrid_fraction,
        build=_with_frame(_documents, hybrid),
    ),
    "hybrid-batches": _decoder(
        about="alternate between masked and causal batches",
        source="GPT-BERT, Charpentier and Samuel 2024",
        details="A masked token is predicted at the position before it, like a next token.",
        predicts=("masked", "causal"),
        infill_format="masks",
        predicted_fraction=_hybrid_fraction,
        build=_with_frame(_framed, hybrid, whole_batches=True),
        validate=_with_frame(_framed, hybrid),  # both losses in every validation batch
    ),
    "causal-denoising": _denoising_decoder(
        about="predict spans after a text in which sentinel tokens replace them",
        details="The corrupted text and the spans are one sequence with causal attention; only the "
        "spans are predicted.",
        build=_with_frame(_plain, causal_denoising),
    ),
    "prefix-denoising": _denoising_decoder(
        about="predict spans after a bidirectional text in which sentinel tokens replace them",
        details="The corrupted text and the spans are one sequence; the corrupted text is a "
        "bidirectional prefix, and only the spans are predicted.",
        prefix_lm=True,
        build=_with_frame(_plain, prefix_denoising),
    ),
    "bilm": _decoder(
        about="predict the next token, and in a second language model the previous one",
        source="ELMo, Peters et al. 2018",
        details="Two language models read the same tokens in opposite directions.",
        after=("eos", "sep"),
        predicts=("forward", "backward"),
        loss_weights={"forward": 0.5, "backward": 0.5},
        predicted_fraction=lambda **_: 2.0,  # each token twice
        build=_with_frame(_documents, _without_vocabulary(bilm)),
    ),
    "span-corruption": _encoder_decoder(
        about="predict spans that sentinel tokens replace",
        source="T5, Raffel et al. 2020",
        details="One sentinel replaces each span; the decoder predicts each sentinel and its span. "
        "Its input is the target sequence, shifted by one position.",
        infill_format="spans",
        predicted_fraction=_span_fraction,
        draw=partial(_take_for_spans, False),
        build=_with_frame(_plain, span_corruption),
    ),
    "infilling": _encoder_decoder(
        about="restore a text with masked spans and shuffled sentences",
        source="BART, Lewis et al. 2020",
        details="One mask token replaces each span; the decoder predicts the whole text. Its input "
        "is the target sequence, shifted by one position.",
        before=("bos", "cls"),
        start_token_roles=("eos", "sep"),
        infill_format="whole",
        predicted_fraction=_infilling_fraction,
        build=_with_frame(_sentences, infilling),
    ),
    "causal-seq2seq": _encoder_decoder(
        about="predict the next token in the decoder; the encoder reads no text",
        source="GPT's objective on T5's architecture; Raffel et al. 2020, section 3.2",
        details="The encoder reads the end token alone; the decoder predicts the whole text.",
        predicts=("causal",),
        draw=_take_for_decoder,
        build=_with_frame(_plain, causal_seq2seq),
    ),
    "prefix-seq2seq": _encoder_decoder(
        about="predict the rest of a text from its beginning, which the encoder reads",
        source="Raffel et al. 2020, section 3.2.3",
        details="The text is split at a random point; both parts end with the end token.",
        predicts=("prefix",),
        predicted_fraction=lambda **_: 0.5,
        build=_with_frame(_plain, prefix_seq2seq),
    ),
}


def pretraining_tokenizer(objective: str, tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that adds to a text the special tokens of an objective's inputs."""
    row, ids = OBJECTIVES[objective], tokenizer.special_ids
    before, after = (
        [ids[role] for role in roles if role in ids][:1] for roles in (row.before, row.after)
    )
    return with_special_tokens(tokenizer, before, after)


def infill_format(objective: str | None) -> str:
    """Return how a model of this objective fills in blanks; "" if it cannot, or if unknown.

    >>> infill_format("hybrid"), infill_format("causal"), infill_format(None)
    ('masks', '', '')
    """
    return OBJECTIVES[objective].infill_format if objective in OBJECTIVES else ""
